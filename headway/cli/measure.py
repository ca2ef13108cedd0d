"""`headway calibrate`, `bench` and `fares`: measure a server, and price its speeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.calibrate import CurveCalibration, batches_for
from headway.bench.calibrate import calibrate as measure_curve
from headway.bench.fares import fare_table, read_frontier, suggested_floors, write_tiers
from headway.bench.load import Load
from headway.bench.report import describe_run, frontier_table, write_report
from headway.bench.sweep import Plan, sweep
from headway.bench.sweep import write as write_rows
from headway.charts import require_pictures
from headway.cli.options import ApiKey, Profile
from headway.config.profiles import valid_name
from headway.core.curve import fit
from headway.engines.vllm import VLLMEngine
from headway.errors import SetupError

console = Console()


def calibrate(
    url: Annotated[str, typer.Argument(help="URL of an idle engine: vLLM itself, not a gateway.")],
    model: Annotated[str, typer.Option(help="Name of the model on the engine.")],
    seats: Annotated[int, typer.Option(help="Maximum number of concurrent streams of the engine.")] = 64,
    profile: Profile = None,
) -> None:
    profile, batches = valid_name(profile), batches_for(seats)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("prompts", total=len(batches) + 2)

        def show(batch: int) -> None:
            progress.update(bar, advance=1, description=f"{batch} streams")

        measured = uvloop.run(_calibrate(url, model, seats, show))
    curve = fit([(batch, 1 / tps) for batch, tps in measured.points])
    table = Table("floor, tok/s", "times the full batch", "streams that keep it")
    for share in (0.9, 0.75, 0.5, 0.25):
        floor_tps = curve.speed_tps(seats) + share * (curve.speed_tps(1) - curve.speed_tps(seats))
        ratio = floor_tps / curve.speed_tps(seats)
        table.add_row(f"{floor_tps:.1f}", f"{ratio:.2f}", str(curve.largest_batch(floor_tps, seats)))
    console.print(table)
    if measured.long_point is None:
        console.print("Long contexts were not measured: the engine accepts none, holds none, or does not say.")
    console.print(measured.config_lines(profile, seats), markup=False, highlight=False, soft_wrap=True, end="")


async def _calibrate(url: str, model: str, seats: int, show: Callable[[int], None]) -> CurveCalibration:
    engine = VLLMEngine("engine", url, model)
    try:
        kv_tokens = await engine.kv_tokens()
    finally:
        engine.close()
    return await measure_curve(url, model, seats, show, kv_tokens)


def bench(
    url: Annotated[str, typer.Argument(help="URL of an engine or a gateway without other load.")],
    model: Annotated[str, typer.Option(help="Name of the model on the server.")],
    seats: Annotated[
        int, typer.Option(help="Maximum number of concurrent streams of the server. Measured up to 1.5 times as many.")
    ] = 64,
    quick: Annotated[bool, typer.Option(help="Measure only the three points that fit a curve, once each.")] = False,
    repeats: Annotated[int, typer.Option(help="Measurements of each point. Ignored with --quick.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(help="Approximate tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    profile: Profile = None,
    key: ApiKey = None,
    out: Annotated[Path, typer.Option(help="Folder for bench.json, curve.toml and the report.")] = Path("bench"),
) -> None:
    require_pictures()
    plan = Plan(seats, prompt_tokens, output_tokens, 1 if quick else repeats, quick=quick, profile=valid_name(profile))
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as progress:
        bar = progress.add_task("prompts", total=len(plan.order()))

        def show(streams: int, run: Load | None) -> None:
            if run is None:
                progress.update(bar, description=f"{streams} streams")
            else:
                progress.advance(bar)
                progress.console.print(f"{streams:>5} streams: {describe_run(run)}", highlight=False, soft_wrap=True)

        found = uvloop.run(sweep(url, model, plan, show, key))
    write_rows(found, out)
    write_report(found, out)
    console.print(frontier_table(found))
    console.print(found.config_lines(), markup=False, highlight=False, soft_wrap=True, end="")
    console.print(f"The report is {out / 'report.html'}.", markup=False, highlight=False)


def fares(
    bench_json: Annotated[Path, typer.Argument(help="The bench.json written by `headway bench`.")],
    cost_per_hour: Annotated[float, typer.Option(min=0, help="Cost of one replica per hour, in any currency.")],
    floor: Annotated[
        list[float] | None, typer.Option(help="Floor to price, in tok/s. Repeat for several.", show_default="suggested")
    ] = None,
    fast: Annotated[float | None, typer.Option(help="Floor of the tier `fast`, in tok/s.")] = None,
    ultrafast: Annotated[float | None, typer.Option(help="Floor of the tier `ultrafast`, in tok/s.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the tiers of --fast and --ultrafast into this headway.toml.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model in that file which gets the tiers.")] = None,
    force: Annotated[bool, typer.Option(help="Also price floors near the top speed, where few streams fit.")] = False,
) -> None:
    points = read_frontier(bench_json)
    tiers = {name: tps for name, tps in (("fast", fast), ("ultrafast", ultrafast)) if tps is not None}
    floors_tps = sorted({*(floor or ()), *tiers.values()}) or suggested_floors(points)
    quoted = {
        fare.floor_tps: fare
        for fare in fare_table(points, cost_per_hour=cost_per_hour, floors_tps=floors_tps, force=force)
    }
    table = Table("floor, tok/s", "streams", "tok/s each", "tok/s in total", "price multiple", "of repeats", "per Mtok")
    for fare in quoted.values():
        spread = f"{fare.lowest_multiple:.2f} .. {fare.highest_multiple:.2f}"
        table.add_row(
            f"{fare.floor_tps:g}", str(fare.streams), f"{fare.stream_tps:.1f}", f"{fare.replica_tps:.0f}",
            f"{fare.multiple:.2f}", spread, f"{fare.cost_per_mtok:.3f}",
        )  # fmt: skip
    console.print(table)
    console.print("For comparison: two labs charge 2 and 6 times the price for up to 2.5 times the speed.")
    if write is not None:
        if model is None or not tiers:
            raise SetupError("--write needs --model, and --fast or --ultrafast: the floors to offer.")
        write_tiers(write, model, {name: quoted[tps] for name, tps in tiers.items()})
        console.print(f"[green]{write} offers {', '.join(tiers)} for {model}.[/green] Check it with `headway check`.")
