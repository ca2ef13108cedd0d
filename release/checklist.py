"""The release checklist: what must hold before a version is published. `make checklist` runs it.

    python -m release.checklist                   every step
    python -m release.checklist version figures   these steps only

A step passes, fails, or cannot be judged here, because something outside of this machine cannot be asked. The exit code
is 1 if a step failed, 3 if none failed and one could not be judged, else 0. Nothing is tagged or published; of the
checkout only dist/ changes.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from packaging.version import Version
from rich.console import Console
from rich.table import Table

from headway import __version__
from release.contents import ROOT, metadata_of, problems, tracked_files
from release.versions import date_of, disagreements
from runs import publish

DIST = ROOT / "dist"
SBOM = Path("requirements", "sbom.cdx.json")
VULNERABLE = re.compile(r"^Found \d+ known vulnerabilit.*$", re.MULTILINE)
ENGINES = {"torch", "vllm"}  # the gateway's environment has neither
CONFIG = '[[models]]\nname = "my-model"\n\n[[models.replicas]]\nurl = "http://127.0.0.1:8001"\nseats = 8\n'


class StepFailed(Exception):
    """What is wrong, and what to do about it."""


class CannotJudge(Exception):
    """What could not be asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    step: str
    verdict: Literal["pass", "FAIL", "not judged"]
    words: str
    took_s: float


# --- what was committed ---


def tree() -> str:
    if changed := _git("status", "--porcelain"):
        raise StepFailed(f"Commit or remove what is not committed:\n{changed}")
    return f"clean at {_git('rev-parse', '--short', 'HEAD')}"


