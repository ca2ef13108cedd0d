"""The public figures in data/: what its README says is there, and nothing is skipped for want of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT / "data"
MOST_BYTES = 700_000
# A test may be skipped for want of a program on the machine, never for want of data.
ALLOWED_SKIPS = {
    "tests/dispatch/conftest.py": ['pytest.skip("etcd is not installed: apt-get install etcd-server")'],
    "tests/dispatch/test_endpoints.py": ['pytest.skip("this machine has no IPv6")'],
}
SKIPS = re.compile(r"pytest\.(?:skip|importorskip)\(.*\)|@?pytest\.mark\.skip.*")


def test_the_readme_names_every_table_with_its_rows() -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    said = {
        name: int(rows.replace(",", "")) for name, rows in re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \|", readme, re.M)
    }
    tables = [path for path in DATA.iterdir() if path.suffix in {".csv", ".jsonl"}]
    there = {path.name: len(path.read_text(encoding="utf-8").splitlines()) - (path.suffix == ".csv") for path in tables}
    assert said == there
    for licence in ("Apache-2.0", "CC-BY"):
        assert licence in readme


def test_the_tables_are_compact() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir() if path.is_file()) <= MOST_BYTES


def test_no_test_is_skipped_for_missing_data() -> None:
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__) and (skips := SKIPS.findall(path.read_text(encoding="utf-8"))):
            found[path.relative_to(ROOT).as_posix()] = skips
    assert found == ALLOWED_SKIPS, "Commit the rows that the test needs to data/ instead: a clone must run every test."
