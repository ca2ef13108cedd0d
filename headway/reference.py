"""Writes the reference pages that follow from the code: settings, commands, metrics. `make docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from headway.cli import app
from headway.config import (
    AutoTable,
    Config,
    EngineTable,
    GatewayTable,
    KeepPromptsTable,
    LedgerTable,
    ModelTable,
    PriceTable,
    ReplicaTable,
    SpeculationTable,
    TierTable,
)
from headway.core.machine import Machine
from headway.gateway.metrics import Metrics

TABLES: list[tuple[str, type[BaseModel]]] = [
    ("[gateway]", GatewayTable),
    ("[ledger]", LedgerTable),
    ("[[models]]", ModelTable),
    ("[models.price]", PriceTable),
    ("[[models.tiers]]", TierTable),
    ("[[models.replicas]]", ReplicaTable),
    ("[models.engine]", EngineTable),
    ("[models.engine.speculation]", SpeculationTable),
    ("[models.keep_prompts]", KeepPromptsTable),
    ("[models.auto]", AutoTable),
]
EXAMPLE = """\
[gateway]
port = 8000

[[models]]
name = "smollm2-135m"

[[models.tiers]]
name = "standard"

[[models.tiers]]
name = "fast"
floor_tps = 15.0
max_hold_s = 3.0

[[models.replicas]]
url = "http://127.0.0.1:8001"
seats = 64
curve = [[1, 21.8], [8, 17.2], [64, 9.6]]
"""
HEAD = "| {} | {} | {} |\n|---|---|---|\n"
WRITTEN_BY = "<!-- Written by `make docs` from the code; tests/test_docs.py compares. -->\n\n"


def configuration_page() -> str:
    parts = [
        f"# headway.toml\n\n{WRITTEN_BY}{Config.__doc__} `headway check` tells what is wrong with one.\n\n"
        f"```toml\n{EXAMPLE}```\n"
    ]
    for heading, table in TABLES:
        rows = [_row(name, field) for name, field in table.model_fields.items() if not _is_table(field)]
        parts.append(
            f"## `{heading}`\n\n{table.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)
        )
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{_toml(field.get_default(call_default_factory=True))}`"
    meaning = f"{field.description}{_bounds(field)}".replace("|", "\\|")
    return f"| `{name}` | {default} | {meaning} |\n"


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    found = [
        f"{words[key]} {getattr(bound, key):,}" for bound in field.metadata for key in words if hasattr(bound, key)
    ]
    return f" ({' '.join(found)})" if found else ""


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _is_table(field: FieldInfo) -> bool:
    inner = getattr(field.annotation, "__args__", (field.annotation,))[0]
    return isinstance(inner, type) and issubclass(inner, BaseModel)


def commands_page() -> str:
    command = get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    parts = [f"# Commands\n\n{WRITTEN_BY}`headway COMMAND --help` shows the same.\n"]
    for name, one in _each(command):
        rows = []
        for parameter in one.params:
            label = parameter.opts[0] if parameter.param_type_name == "option" else (parameter.name or "").upper()
            default = parameter.default if parameter.default not in (None, False) else ""
            rows.append(
                f"| `{label}` | {f'`{default}`' if default != '' else ''} | {getattr(parameter, 'help', '')} |\n"
            )
        table = "\n| option | default | meaning |\n|---|---|---|\n" + "".join(rows) if rows else ""
        parts.append(f"## headway {name}\n\n{one.help}\n\n{one.epilog}\n{table}")
    return "\n".join(parts)


def _each(group: typer.core.TyperGroup, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        if isinstance(one, typer.core.TyperGroup):
            yield from _each(one, f"{before}{name} ")
        else:
            yield f"{before}{name}", one


def metrics_page() -> str:
    rows = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} | {family.documentation} |\n"
        for family in Metrics(Machine({}, {}), {}).registry.collect()
    ]
    head = f"# Metrics\n\n{WRITTEN_BY}`GET /metrics`, in Prometheus' text form.\n\n"
    return head + HEAD.format("metric", "kind", "meaning") + "".join(sorted(rows))


PAGES = {"configuration.md": configuration_page, "commands.md": commands_page, "metrics.md": metrics_page}


def main(folder: Path) -> None:
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
