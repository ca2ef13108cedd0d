"""What a distribution holds: each file of the package that git tracks, what the build adds, and nothing else.

Knows the archives by their names; runs and installs nothing.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "headway/"
# Of the root, in a source distribution: what the build reads, and what whoever gets it should read.
SOURCE_ROOT = {
    "CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml", "setup.py",
}  # fmt: skip
SOURCE_ADDED = re.compile(r"PKG-INFO|setup\.cfg|headway\.egg-info/[A-Za-z_-]+(\.txt)?")
WHEEL_ADDED = re.compile(
    r"headway-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|top_level\.txt|licenses/LICENSE)"
)
EXTENSION = re.compile(r"(.+?)\.[a-z0-9_-]+\.so")  # headway/core/fare.cpython-311-x86_64-linux-gnu.so
SHARED_EXTENSION = re.compile(r"[0-9a-f]+__mypyc")  # beside the package: the code of all compiled modules


def tracked_files() -> set[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\0")) - {""}


def names_in(archive: Path) -> list[str]:
    """The files in a wheel or a source distribution; of the latter without its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(archive) as source:
        return [member.name.partition("/")[2] for member in source if not member.isdir()]


def problems(archive: Path, tracked: set[str]) -> list[str]:
    """What the archive lacks, and what does not belong there."""
    wanted = {name for name in tracked if name.startswith(PACKAGE)}
    names = names_in(archive)
    if archive.suffix == ".whl":
        added = {name for name in names if WHEEL_ADDED.fullmatch(name) or _is_compiled(name, tracked)}
    else:
        wanted |= SOURCE_ROOT
        added = {name for name in names if SOURCE_ADDED.fullmatch(name)}
    found = [f"{archive.name} lacks {name}" for name in sorted(wanted - set(names))]
    found += [f"{archive.name} should not hold {name}" for name in sorted(set(names) - wanted - added)]
    return found


def _is_compiled(name: str, tracked: set[str]) -> bool:
    extension = EXTENSION.fullmatch(name)
    if extension is None:
        return False
    module = extension[1]
    return bool(SHARED_EXTENSION.fullmatch(module)) or {f"{module}.py", f"{module}/__init__.py"} & tracked != set()


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())
