"""Generate the reference pages from the code: settings, commands, request fields and metrics. `make docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from headway.api import anthropic, openai, responses
from headway.api.fields import MAX_NAMED, FieldNames
from headway.cli.commands import COMMANDS
from headway.cli.entry import LoadedCommand, load_command
from headway.config import (
    AutoTable,
    CellTable,
    Config,
    DiscoverTable,
    EngineTable,
    GatewayTable,
    HostedTable,
    KeepPromptsTable,
    LedgerTable,
    ModelTable,
    PriceTable,
    ProfileTable,
    ReplicaTable,
    ResponsesTable,
    SpeculationTable,
    TierTable,
    TokenPrices,
)
from headway.core.machine import Machine
from headway.dispatch.pages import unanswered_processes
from headway.dispatch.policy_metrics import gate_metrics, policy_metrics
from headway.fleet.tables import FleetGatewayTable, FleetTable, ProcessTable, ScalingTable
from headway.gateway.metrics import Metrics, dropped_lines, replica_metrics
from headway.supervise import Supervisor

TABLES: list[tuple[str, type[BaseModel]]] = [
    ("[gateway]", GatewayTable),
    ("[ledger]", LedgerTable),
    ("[responses]", ResponsesTable),
    ("[cell]", CellTable),
    ("[[models]]", ModelTable),
    ("[models.price]", PriceTable),
    ("[[models.tiers]]", TierTable),
    ("[[models.replicas]]", ReplicaTable),
    ("[models.discover]", DiscoverTable),
    ("[models.hosted]", HostedTable),
    ("[models.hosted.price]", TokenPrices),
    ("[models.engine]", EngineTable),
    ("[models.engine.speculation]", SpeculationTable),
    ("[[models.profiles]]", ProfileTable),
    ("[models.profiles.speculation]", SpeculationTable),
    ("[models.keep_prompts]", KeepPromptsTable),
    ("[models.auto]", AutoTable),
]
FLEET_TABLES: list[tuple[str, type[BaseModel]]] = [
    ("[gateway]", FleetGatewayTable),
    ("[[processes]]", ProcessTable),
    ("[processes.scaling]", ScalingTable),
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
FLEET_EXAMPLE = """\
[gateway]
url = "http://10.0.0.5:8000"
admin_key_file = "/etc/headway/admin.key"

[[processes]]
name = "engine"
model = "smollm2-135m"
command = ["headway", "mock-engine", "--host", "{host}", "--port", "{port}", "--model", "smollm2-135m"]
count = 2
port = 9100
"""
# Pages about single settings. A description has no link: error messages repeat it to users who have no docs/ folder.
PAGES_OF_SETTINGS = {
    "kind": "[other engines](../how-to/other-engines.md), [a kind of your own](../explanation/extend.md)",
    "prompt_chunk": "[fast mode](../explanation/fast-mode.md)",
    "unknown_fields": "[fields](fields.md)",
}
HEAD = "| {} | {} | {} |\n|---|---|---|\n"
WRITTEN_BY = "<!-- Generated from the code by `make docs`. Do not edit. -->\n\n"


def configuration_page() -> str:
    head = f"{Config.__doc__} `headway check` points to the line of each problem and suggests a fix."
    return _tables_page("headway.toml", head, EXAMPLE, TABLES)


def fleet_page() -> str:
    head = (
        f"{FleetTable.__doc__} `headway fleet up` reads it, and points to the line of each problem. "
        "[A Ray cluster](../how-to/ray-cluster.md) shows its use."
    )
    return _tables_page("fleet.toml", head, FLEET_EXAMPLE, FLEET_TABLES)


def _tables_page(name: str, head: str, example: str, tables: Iterable[tuple[str, type[BaseModel]]]) -> str:
    parts = [f"# {name}\n\n{WRITTEN_BY}{head}\n\n```toml\n{example}```\n"]
    for heading, table in tables:
        rows = [_row(name, field) for name, field in table.model_fields.items() if not _is_table(field)]
        parts.append(
            f"## `{heading}`\n\n{table.__doc__}\n\n| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)
        )
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else "" if value is None else f"`{_toml(value)}`"
    page = f" See {PAGES_OF_SETTINGS[name]}." if name in PAGES_OF_SETTINGS else ""
    meaning = f"{field.description}{page}{_bounds(field)}".replace("|", "\\|")
    return f"| `{name}` | {default} | {meaning} |\n"


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    found = [
        f"{words[key]} {getattr(bound, key):,}" for bound in field.metadata for key in words if hasattr(bound, key)
    ]
    return f" ({' '.join(found)})" if found else ""


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
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
    policy = [*policy_metrics(Machine({}, {}), {}), *gate_metrics({})]
    metrics = Metrics(lambda: (*policy, *replica_metrics({}, {}), dropped_lines(0)), Supervisor())
    labels = {one._name: one._labelnames for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)}
    of = {family.name: "policy" for family in policy} | OF_EVERY_PROCESS | {unanswered_processes(0).name: "merged"}
    rows = []
    for family in (*metrics.registry.collect(), unanswered_processes(0)):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        named = labels.get(family.name) or tuple(getattr(family, "_labelnames", ()))
        cells = (f"`{name}`", family.type, ", ".join(f"`{one}`" for one in named))
        rows.append(f"| {' | '.join(cells)} | {of.get(family.name, 'gateway')} | {family.documentation} |\n")
    return METRICS_HEAD + "".join(sorted(rows))


OF_EVERY_PROCESS = dict.fromkeys(
    ("headway_config_reads", "headway_loop_lag_seconds", "headway_task_restarts", "headway_tasks"), "process"
)
METRICS_HEAD = f"""\
# Metrics

