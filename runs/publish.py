"""Which code each published figure was measured with: runs/published.toml, and whether that code has changed since.

    python -m runs.publish           every figure and its state
    python -m runs.publish tax       after runs/tax.sh: its figures are of today, of this commit and of this code
    python -m runs.publish --mark    mark the figures whose code has changed as stale, and unmark the others

A figure depends on its script and on the code of the repository that the script runs (runs/measure/sources.py).
tests/runs/test_published.py fails if a figure's code has changed and the page does not say so.

A page says "measured DATE on an earlier version" in the figure's section or in its first section. A page with a table
may list the scripts instead: "measured DATE on an earlier version: `tax.sh`, `peers.sh`". Such a list covers the whole
page, but only the scripts that it names, and may name only scripts with stale figures.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import tomlkit
from rich.console import Console
from rich.table import Table

from runs.measure.sources import ROOT, Reached, Sources, hash_parts

PUBLISHED = "runs/published.toml"
MARK = "`python -m runs.publish --mark`"
# A note that lists scripts.
LISTED = re.compile(r"measured ([\d-]+) on an earlier version: ((?:`[\w-]+\.sh`(?:, | and )?)+)")


@dataclass(frozen=True, slots=True)
class Figure:
    id: str
    page: str
    text: str  # as it stands on the page
    script: str
    date: date
    commit: str
    code: str
    stale: bool = False

    @property
    def note(self) -> str:
        """What the page must say if the figure is stale."""
        return f"measured {self.date} on an earlier version"


class Code:
    """What the figures of each script depend on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sources = Sources(root)
        self._hashes: dict[str, str] = {}

    def hash(self, script: str) -> str:
        """The same on every machine: the versions of installed packages do not count."""
        if script not in self._hashes:
            lines = (self.root / script).read_text(encoding="utf-8").splitlines()
            commands = "\n".join(line for line in lines if not line.startswith("#"))
            parts = {one.part for one in self._reached(script)} - {""}
            self._hashes[script] = hash_parts(parts | {f"{script}:{commands}"})[:16]
        return self._hashes[script]

    def files(self, script: str) -> set[Path]:
        return {self.root / script} | {one.path for one in self._reached(script) if one.path is not None}

    def _reached(self, script: str) -> Iterator[Reached]:
        """Of the repository. The package's own __init__ holds the version, which every release changes, and nothing
        that is measured."""
        line = re.search(r'"\$PY" -m ([\w.]+)', (self.root / script).read_text(encoding="utf-8"))
        if line is None:
            raise SystemExit(f'{script} does not run "$PY" -m MODULE: its code cannot be told.')
        version = self.root / "headway" / "__init__.py"
        return (one for one in self._sources.reached(line[1]) if one.path not in (None, version))


def read_figures(root: Path) -> list[Figure]:
    return [Figure(**entry) for entry in _document(root).unwrap().get("figures", [])]


def problems(root: Path) -> Iterator[str]:
    """What is wrong with each figure, and what to do about it."""
    code = Code(root)
    figures = read_figures(root)
    for figure in figures:
        name = f"{figure.id} in {PUBLISHED}"
        first, *others = sections_of(root / figure.page)
        having = [one for one in (first, *others) if _words(figure.text) in one]
        if not having:
            yield f"{name}: {figure.page} does not say {figure.text!r}. Correct the text, or delete the entry."
        is_stale = code.hash(figure.script) != figure.code
        again = f"run {figure.script} and then `python -m runs.publish {Path(figure.script).stem}`"
        if is_stale and not figure.stale:
            yield f"{name}: its code has changed since it was measured. Either {again}, or mark it: {MARK}."
        elif figure.stale and not is_stale:
            yield f"{name}: its code is the one it was measured with. Unmark it: {MARK}."
        elif is_stale and not _is_noted(figure, "\n".join((first, *having)), root):
            yield f'{name}: {figure.page} must say "{figure.note}", beside it or in its first section. Or {again}.'
    stale = {(figure.page, str(figure.date), figure.script) for figure in figures if figure.stale}
    for page in sorted({figure.page for figure in figures}):
        for day, script in sorted(listed_on(root / page)):
            if (page, day, script) not in stale:
                yield f"{page} lists {script} as measured {day} on an earlier version, but it is not stale: remove it."


def _is_noted(figure: Figure, beside: str, root: Path) -> bool:
    is_beside = figure.note in LISTED.sub("", beside)
    return is_beside or (str(figure.date), figure.script) in listed_on(root / figure.page)


def listed_on(page: Path) -> set[tuple[str, str]]:
    """The dates and scripts that the page's notes list."""
    notes = LISTED.findall(_words(page.read_text(encoding="utf-8")))
    return {(day, f"runs/{script}") for day, scripts in notes for script in re.findall(r"[\w-]+\.sh", scripts)}


def sections_of(page: Path) -> list[str]:
    """The page from heading to heading, the title with the first. Single spaces: a line break is no difference."""
    found: list[list[str]] = [[]]
    is_code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        is_code ^= line.startswith("```")
        if line.startswith("##") and not is_code:
            found.append([])
        found[-1].append(line)
    return [_words("\n".join(lines)) for lines in found]


def _words(text: str) -> str:
    return " ".join(text.split())


def mark(root: Path) -> None:
    code, document = Code(root), _document(root)
    for entry in document.get("figures", []):
        if code.hash(entry["script"]) != entry["code"]:
            entry["stale"] = True
        else:
            entry.pop("stale", None)
    _write(root, document)


def renew(root: Path, name: str, today: date) -> int:
    """The number of figures of runs/NAME.sh, which were measured just now."""
    code, document, script = Code(root), _document(root), f"runs/{name}.sh"
    files = [path.relative_to(root).as_posix() for path in code.files(script)]
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *files], cwd=root).returncode:
        raise SystemExit(f"Commit the code that {script} was run with first: a figure names the commit it is of.")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    )
    mine = [entry for entry in document.get("figures", []) if entry["script"] == script]
    for entry in mine:
        entry.update({"date": today, "commit": commit.stdout.strip(), "code": code.hash(script)})
        entry.pop("stale", None)
    _write(root, document)
    return len(mine)


def _document(root: Path) -> tomlkit.TOMLDocument:
    return tomlkit.parse((root / PUBLISHED).read_text(encoding="utf-8"))


def _write(root: Path, document: tomlkit.TOMLDocument) -> None:
    (root / PUBLISHED).write_text(tomlkit.dumps(document), encoding="utf-8")


def main() -> None:
    console = Console(width=130)
    if len(sys.argv) > 1 and sys.argv[1] == "--mark":
        mark(ROOT)
    elif len(sys.argv) > 1:
        count = renew(ROOT, sys.argv[1], datetime.now(UTC).date())
        console.print(
            f"{count} figures of runs/{sys.argv[1]}.sh are of today. Compare each text with what the run printed."
        )
    table = Table("figure", "page", "script", "measured", "commit", "code")
    for figure in read_figures(ROOT):
        state = "changed since" if figure.stale else "the same"
        table.add_row(figure.id, figure.page, figure.script, str(figure.date), figure.commit, state)
    console.print(table)
    for problem in problems(ROOT):
        console.print(problem, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
