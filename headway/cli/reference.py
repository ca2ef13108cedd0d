"""Generate the reference pages from the code: settings, commands and metrics. `make docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from headway.cli.commands import COMMANDS
from headway.cli.entry import LoadedCommand, load_command
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
from headway.supervise import Supervisor

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
WRITTEN_BY = "<!-- Generated from the code by `make docs`. Do not edit. -->\n\n"


def configuration_page() -> str:
    parts = [
        f"# headway.toml\n\n{WRITTEN_BY}{Config.__doc__} `headway check` points to the line of each "
        "problem and suggests a fix.\n\n"
        f"```toml\n{EXAMPLE}```\n"
    ]
    for heading, table in TABLES:
        rows = [_row(name, field) for name, field in table.model_fields.items() if not _is_table(field)]
        parts.append(
            f"## `{heading}`\n\n{table.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)
        )
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else "" if value is None else f"`{_toml(value)}`"
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
    parts = [f"# Commands\n\n{WRITTEN_BY}`headway COMMAND --help` shows the same.\n"]
    for panel, infos in groupby(COMMANDS, key=lambda info: info.panel):
        parts.append(f"## {panel}\n")
        parts += [_command_section(name, one) for info in infos for name, one in leaves(info.name, load_command(info))]
    return "\n".join(parts)


def _command_section(name: str, command: TyperCommand) -> str:
    rows = [f"| `{_label(one)}` | {_default(one)} | {one.help} |\n" for one in _parameters(command)]
    table = "\n| option | default | meaning |\n|---|---|---|\n" + "".join(rows) if rows else ""
    return f"### headway {name}\n\n{command.help}\n\n{command.epilog}\n{table}"


def leaves(name: str, command: LoadedCommand) -> Iterator[tuple[str, TyperCommand]]:
    """Yield a command with its name, or the commands of a group with theirs, such as `keys create`."""
    if isinstance(command, TyperCommand):
        yield name, command
    else:
        for one, inner in command.commands.items():
            assert isinstance(inner, TyperCommand | TyperGroup)
            yield from leaves(f"{name} {one}", inner)


def _parameters(command: TyperCommand) -> list[TyperOption | TyperArgument]:
    return [one for one in command.params if isinstance(one, TyperOption | TyperArgument)]


def _label(parameter: TyperOption | TyperArgument) -> str:
    return parameter.opts[0] if isinstance(parameter, TyperOption) else (parameter.name or "").upper()


def _default(parameter: TyperOption | TyperArgument) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if isinstance(parameter.default, bool):
        return "on" if parameter.default else "off"
    return "" if parameter.default in (None, "") else f"`{parameter.default}`"


def metrics_page() -> str:
    rows = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} | {family.documentation} |\n"
        for family in Metrics(Machine({}, {}), {}, Supervisor()).registry.collect()
    ]
    head = f"# Metrics\n\n{WRITTEN_BY}`GET /metrics`, in the Prometheus text format.\n\n"
    return head + HEAD.format("metric", "kind", "meaning") + "".join(sorted(rows))


PAGES = {"configuration.md": configuration_page, "commands.md": commands_page, "metrics.md": metrics_page}


def main(folder: Path) -> None:
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
