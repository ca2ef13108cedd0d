"""The version, and everything that repeats it. headway/__init__.py is the only place where it is written first."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from headway import __version__

NEWEST_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
# Of images, in YAML too, and in the names of wheels.
REPEATED = (
    re.compile(r"\bheadway(?:-ray)?:(\d[\w.]*)"),
    re.compile(r"/headway(?:-ray)?\b.*\n\s*newTag: (\S+)"),
    re.compile(r"\bheadway-(\d[\w.]*)-py3-none-any\.whl"),
)


def disagreements(root: Path) -> Iterator[str]:
    """What says another version than the package, and what to do about it."""
    if str(Version(__version__)) != __version__:
        yield f"headway/__init__.py: write {__version__} as {Version(__version__)}"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    if project["tool"]["setuptools"]["dynamic"].get("version") != {"attr": "headway.__version__"}:
        yield "pyproject.toml does not take the version from headway/__init__.py"
    component = json.loads((root / "requirements" / "sbom.cdx.json").read_bytes())["metadata"]["component"]
    if component.get("version") != __version__:
        yield f"requirements/sbom.cdx.json says {component.get('version')}: run `make sbom`"
    for page in [*(root / "deploy").rglob("*"), *(root / "docs" / "how-to").glob("*.md")]:
        if page.is_file():
            text = page.read_text(encoding="utf-8")
            for found in {found for pattern in REPEATED for found in pattern.findall(text)} - {__version__}:
                yield f"{page.relative_to(root)} names headway {found}"


def date_of(version: str, changelog: str) -> str | None:
    """The date of the newest section, if that section is the version's."""
    newest = NEWEST_SECTION.search(changelog)
    section = re.fullmatch(re.escape(version) + r" \((\d{4}-\d\d-\d\d)\)", newest[1]) if newest else None
    return section[1] if section else None
