"""`headway simulate`: run the policy of a configuration in virtual time under a given demand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import Config, ModelTable, load
from headway.config.to_core import policy_of, prices_of, replica_of
from headway.core.types import Replica, Tier
from headway.errors import SetupError
from headway.price import MICRO
from headway.sim.arguments import auto_rungs, dispatcher_dies, replica_fault
from headway.sim.dispatcher import DispatcherTimes
from headway.sim.loop import Job
from headway.sim.picture import draw
from headway.sim.report import SHOWN, as_csv, by_tier, figure, money, moved
from headway.sim.report import auto as auto_calls
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.traces import read_trace
from headway.sim.workload import FLAT_HOURS, OFFICE_HOURS, Lengths, Recipe, continuable, synthesize

console = Console()
DispatcherMs = Annotated[
    float | None,
    typer.Option(min=0.0, max=1000.0, help="Milliseconds from a relay to a dispatcher and back (median)."),
]
AutoRates = Annotated[
    str | None,
    typer.Option(help="Student that answers standard calls first: share=0.5,replicas=2,faster=5,escalated=0.3."),
]
DispatcherFaults = Annotated[
    list[str] | None, typer.Option(help="CELL:AT_S:TAKEOVER_S, such as 0:600:1.5: the dispatcher dies.")
]


def simulate(
    calls_per_s: Annotated[float, typer.Option(min=0.001, help="Mean calls per second.")] = 10.0,
    share: Annotated[list[str] | None, typer.Option(help="Share of the calls for a tier, such as fast=0.2.")] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="Simulated hours.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, max=15, help="Number of runs, each with its own random seed.")] = 5,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Number of replicas like the first one.", show_default="as configured")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Number of tenants. A few of them make most calls.")] = 100,
    day: Annotated[bool, typer.Option(help="Vary the demand over the hours of a working day.")] = False,
    prompt_tokens: Annotated[float, typer.Option(min=1, help="Median tokens of a prompt.")] = 1100.0,
    answer_tokens: Annotated[float, typer.Option(min=1, help="Median tokens of an answer.")] = 150.0,
    trace: Annotated[Path | None, typer.Option(help="Trace to replay: Azure's CSV or Mooncake's .jsonl.")] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="REPLICA:AT_S:LASTS_S, such as 0:600:120. With :FACTOR it is only slower.")
    ] = None,
    dispatcher_ms: DispatcherMs = None,
    dispatcher_fault: DispatcherFaults = None,
    cells: Annotated[int, typer.Option(min=1, max=1000, help="Cells that share replicas and calls equally.")] = 1,
    summary_s: Annotated[float, typer.Option(min=0.01, help="Seconds between the cells' summaries.")] = 0.5,
    auto: AutoRates = None,
    moves: Annotated[bool, typer.Option(help="Let streams go on at another replica: all calls can.")] = False,
    model: Annotated[str | None, typer.Option(help="Model to simulate.", show_default="the first one")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a chart over time and a CSV file.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    table = _model(load(config), model)
    fleet = _fleet(table, replicas)
    recipe = Recipe(
        calls_per_s,
        clients=clients,
        hours=OFFICE_HOURS if day else FLAT_HOURS,
        prompts=Lengths(prompt_tokens, 0.95, 128_000),
        answers=Lengths(answer_tokens, 1.0, 16_000),
        tiers=_shares(share or [], table),
    )
    jobs = partial(_jobs, trace, recipe, table.name, moves)
    replica_hour = table.price.replica_hour if table.price is not None else None
    scenario = Scenario(
        replace(policy_of(table), moves_streams=moves),
        fleet,
        jobs,
        hours * 3600,
        prices_of(table),
        round((replica_hour or 0.0) * MICRO),
        tuple(replica_fault(one, fleet) for one in fault or []),
        dispatcher=None if dispatcher_ms is None else DispatcherTimes.there_and_back(dispatcher_ms / 1e3),
        dispatcher_faults=tuple(dispatcher_dies(one, cells) for one in dispatcher_fault or []),
        cells=(1 / cells,) * cells,
        summary_s=summary_s,
        rungs=auto_rungs(auto, policy_of(table), fleet[0], prices_of(table)["standard"]) if auto is not None else None,
    )
    outcomes = _played(scenario, seeds)
    _show(outcomes, f"{len(fleet)} replicas, {seeds} seeds of {hours:g} h")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "simulation.csv").write_text(as_csv(outcomes), encoding="utf-8")
        draw(outcomes[0].moments, f"{table.name}, {len(fleet)} replicas", out)
        console.print(f"Wrote {out / 'simulation.svg'} and {out / 'simulation.csv'}.", highlight=False)


def _played(scenario: Scenario, seeds: int) -> list[Outcome]:
    with ProcessPoolExecutor(2) as pool:
        each = pool.map(play, repeat(scenario, seeds), range(seeds))
        return list(track(each, total=seeds, console=console, transient=True))


def _show(outcomes: list[Outcome], title: str) -> None:
    found = by_tier(outcomes)
    shown = Table("tier asked", *found, title=title)
    for name, _, spec in SHOWN:
        shown.add_row(name, *[format(figures[name], spec) for figures in found.values()])
    console.print(shown)
    if outcomes[0].auto is not None:
        figures = [f"{name} {one:{form}}" for name, (one, form) in auto_calls(outcomes).items()]
        console.print("auto calls:", "; ".join(figures), highlight=False)
    if any(outcome.handed_on for outcome in outcomes):
        handed_on = figure([outcome.handed_on / outcome.calls for outcome in outcomes])
        console.print(f"handed on between cells: {handed_on:.1%} of the calls", highlight=False)
    if any(tally.moved for outcome in outcomes for tally in outcome.tallies.values()):
        shares = [f"{name} {one:{form}}" for name, (one, form) in moved(outcomes).items()]
        console.print("streams that went on at another replica:", "; ".join(shares), highlight=False)
    for name, one in money(outcomes).items():
        console.print(f"{name}: {format(one, '.1%' if 'of' in name else ',.2f')}", highlight=False)


def _jobs(trace: Path | None, recipe: Recipe, model: str, moves: bool, seed: int) -> Iterator[Job]:
    jobs = read_trace(trace, model) if trace is not None else synthesize(recipe, seed, model)
    return continuable(jobs) if moves else jobs


def _model(settings: Config, name: str | None) -> ModelTable:
    for table in settings.models:
        if name is None or table.name == name:
            if table.replicas_of is not None:
                raise SetupError(f"{table.name} shares the replicas of {table.replicas_of}: simulate that model.")
            if any(replica.curve is None for replica in table.replicas):
                raise SetupError(f"a replica of {table.name} has no curve: measure one with `headway bench`.")
            return table
    raise SetupError(
        f"there is no model {name!r} in the configuration. Known: {', '.join(one.name for one in settings.models)}."
    )


def _fleet(table: ModelTable, count: int | None) -> list[Replica]:
    if count is None:
        return [replica_of(table, replica, name=str(n)) for n, replica in enumerate(table.replicas)]
    return [replica_of(table, table.replicas[0], name=str(n)) for n in range(count)]


def _shares(said: list[str], table: ModelTable) -> dict[Tier, float]:
    offered: list[Tier] = [tier.name for tier in table.tiers]
    shares: dict[Tier, float] = {}
    for one in said:
        name, _, part = one.partition("=")
        known = next((tier for tier in get_args(Tier) if tier == name and tier in offered), None)
        try:
            shares[known or "standard"] = float(part)
        except ValueError:
            known = None
        if known is None:
            raise SetupError(f"--share {one}: must look like fast=0.2, with one of the tiers {', '.join(offered)}.")
    if sum(shares.values()) > 1.0 or min(shares.values(), default=0.0) < 0.0:
        raise SetupError("--share: the shares must not be negative and must add up to at most 1.")
    return {"standard": 1.0 - sum(shares.values()), **shares} if "standard" not in shares else shares