def version() -> str:
    if wrong := list(disagreements(ROOT)):
        raise StepFailed(f"The version is {__version__}, but:\n" + "\n".join(wrong))
    date = date_of(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if date is None:
        raise StepFailed(f"The newest section of CHANGELOG.md must be: ## {__version__} (YYYY-MM-DD)")
    return f"{__version__}, of {date}"


def tag() -> str:
    name = f"v{__version__}"
    if _git("tag", "--list", name):
        raise StepFailed(f"The tag {name} is there already: raise the version.")
    for remote in _git("remote").split():
        done = _run("git", "ls-remote", "--tags", remote, name)
        if done.returncode:
            raise CannotJudge(f"{remote} does not say which tags it has: {_last_line(done)}")
        if done.stdout:
            raise StepFailed(f"The tag {name} is on {remote} already: raise the version.")
    return f"{name} is free"


def locks() -> str:
    with _clone() as clone:
        done = _run("requirements/lock.sh", cwd=clone, tools=_tools())
        if done.returncode:
            raise CannotJudge(f"requirements/lock.sh: {_last_line(done)}")
        if changed := _git("status", "--porcelain", cwd=clone):
            raise StepFailed(f"`make lock` changes:\n{changed}")
    return "`make lock` changes nothing"


def sbom() -> str:
    with _clone() as clone:
        done = _run("requirements/sbom.sh", cwd=clone, tools=_tools())
        if done.returncode:
            raise StepFailed(f"requirements/sbom.sh: {_last_line(done)}")
        if not filecmp.cmp(ROOT / SBOM, clone / SBOM, shallow=False):
            raise StepFailed(f"`make sbom` changes {SBOM}.")
    return f"{len(msgspec.json.decode((ROOT / SBOM).read_bytes())['components'])} packages"


def figures() -> str:
    if found := list(publish.problems(ROOT)):
        raise StepFailed("\n".join(found))
    return judge_figures(publish.read_figures(ROOT), __version__)


def judge_figures(published: Sequence[publish.Figure], of_version: str) -> str:
    """A stale figure is one that was measured on an earlier version. Only a release candidate may have any."""
    stale = Counter((one.page, one.script, str(one.date)) for one in published if one.stale)
    listed = "".join(f"\n{page}: {count} of {script}, {day}" for (page, script, day), count in sorted(stale.items()))
    words = f"{stale.total()} of {len(published)} figures were measured on an earlier version"
    if stale and not Version(of_version).is_prerelease:
        raise StepFailed(f"{words}: measure them again.{listed}")
    return f"{words}, as their pages say: allowed in a release candidate only{listed}" if stale else words


def check() -> str:
    done = _run("make", "--silent", "check")
    if done.returncode:
        raise StepFailed(f"`make check`:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return _last_line(done)


# --- what is built ---


def build() -> str:
    """Twice, in different folders: whoever builds the commit again can compare."""
    with tempfile.TemporaryDirectory() as again:
        for folder in (DIST, Path(again)):
            done = _run("release/build.sh", str(folder))
            if done.returncode:
                raise StepFailed(f"release/build.sh:\n{done.stderr[-2000:]}")
        names = sorted(path.name for path in _built())
        _, different, missing = filecmp.cmpfiles(DIST, again, names, shallow=False)
    if different or missing:
        raise StepFailed(f"Built again, these differ: {', '.join([*different, *missing])}")
    sizes = [f"\n{name}, {(DIST / name).stat().st_size / 1024:,.0f} KiB" for name in names]
    return "built twice, the same bytes" + "".join(sizes)


def contents() -> str:
    tracked = tracked_files()
    found = [problem for archive in _built() for problem in problems(archive, tracked)]
    found += [
        f"{wheel.name} is of {metadata_of(wheel)['Version']}"
        for wheel in _wheels()
        if metadata_of(wheel)["Version"] != __version__
    ]
    if found:
        raise StepFailed("\n".join(found))
    return f"{len(_built())} files hold the package and nothing else"


def twine() -> str:
    done = _run("twine", "check", "--strict", *map(str, _built()), tools=_tools())
    if done.returncode:
        raise StepFailed(done.stdout + done.stderr)
    return f"{len(_built())} files"


def install() -> str:
    return "each in a fresh environment" + "".join(f"\n{wheel.name}: {_try_out(wheel)}" for wheel in _wheels())


def _try_out(wheel: Path) -> str:
    """Do with the wheel what a new user does, in a folder that has nothing of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        bin_folder = here / "venv" / "bin"
        _must(sys.executable, "-m", "venv", str(here / "venv"), cwd=here)
        (here / "headway.toml").write_text(CONFIG)
        began = time.monotonic()
        _must(str(bin_folder / "pip"), "install", "--quiet", str(wheel), cwd=here)
        install_s = time.monotonic() - began
        headway = str(bin_folder / "headway")
        said = _must(headway, "--version", cwd=here).strip()
        if said != __version__:
            raise StepFailed(f"{wheel.name}: `headway --version` says {said}")
        for words in (["--help"], ["check"], ["demo", "--scripted", "--rounds", "1"]):
            _must(headway, *words, cwd=here)
        where = _must(str(bin_folder / "python"), "-c", "import headway.core.machine as m; print(m.__file__)", cwd=here)
        if where.strip().endswith(".so") != ("-none-any" not in wheel.name):
            raise StepFailed(f"{wheel.name}: the policy is loaded from {where.strip()}")
        packages = msgspec.json.decode(_must(str(bin_folder / "pip"), "list", "--format", "json", cwd=here))
    names = {package["name"] for package in packages}
    if names & ENGINES:
        raise StepFailed(f"{wheel.name} installs {', '.join(sorted(names & ENGINES))}")
    return f"installed in {install_s:.0f} s, {len(names - {'pip', 'setuptools'})} packages"


def audit() -> str:
    done = _run("make", "--silent", "audit")
    said = done.stdout + done.stderr
    if found := VULNERABLE.findall(said):
        raise StepFailed("\n".join([*found, "`make audit` names them."]))
    if done.returncode:
        raise CannotJudge(f"`make audit` could not look up everything: {_last_line(done)}")
    return "no known vulnerability"


STEPS: dict[str, Callable[[], str]] = {
    step.__name__: step
    for step in (tree, version, tag, locks, sbom, figures, check, build, contents, twine, install, audit)
}


# --- how steps look and act ---


def _built() -> list[Path]:
    """Raises StepFailed if nothing was built: the steps after `build` look at dist/."""
    found = sorted(DIST.glob("headway-*")) if DIST.exists() else []
    if not found:
        raise StepFailed("dist/ is empty: run the step `build` or `make dist` first.")
    return found


def _wheels() -> list[Path]:
    return [path for path in _built() if path.suffix == ".whl"]


@contextmanager
def _clone() -> Iterator[Path]:
    """The last commit in a folder of its own: what is written there changes nothing here."""
    with tempfile.TemporaryDirectory() as folder:
        _git("clone", "--quiet", "--shared", str(ROOT), folder)
        yield Path(folder)


def _git(*words: str, cwd: Path = ROOT) -> str:
    return _must("git", *words, cwd=cwd).strip()


def _must(*words: str, cwd: Path) -> str:
    done = _run(*words, cwd=cwd)
    if done.returncode:
        raise StepFailed(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _tools() -> Path:
    folder = ROOT / ".tools" / "bin"
    if not folder.exists():
        raise StepFailed("There is no .tools: `make checklist` makes it.")
    return folder


def _run(*words: str, cwd: Path = ROOT, tools: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if tools is not None:
        environ["PATH"] = f"{tools}:{environ['PATH']}"
    environ["GIT_TERMINAL_PROMPT"] = "0"  # a remote that wants a password cannot be asked
    return subprocess.run(
        words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return next(iter((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]), "no output")


def run_step(name: str, step: Callable[[], str]) -> Outcome:
    began = time.monotonic()
    verdict: Literal["pass", "FAIL", "not judged"] = "pass"
    try:
        words = step()
    except StepFailed as failed:
        verdict, words = "FAIL", str(failed)
    except CannotJudge as unknown:
        verdict, words = "not judged", str(unknown)
    return Outcome(name, verdict, words, time.monotonic() - began)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    verdicts = {outcome.verdict for outcome in outcomes}
    return 1 if "FAIL" in verdicts else 3 if "not judged" in verdicts else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Check what must hold before a version is published.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"Run these steps only. All: {', '.join(STEPS)}")
    wanted = parser.parse_args().steps or list(STEPS)
    if unknown := [name for name in wanted if name not in STEPS]:
        parser.error(f"unknown step {unknown[0]}: one of {', '.join(STEPS)}")
    console = Console(soft_wrap=True)
    outcomes = []
    for name in wanted:
        console.print(f"{name} ...", end="\r")
        outcomes.append(run_step(name, STEPS[name]))
        console.print(f"{name}: {outcomes[-1].verdict} ({outcomes[-1].took_s:.1f} s)", highlight=False)
        if outcomes[-1].verdict != "pass":
            console.print(outcomes[-1].words, highlight=False, markup=False)
    table = Table("step", "", "seconds", "what", title=f"Headway {__version__}")
    for outcome in outcomes:
        table.add_row(outcome.step, outcome.verdict, f"{outcome.took_s:.1f}", outcome.words)
    console.print(table)
    return exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
