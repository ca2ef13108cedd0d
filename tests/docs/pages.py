"""The pages of the documentation: their code blocks, headings and links, and what is done with each block.

A block is run, unless a comment on the line before it says otherwise:

    <!-- not run: REASON -->          the names and options of its `headway` commands are checked; Python is compiled
    <!-- run by FILE -->              a test or a run of this repository runs it; FILE must name the page
    <!-- part of headway.toml -->     TOML that is put into a complete configuration before it is checked

A TOML block that begins with `# NAME.toml` is that file for the commands below it. A block with a name after its language
is run by runs/clients.sh, which looks it up by this name.

    python -m tests.docs.pages        how many blocks are run, and how many are only checked
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"<!-- (not run: .+|run by .+|part of headway\.toml) -->")
FENCE = re.compile(r"^( *)```+(.*)$")
CODE = ("bash", "python", "js", "toml", "json")  # other languages are output, drawings, or files of other programs
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)\)")

Fate = Literal["run", "run elsewhere", "only checked", "not code"]


@dataclass(frozen=True, slots=True)
class Block:
    page: str  # its path in the repository
    line: int
    language: str
    text: str
    comment: str  # "" if there is none

    @property
    def fate(self) -> Fate:
        if self.language not in CODE:
            return "not code"
        if self.comment.startswith("run by "):
            return "run elsewhere"
        return "only checked" if self.comment.startswith("not run: ") else "run"

    @property
    def run_by(self) -> str:
        return self.comment.removeprefix("run by ") if self.fate == "run elsewhere" else ""

    @property
    def file_name(self) -> str:
        """Of a TOML block that is a file."""
        found = re.match(r"# (\S+\.toml)\n", self.text) if self.language == "toml" else None
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        found: list[Block] = []
        comment, open_at, language = "", 0, ""
        lines = self.text.splitlines()
        for number, line in enumerate(lines, 1):
            fence = FENCE.match(line)
            if open_at:
                if fence and not fence[2]:
                    text = "".join(f"{one}\n" for one in lines[open_at : number - 1])
                    found.append(Block(self.name, open_at, language, text, comment))
                    open_at, comment = 0, ""
            elif fence:
                open_at, (language, *name) = number, fence[2].split() or [""]
                comment = "run by runs/clients.sh" if name else comment
            elif line.strip():
                matched = COMMENT.fullmatch(line.strip())
                comment = matched[1] if matched else ""
        return found

    @cached_property
    def prose(self) -> str:
        """The page without its code blocks, with as many lines."""
        kept, is_code = [], False
        for line in self.text.splitlines():
            if FENCE.match(line):
                is_code = not is_code
                line = ""
            kept.append("" if is_code else line)
        return "\n".join(kept)

    @cached_property
    def anchors(self) -> set[str]:
        """What `page.md#...` may name: headings as code hosts turn them into anchors."""
        found: Counter[str] = Counter()
        anchors = set()
        for heading in re.findall(r"^#{1,6} (.+)$", self.prose, re.MULTILINE):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            anchors.add(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
        return anchors

    @cached_property
    def links(self) -> list[str]:
        without_code = re.sub(r"`[^`]*`", "", self.prose)
        return LINK.findall(without_code)


def all_pages() -> list[Page]:
    return [Page(path) for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))]


def count(pages: list[Page]) -> str:
    """How many blocks have which fate, for people."""
    blocks = [block for page in pages for block in page.blocks if block.fate != "not code"]
    fates = Counter(block.fate for block in blocks)
    lines = [f"{len(blocks)} code blocks on {len(pages)} pages"]
    for fate in ("run", "run elsewhere", "only checked"):
        languages = Counter(block.language for block in blocks if block.fate == fate)
        lines.append(f"{fates[fate]:4} {fate}: {', '.join(f'{n} {name}' for name, n in languages.most_common())}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(count(all_pages()))
