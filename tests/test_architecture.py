"""The house rules that a reader relies on, each with its reason in the failure message."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "headway"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# Who may import whom. A room may always import from itself. `cli`, `run`, `deciding` and `processes` see everything.
ALLOWED = {
    "headway.errors": set(),
    "headway.core": {"headway.errors"},
    "headway.wire": {
        "headway.core.types",
        "headway.core.rate_limit",
        "headway.price",
        "headway.errors",
    },
    "headway.price": set(),
    "headway.charts": {"headway.errors"},
    # headway.toml: its tables, the checks, and the lines that error messages point to.
    "headway.config": {"headway.core.types", "headway.errors"},
    # What the tables stand for. `run`, `headway simulate` and `headway engine` need it, and the last two serve nothing.
    "headway.config.to_core": {"headway.config", "headway.core", "headway.price"},
    "headway.config.engine_commands": {"headway.config", "headway.local.engine_process"},
    "headway.api": {
        "headway.core.types",
        "headway.core.rate_limit",
        "headway.core.watch",
        "headway.auto.requests",
        "headway.errors",
        "headway.config",
        "headway.sse",
        "headway.wire",
        "headway.ledger.keys",
        "headway.observe.base",
    },
    # What is told of calls that are over. It knows the values of wire.py, and neither who makes nor who reads them.
    "headway.observe": {"headway.core.types", "headway.errors", "headway.wire"},
    # Starts background tasks and restarts those that fail; it knows nothing of what they do.
    "headway.supervise": set(),
    "headway.ledger": {
        "headway.core.types",
        "headway.price",
        "headway.errors",
        "headway.supervise",
        "headway.wire",
    },
    # HTTP and TLS to a server, and nothing of what is said over them. Whoever calls a server from the event loop builds on
    # it: the engines, the load generator, and the calibration of the auto tier.
    "headway.http1": {"headway.errors"},
    # Server-sent events, which the dialects read, and the engines where they change them.
    "headway.sse": {"headway.errors"},
    "headway.engines": {
        "headway.core.types",
        "headway.errors",
        "headway.http1",
        "headway.price",
        "headway.sse",
        "headway.wire",
    },
    # Where replicas and settings come from while a gateway runs: the file, and DNS.
    "headway.config_file": {"headway.config", "headway.errors"},
    "headway.discovery": {"headway.config", "headway.core.types", "headway.dispatch.fleet", "headway.errors"},
    # Whoever decides for a gateway, in the same process or in another one.
    "headway.dispatch": {"headway.core", "headway.errors", "headway.http1", "headway.ledger", "headway.supervise"},
    "headway.gateway": {
        "headway.core",
        "headway.dispatch",
        "headway.engines",
        "headway.ledger",
        "headway.observe.base",
        "headway.price",
        "headway.errors",
        "headway.supervise",
        "headway.wire",
    },
    # The auto tier: how far a student is trusted, and the rungs of a call. It drives the gateway's `handle` from above.
    "headway.auto": {
        "headway.core.trust",
        "headway.core.types",
        "headway.core.watch",
        "headway.dispatch.base",
        "headway.errors",
        "headway.evals",
        "headway.gateway.metrics",
        "headway.http1",
        "headway.ledger.audits",
        "headway.ledger.sealing",
        "headway.ledger.store",
        "headway.price",
        "headway.supervise",
        "headway.wire",
    },
    # The operator's page. It reads what others count and decide, and changes nothing.
    "headway.console": {
        "headway.api.dialect",
        "headway.api.pages",
        "headway.config",
        "headway.core.curve",
        "headway.core.types",
        "headway.dispatch.frames",
        "headway.errors",
        "headway.evals.shares",
        "headway.ledger",
        "headway.price",
    },
    "headway.sim": {"headway.core", "headway.price", "headway.errors", "headway.charts"},
    "headway.bench": {"headway.core", "headway.errors", "headway.charts", "headway.http1"},
    "headway.plan": {"headway.core", "headway.price", "headway.sim", "headway.errors", "headway.charts"},
    "headway.local": {"headway.errors"},
    # Asks a running gateway's /admin, for commands and for a fleet.
    "headway.admin_client": {"headway.errors"},
    # Where engines, relays and dispatchers run. It knows a gateway only by its /admin.
    "headway.fleet": {"headway.admin_client", "headway.config", "headway.core", "headway.errors", "headway.local"},
    # A whole Headway on one event loop, for the demo. Only `cli` can hand it a gateway, which is made by `run`.
    "headway.local.race": {
        "headway.config",
        "headway.core",
        "headway.engines",
        "headway.errors",
        "headway.gateway.serve",
        "headway.http1",
        "headway.local.engine_process",
    },
    # The same on real engines, which it starts, measures and prices.
    "headway.local.demo": {
        "headway.bench.calibrate",
        "headway.bench.client",
        "headway.bench.fares",
        "headway.core",
        "headway.errors",
        "headway.gateway.serve",
        "headway.local",
    },
    # Verdicts are needed wherever a model is compared: by `headway eval`, by the card of a student, by the runs.
    "headway.evals": {
        "headway.config.checks",
        "headway.errors",
        "headway.core",
        "headway.local.engine_process",
        "headway.charts",
    },
    # A student is judged by evals, measured by bench, sized beside plan's chips, and made in an environment of local's.
    "headway.distill": {
        "headway.errors",
        "headway.evals",
        "headway.local",
        "headway.charts",
        "headway.plan.chips",
        "headway.core.curve",
    },
}
# A command wires the rooms it needs together, so the modules of cli/ may import any room, and no room imports cli/.
WIRES = {
    "headway",
    "headway.__main__",
    "headway.run",
    "headway.deciding",
    "headway.engine_making",
    "headway.live",
    "headway.processes",
} | {module for module in MODULES if module == "headway.cli" or module.startswith("headway.cli.")}
WHY_ROOMS = (
    "A request goes through the house in one straight line (docs/explanation/architecture.md). "
    "If this import seems needed, a value is missing from core/types.py or wire.py, or the code is in the wrong room."
)

# core/ is driven by the live gateway and by the simulator, sim/ by its own heap of times.
BANNED_IN_CORE = {"asyncio", "datetime", "random", "secrets", "select", "socket", "threading", "time", "uuid", "os"}
WHY_PURE = (
    "core/ decides and does nothing else: time is an argument, events come in, actions go out. With a clock, chance or "
    "I/O in it, what is simulated is no longer what runs, and a recorded run no longer gives the same actions."
)
# Chance with a seed, and the dates that are written in a trace: both are inputs of a simulation, not of a decision.
SEEDED_OR_READ = {
    ("headway.sim.workload", "random"),
    ("headway.sim.sample", "random"),
    ("headway.sim.cells", "random"),
    ("headway.sim.dispatched", "random"),
    ("headway.sim.noise", "random"),
    ("headway.sim.rungs", "random"),
    ("headway.sim.traces", "datetime"),
}
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "base_classes"}


def imports_of(path: Path) -> list[tuple[str, ast.stmt]]:
    found: list[tuple[str, ast.stmt]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from headway.api import limits` imports the module headway.api.limits.
            names = [f"{module}.{alias.name}" for alias in node.names]
            found += [(name if name in MODULES else module, node) for name in names]
    return found


def room_of(module: str) -> str:
    return max((room for room in ALLOWED if module == room or module.startswith(room + ".")), key=len, default="")


@pytest.mark.parametrize("module", sorted(set(MODULES) - WIRES))
def test_imports_follow_the_line(module: str) -> None:
    room = room_of(module)
    assert room, f"{module} belongs to no room: add it to ALLOWED with what it may import. {WHY_ROOMS}"
    for name, node in imports_of(MODULES[module]):
        if name.split(".")[0] != "headway" or name == room or name.startswith(room + "."):
            continue
        allowed = any(name == one or name.startswith(one + ".") for one in ALLOWED[room])
        assert allowed, f"{module}:{node.lineno} imports {name}. {WHY_ROOMS}"


PURE = ("headway.core", "headway.sim", "headway.price", "headway.auto.gate", "headway.auto.risk", "headway.auto.schema")


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith(PURE)])
def test_core_is_pure(module: str) -> None:
    for name, node in imports_of(MODULES[module]):
        if (module, name) in SEEDED_OR_READ:
            continue
        assert name.split(".")[0] not in BANNED_IN_CORE, f"{module}:{node.lineno} imports {name}. {WHY_PURE}"
    for part in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        assert not isinstance(part, ast.Await | ast.AsyncFunctionDef), f"{module}:{part.lineno} awaits. {WHY_PURE}"
        does_io = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in {"open", "print"}
        assert not does_io, f"{module} does I/O. {WHY_PURE}"


def test_there_is_one_http_client() -> None:
    parsing = [module for module, path in MODULES.items() if any(name == "httptools" for name, _ in imports_of(path))]
    # api/connection.py only catches the errors of uvicorn's parser.
    assert parsing == ["headway.api.connection", "headway.http1"], (
        "Reuse, TLS, bounds and lost connections are easy to get nearly right: they are done once, in http1.py. "
        "A client that has to stamp each piece gives `ConnectionPool.send(...)` a sink of its own."
    )


def test_no_import_cycles() -> None:
    edges = {module: {name for name, _ in imports_of(path) if name in MODULES} for module, path in MODULES.items()}
    state: dict[str, str] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"import cycle: {' -> '.join((*trail, module))}. Something is in two rooms."
        if module not in state:
            state[module] = "open"
            for other in sorted(edges[module] - {module}):
                visit(other, (*trail, module))
            state[module] = "done"

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_own_imports_stand_at_the_top(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for name, node in imports_of(MODULES[module]):
        if name.split(".")[0] == "headway":
            assert any(node.lineno == statement.lineno for statement in tree.body if id(statement) in top), (
                f"{module}:{node.lineno}: an import inside a function hides a cycle. Move the code instead."
            )


# Modules that import others by name, each with its reason.
IMPORTS_BY_NAME = {
    "headway.cli.entry": "loads the module of a command when it runs; cli/commands.py is the table of names",
    "headway.observe.opening": "loads what needs OpenTelemetry, an optional extra, only if calls are traced",
    "headway.evals.inspect_run": "loads what needs inspect_ai, an optional extra, after checking that it is installed",
}
# What `headway --version` and `headway --help` import.
STARTS_WITH = {"headway", "headway.cli", "headway.cli.entry", "headway.cli.commands", "headway.errors"}


@pytest.mark.parametrize("module", sorted(set(MODULES) - set(IMPORTS_BY_NAME)))
def test_modules_are_not_imported_by_name(module: str) -> None:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            assert name not in {"import_module", "__import__"}, (
                f"{module}:{node.lineno}: an import by name hides who needs whom, like an import inside a function. "
                f"Exceptions: {IMPORTS_BY_NAME}"
            )


def test_the_entry_point_imports_no_command() -> None:
    found, new = set(), {"headway.cli"}
    while new:
        found |= new
        new = {name for module in new for name, _ in imports_of(MODULES[module]) if name in MODULES} - found
    assert found | {"headway"} == STARTS_WITH, (
        "`headway --version` imports more than it needs. A command is loaded by name when it runs (cli/commands.py), "
        "so that no command waits for the imports of the others."
    )


@pytest.mark.parametrize("module", sorted(MODULES))
def test_names_say_what_is_inside(module: str) -> None:
    vague = set(module.split(".")) & VAGUE
    assert not vague, f"{module}: a file named {vague} collects what has no home. Name it after what it touches."


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_and_functions_stay_small(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, f"{module} is longer than 400 lines: two things are in it."
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{module}:{node.lineno} {node.name} has {length} lines: name its parts."


def test_the_path_of_a_call_fits_a_screen() -> None:
    tree = ast.parse((PACKAGE / "gateway" / "serve.py").read_text(encoding="utf-8"))
    [handle] = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == "handle"]
    assert (handle.end_lineno or 0) - handle.lineno < 25, "handle() is the first thing a newcomer reads: keep it short."


def test_broad_excepts_are_counted() -> None:
    """A broad except hides the next bug. The few there are stand at the edge of the program, with a reason."""
    broad = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"})
    ]
    assert len(broad) <= 4, broad


def test_no_two_classes_share_a_name() -> None:
    """Whoever searches for a class finds one. Private classes count too."""
    where: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module)
    twice = {name: modules for name, modules in where.items() if len(modules) > 1}
    assert not twice, f"{twice}: name each after what is special about it."