{WRITTEN_BY}`GET /metrics`, in the Prometheus text format. The names have the units. The column *of* says who counts:

- **gateway**: each gateway, or each relay.
- **process**: each gateway, each relay and each dispatcher.
- **policy**: whoever decides: the gateway itself, or with relays the dispatcher (`headway dispatch --metrics`).
- **merged**: only on the page of `headway serve --relays`, where each relay serves the sums over all processes.

Counters and histograms also have a sample `..._created`, the time of their start.
[How to observe](../how-to/observe.md) has a dashboard and alerts that use them.

| metric | kind | labels | of | meaning |
|---|---|---|---|---|
"""


FIELDS_INTRO = f"""\
A field of a request is in one of three classes:

- **honoured**: the engine, or Headway, does what it says. Values are bounded ([endpoints](endpoints.md)).
- **ignored**: a hint that changes nothing about what the answer means, or a field that Headway does not know. It is
  removed at any depth and never sent to the engine. The first {MAX_NAMED} names are in the response header
  `headway-ignored`. With `unknown_fields = "refuse"` in [`[gateway]`](configuration.md), fields that are on none of
  these lists are refused instead.
- **refused**: ignoring it would change the meaning of the answer, or honouring it could harm a shared engine. The
  status is 400, and the error says what to do. A refused field that is null or empty asks for nothing and is ignored.

A content part, tool or format of a `type` that is not honoured is refused, never left out. Tools that a vendor hosts
are the exception on `/v1/responses`: they and their items are left out and named in `headway-ignored`. Hints and
refused names are the same at any depth. Schemas and arguments of tools are data: the names in them are not looked at.
"""


def fields_page() -> str:
    parts = [f"# Fields\n\n{WRITTEN_BY}{FIELDS_INTRO}"]
    described: dict[int, str] = {}
    for route in (*openai.ROUTES, *responses.ROUTES, *anthropic.ROUTES):
        if (fields := route.fields) is None:
            continue
        parts.append(f"## `POST {route.path}`\n\n**Honoured:** {_names(fields.root.names)}.\n")
        inner = sorted(fields.root.all_objects().items())
        parts.append("".join(f"- in `{where}`: {_names(one.names)}\n" for where, one in inner))
        if id(fields.names) in described:
            parts.append(f"**Ignored and refused:** as on `{described[id(fields.names)]}`.\n")
        else:
            parts += _not_honoured(fields.names)
            described[id(fields.names)] = route.path
    return "\n".join(parts)


def _not_honoured(names: FieldNames) -> list[str]:
    moved = [f"`{old}` (as `{'.'.join(new)}`)" for old, new in sorted(names.moved.items())]
    rows = [
        f"| `{name}`{' in other objects' if one.has_place else ''} | {one.advice} |\n"
        for name, one in sorted(names.refused.items())
    ]
    return [
        *([f"**Older names, honoured:** {', '.join(moved)}.\n"] if moved else []),
        f"**Ignored:** {_names(names.hints)}.\n",
        *([f"**Left out, by `type`:** {_names(names.ignored_types)}.\n"] if names.ignored_types else []),
        "| refused | what to do |\n|---|---|\n" + "".join(rows),
    ]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


PAGES = {
    "configuration.md": configuration_page,
    "fleet.md": fleet_page,
    "commands.md": commands_page,
    "fields.md": fields_page,
    "metrics.md": metrics_page,
}


def main(folder: Path) -> None:
    for name, page in PAGES.items():
        path, text = folder / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # `make check` may read it at the same time
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
