"""`headway plan`: predict what the speeds of a model need and cost on chips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headway.bench.fares import read_frontier
from headway.cli.planned_fleets import candidates_of, demand_of, show_fleets
from headway.cli.planned_profiles import costs_table, show_profile_fleets, speculating
from headway.errors import SetupError
from headway.plan.answers import CALIBRATED, Band, PricedFloor, band_of, measured_offers, offers_of, quote
from headway.plan.chips import CHIPS, Chip, Precision, this_cpu
from headway.plan.fleet import Candidate, Demand, measured_candidate
from headway.plan.gains import Method
from headway.plan.memory import fewest_chips, seats, splits, weights_held
from headway.plan.models import model_shape
from headway.plan.picture import draw
from headway.plan.shape import ModelShape
from headway.plan.step import Engine, Setup, Speculation, seconds_per_token

console = Console()
THIS_CPU = "cpu"
STUDENT_CHIP = "wse-3"
NOTHING = "-"
SHOWN_BATCHES = (1, 4, 16, 64, 256)
COLUMNS = ("", "tier", "chips", "streams", "tok/s each", "9 in 10", "$/Mtok", "x standard", "9 in 10")


def plan(
    model: Annotated[str, typer.Option(help="Known model, or path of a config.json.")],
    chip: Annotated[
        list[str] | None, typer.Option(help="Chip to plan for. Repeat for several.", show_default="h200 and b200")
    ] = None,
    floor: Annotated[list[float] | None, typer.Option(min=0.1, help="Floor in tok/s. Repeat for several.")] = None,
    standard: Annotated[float, typer.Option(min=0.1, help="Minimum speed of standard streams, in tok/s.")] = 40.0,
    precision: Annotated[Precision, typer.Option(help="Precision of the weights.")] = "fp8",
    engine: Annotated[Engine, typer.Option(help="Engine, for its overhead per step.")] = "vllm",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Average prompt tokens of a call.")] = 1024,
    output_tokens: Annotated[int, typer.Option(min=1, help="Average output tokens of a call.")] = 1024,
    draft: Annotated[int, typer.Option(min=0, max=16, help="Draft tokens per step.")] = 0,
    acceptance: Annotated[float, typer.Option(min=0, max=1, help="Acceptance rate of draft tokens.")] = 0.7,
    speculation: Annotated[
        Method | None,
        typer.Option(help="Also plan engines with this drafter, and fleets in which some have it, by published gains."),
    ] = None,
    student: Annotated[str | None, typer.Option(help="Distilled model to show as well, on SRAM (wse-3).")] = None,
    speeds: Annotated[bool, typer.Option(help="Also show speeds by batch size and number of chips.")] = False,
    demand: Annotated[
        float | None, typer.Option(min=0.01, help="Calls per second at peak. Finds the cheapest fleet.")
    ] = None,
    share: Annotated[list[str] | None, typer.Option(help="Share of the demand for a floor, such as 100=0.2.")] = None,
    moves: Annotated[bool, typer.Option(help="With --demand: let streams go on at another replica.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for a chart of cost and speed with error bands.")] = None,
    bench: Annotated[Path | None, typer.Option(help="bench.json, to use measurements instead of predictions.")] = None,
    replica_hour: Annotated[float | None, typer.Option(min=0, help="With --bench: cost of a replica per hour.")] = None,
) -> None:
    floors = sorted(floor or [])
    table = Table(*COLUMNS)
    notes: list[str] = []
    if bench is not None:
        points = [(point.streams, median(point.median_tps)) for point in read_frontier(bench)]
        _rows(table, f"{model}, measured", measured_offers(points), replica_hour, standard, floors, CALIBRATED)
        notes.append(_note("measured", CALIBRATED))
    drafts = Speculation(draft, acceptance if draft else 0.0)

    def setup_on(shape: ModelShape, where: Chip) -> Setup:
        return Setup(shape, where, 1, precision, engine, prompt_tokens, output_tokens, speculation=drafts)

    setups = [setup_on(model_shape(model), _chip(name)) for name in chip or ([] if bench else ["h200", "b200"])]
    students = [setup_on(model_shape(student), CHIPS[STUDENT_CHIP])] if student is not None else []
    with_drafter = speculating(setups, speculation) if speculation is not None else []
    for setup in setups + with_drafter + students:
        notes += _offered(table, setup, standard, floors)
    console.print(table)
    if speculation is not None and floors:
        console.print(costs_table(setups, speculation, standard, floors))
    if speeds and setups:
        console.print(_speed_table(setups + with_drafter + students))
    notes.append(f"All seats taken, prompts of {prompt_tokens} and answers of {output_tokens} tokens.")
    for note in dict.fromkeys(notes):
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    if out is not None:
        _draw(setups, f"{model}, {precision}", out)
    if demand is not None:
        wanted = replace(demand_of(demand, share or [], floors, prompt_tokens, output_tokens), moves_streams=moves)
        measured = [measured_candidate(points, replica_hour, standard)] if bench is not None else []
        _show_fleets(setups, measured, speculation, standard, wanted)


def _show_fleets(
    setups: list[Setup], measured: list[Candidate], speculation: Method | None, standard: float, demand: Demand
) -> None:
    if speculation is None:
        show_fleets(console, candidates_of(setups, standard) + measured, demand)
    else:
        show_profile_fleets(console, setups, measured, speculation, standard, demand)


def _draw(setups: list[Setup], title: str, out: Path) -> None:
    kinds = [(one.chip.name, offers_of(one), one.chip.price_hour, band_of(one)) for one in setups]
    draw([(name, offers, price, band) for name, offers, price, band in kinds if price], title, out)
    console.print(f"The chart is {out / 'plan.svg'}.", highlight=False)


def _offered(table: Table, setup: Setup, standard: float, floors: list[float]) -> list[str]:
    """Add the rows of one model on one kind of chip and return the notes on them."""
    offers, band = offers_of(setup), band_of(setup)
    name = f"{setup.shape.name} on {setup.chip.name}" + (f", {setup.gains.method}" if setup.gains else "")
    _rows(table, name, offers, setup.chip.price_hour, standard, floors, band)
    notes = [f"{name}: {_fits(setup, offers)}", _note(setup.chip.name, band)]
    return [*notes, f"{name}: gains of {setup.gains}; none is assumed beyond."] if setup.gains else notes


def _chip(name: str) -> Chip:
    if name.lower() == THIS_CPU:
        return this_cpu()
    if name.lower() not in CHIPS:
        raise SetupError(f"there is no chip {name!r}. Known: {', '.join([*CHIPS, THIS_CPU])}.")
    return CHIPS[name.lower()]


def _rows(
    table: Table, name: str, offers: list[PricedFloor], price_hour: float | None, standard: float, floors: list[float],
    band: Band,
) -> None:  # fmt: skip
    """Add one row for standard and one for each floor."""
    for floor_tps in (standard, *floors):
        what, title = (f"floor {floor_tps:g}", "") if floor_tps != standard else ("standard", name)
        found = quote(offers, standard, floor_tps, band)
        if found.offer is None:
            fastest = max((one.stream_tps for one in offers), default=None)
            why = "does not fit" if fastest is None else f"at most {fastest:.0f} tok/s"
            table.add_row(title, what, NOTHING, NOTHING, why, NOTHING, NOTHING, NOTHING, NOTHING)
            continue
        offer, cost = found.offer, found.offer.per_mtok(price_hour)
        table.add_row(
            title,
            what,
            str(offer.chips),
            str(offer.batch),
            f"{offer.stream_tps:.0f}",
            _speeds(offer.stream_tps, band),
            NOTHING if cost is None else f"{cost:.2f}",
            NOTHING if found.multiple is None else f"{found.multiple:.1f}",
            _between(found.lowest_multiple, found.highest_multiple) if found.multiple is not None else NOTHING,
        )
    table.add_section()


def _speed_table(setups: list[Setup]) -> Table:
    """Return the speed of a stream by batch size, for each number of chips that fits the model."""
    table = Table("tok/s of a stream among", *(str(batch) for batch in SHOWN_BATCHES))
    for setup in setups:
        for chips in splits(setup):
            split = replace(setup, chips=chips)
            found = [f"{1 / seconds_per_token(split, b):.0f}" if b <= seats(split) else NOTHING for b in SHOWN_BATCHES]
            table.add_row(f"{setup.shape.name} on {chips} {setup.chip.name}", *found)
    return table


def _speeds(tps: float, band: Band) -> str:
    """Return the band of the real speed: (1 + e) times the predicted one if predicted seconds are too long by e."""
    if band.nine_in_ten is None:
        return "unknown"
    return f"{tps * (1 - band.nine_in_ten):.0f} .. {tps * (1 + band.nine_in_ten):.0f}"


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return "unknown"
    return f"{low:.1f} .. {'not reached' if high is None else f'{high:.1f}'}"


def _fits(setup: Setup, offers: list[PricedFloor]) -> str:
    shape, chip = setup.shape, setup.chip
    weights = (
        f"{shape.params / 1e9:.0f}B weights, {shape.weight_bytes(setup.precision) / 1e9:.0f} GB in {setup.precision}"
    )
    holds = f"one chip holds {weights_held(chip, setup.precision, shape):.1f}B of them"
    fewest = fewest_chips(setup)
    if not offers:
        return f"{weights}; {holds}; it needs {fewest} chips, more than can be linked ({chip.world})."
    return f"{weights}; {holds}; it fits on {fewest} chip{'s' if fewest > 1 else ''}."


def _note(name: str, band: Band) -> str:
    if band.half is None:
        return f"{name}: {band.words}."
    off = f"off by {band.half:.1%} in half of the cases, {band.nine_in_ten:.1%} in nine of ten"
    return f"{name}: seconds per token {off}; {band.words}."
