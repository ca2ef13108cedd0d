"""`headway fleet`: engines, relays and dispatchers on the nodes of a Ray cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.errors import SetupError
from headway.fleet import ray as cluster
from headway.fleet.held import Report
from headway.fleet.tables import load_fleet

console = Console()
fleet = typer.Typer()

LOOK_S = 1.0

Address = Annotated[
    str, typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster: `auto` if this is one of its nodes, or HOST:PORT.")
]


@fleet.command(epilog="Example: `headway fleet up fleet.toml`")
def up(
    file: Annotated[Path, typer.Argument(help="The fleet's processes and what they need.")] = Path("fleet.toml"),
    address: Address = "auto",
    wait: Annotated[bool, typer.Option(help="Wait until all processes are ready.")] = True,
) -> None:
    """Start a fleet, or change one that runs to what the file says now, one process at a time."""
    table = load_fleet(file)
    cluster.connect(address)
    cluster.up(table)
    versions = {one.name: one.version for one in table.processes}
    # Demand may need fewer than the first number.
    counts = {one.name: one.scaling.min_count if one.scaling is not None else one.count for one in table.processes}

    def is_done(reports: Sequence[Report]) -> bool:
        ready = Counter(one.group for one in reports if one.phase == "ready" and one.version == versions.get(one.group))
        return all(ready[name] >= count for name, count in counts.items()) and not any(
            one.is_leaving for one in reports
        )

    if wait:
        _follow(is_done)
        _show(*cluster.status())
    else:
        console.print("The fleet is on its way: `headway fleet status` shows it.")


@fleet.command(epilog="Example: `headway fleet status`")
def status(address: Address = "auto") -> None:
    """Show the processes of the fleet; the exit code is 1 if one is not ready or something is wrong."""
    cluster.connect(address)
    reports, problem = cluster.status()
    _show(reports, problem)
    raise typer.Exit(1 if problem or any(one.phase != "ready" for one in reports) else 0)


@fleet.command(epilog="Example: `headway fleet down`")
def down(
    address: Address = "auto",
    now: Annotated[bool, typer.Option("--now", help="Do not drain: streams that are aboard are cut.")] = False,
) -> None:
    """Drain and stop all processes of the fleet, engines first."""
    cluster.connect(address)
    if now:
        cluster.end_now()
    else:
        cluster.end()
        _follow(lambda reports: not reports)
        cluster.forget()
    console.print("The fleet is down.")


def _follow(is_done: Callable[[Sequence[Report]], bool]) -> None:
    """Show progress until it is done."""
    with console.status("") as shown:
        while True:
            time.sleep(LOOK_S)
            try:
                reports, problem = cluster.status()
            except SetupError as error:
                shown.update(escape(error.message))
                continue
            if is_done(reports) and not problem:
                return
            phases = Counter("leaving" if one.is_leaving else one.phase for one in reports)
            words = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "nothing runs yet"
            shown.update(escape(f"{words}. {problem}"))


def _show(reports: Sequence[Report], problem: str) -> None:
    rows = Table("process", "state", "URL", "starts", "last problem")
    for one in sorted(reports, key=lambda one: (one.group, one.index)):
        state: str = "leaving" if one.is_leaving else one.phase
        if one.phase == "away":
            state = "does not answer" if one.url else "no node has room for it, or it does not answer"
        rows.add_row(one.name, state, one.url, str(one.starts or ""), escape(one.why))
    console.print(rows)
    if problem:
        Console(stderr=True).print(problem, style="red", highlight=False, markup=False, soft_wrap=True)
