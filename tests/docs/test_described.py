"""Every setting, command, metric, endpoint and environment variable is described in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from headway.api.dialect import RouteTable
from headway.cli.reference import FLEET_TABLES, TABLES
from headway.config import Config
from headway.engines.scripted import Script, running
from headway.fleet.tables import FleetTable
from tests.docs.pages import ROOT, all_pages
from tests.running import MODEL, config_for, running_gateway

REFERENCE = ROOT / "docs" / "reference"
# Names of the package's parts, files and HTTP headers in an underscored form, not metrics.
METRIC = re.compile(r"\bheadway_[a-z_]+\b")


def tables_of(table: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in table.model_fields.values():
        for inner in inner_tables(field.annotation):
            yield inner
            yield from tables_of(inner)


def inner_tables(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from inner_tables(one)


@pytest.mark.parametrize(("root", "described"), [(Config, TABLES), (FleetTable, FLEET_TABLES)])
def test_every_table_of_settings_is_described(root: type[BaseModel], described: list[tuple[str, Any]]) -> None:
    assert set(tables_of(root)) == {table for _, table in described}, "headway/cli/reference.py lists the tables"


def test_every_setting_has_a_description() -> None:
    for heading, table in [*TABLES, *FLEET_TABLES]:
        for name, field in table.model_fields.items():
            assert field.description or list(inner_tables(field.annotation)), f"{heading} {name} has no description"


@pytest.mark.anyio
async def test_every_endpoint_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: set[tuple[str, str]] = set()
    add = RouteTable.add

    def record(self: RouteTable[Any], method: str, path: str, found: Any) -> None:
        served.add((method, re.sub(r"{[^}]*}", "{}", path)))
        add(self, method, path, found)

    monkeypatch.setattr(RouteTable, "add", record)
    quick = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with running(quick) as engine, running_gateway(config_for([engine], ledger=ledger)):
        pass
    described: set[tuple[str, str]] = set()
    page = (REFERENCE / "endpoints.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (`[A-Z]+ /.*?) \|", page, re.MULTILINE):
        path = ""
        for method, named in re.findall(r"`([A-Z]+)(?: (/[^`]*))?`", row):  # a method alone is of the path before it
            path = re.sub(r"{[^}]*}", "{}", named) or path
            described.add((method, path))
    assert served == described


def test_metrics_that_pages_name_exist() -> None:
    there = set(METRIC.findall((REFERENCE / "metrics.md").read_text(encoding="utf-8")))
    there |= {f"{name}{end}" for name in there for end in ("_bucket", "_count", "_sum")}
    for page in all_pages():
        if not page.name.startswith("docs/design/") and page.name != "docs/LOG.md":
            assert not (unknown := set(METRIC.findall(page.text)) - there), f"{page.name}: {unknown}"


def test_environment_variables_are_described() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "headway").rglob("*.py"))
    pages = "".join(page.text for page in all_pages() if not page.name.startswith("docs/design/"))
    for name in set(re.findall(r'"(HEADWAY_[A-Z_]+)"', code)):
        assert name in pages, f"no page names {name}"
