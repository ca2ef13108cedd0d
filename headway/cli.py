"""The commands. Each body only calls what does the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway import __version__
from headway.bench.calibrate import batches_for, calibrate
from headway.bench.fares import fare_table, read_frontier, suggested_floors, write_tiers
from headway.bench.load import Load
from headway.bench.report import frontier_table, run_in_words, write_report
from headway.bench.sweep import Plan, sweep
from headway.bench.sweep import write as write_rows
from headway.charts import require_pictures
from headway.cli_auto import auto_app
from headway.cli_books import bill, keys_app, ledger_app
from headway.cli_distill import distill_app
from headway.cli_eval import evaluate
from headway.cli_plan import plan
from headway.cli_sim import simulate
from headway.config import load
from headway.core.curve import fit
from headway.engines.scripted import Script, parse_curve, serve_scripted
from headway.errors import HeadwayError, SetupError
from headway.gateway.events import replay as replay_record
from headway.local.demo import prepare_demo, run_demo
from headway.run import engine_commands
from headway.run import serve as run_serve

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Headway: fast mode for the models you run yourself, in front of vLLM.",
)
app.add_typer(keys_app, name="keys")
app.add_typer(ledger_app, name="ledger")
app.add_typer(distill_app, name="distill")
app.add_typer(auto_app, name="auto")
app.command(epilog="Example: `headway bill --by key,tier --format csv`")(bill)
app.command(epilog="Example: `headway simulate --calls-per-s 20 --share fast=0.2 --replicas 4 --out simulated`")(
    simulate
)
app.command(name="eval", epilog="Example: `headway eval tasks.jsonl --fix-minutes 5 --out eval`")(evaluate)
app.command(epilog="Example: `headway plan --model llama-3.1-70b --chip h200 --chip b200 --floor 60 --floor 100`")(plan)
console = Console()
complaints = Console(stderr=True)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")


@app.command(epilog="Example: `headway demo`, or with a GPU and vLLM: `headway demo --model Qwen/Qwen3-8B`")
def demo(
    model: Annotated[str | None, typer.Option(help="A model for the vLLM installed here; else a small one.")] = None,
    port: Annotated[int, typer.Option(help="Where the gateway listens.")] = 8000,
    engine_port: Annotated[int | None, typer.Option(help="Where the engine listens; else a free port.")] = None,
    seats: Annotated[int, typer.Option(help="Streams the engine may carry at once.")] = 16,
    prepare_only: Annotated[bool, typer.Option(help="Make the engine's environment and the model, and stop.")] = False,
) -> None:
    """From nothing to a gateway in front of a real vLLM, with three calls to paste."""
    if prepare_only:
        prepare_demo(console)
        return

    def serve_config(path: Path, on_ready: Callable[[], None]) -> int:
        return run_serve(load(path), on_listening=lambda _port: on_ready())

    _log_to_stderr(logging.WARNING)
    raise typer.Exit(
        run_demo(model=model, port=port, engine_port=engine_port, seats=seats, console=console, serve=serve_config)
    )


@app.command(epilog="Example: `headway serve --config headway.toml`")
def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    record: Annotated[
        Path | None, typer.Option(help="Write every event and action here, for `headway replay`.")
    ] = None,
) -> None:
    """Serve the models of a configuration until SIGTERM or Ctrl-C."""
    _log_to_stderr(logging.INFO)
    settings = load(config)
    raise typer.Exit(run_serve(settings, record, lambda port: console.print(f"Headway listens on port {port}.")))


@app.command(epilog="Example: `headway check --config headway.toml`")
def check(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Check a configuration without starting anything."""
    settings = load(config)
    for model in settings.models:
        seats = sum(replica.seats for replica in model.replicas)
        console.print(f"{model.name}: {len(model.replicas)} replica(s), {seats} seats")
    console.print(f"[green]{config} is fine.[/green]")


@app.command(epilog="Example: `headway engine --config headway.toml`")
def engine(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Print the command that starts each engine of a configuration, with the flags Headway needs from vLLM."""
    commands = engine_commands(load(config))
    if not commands:
        raise SetupError(f'{config} describes no engine. Add [models.engine] with weights = "..." to a model.')
    for url, command in commands.items():
        console.print(f"# {url}", style="dim", highlight=False)
        console.print(command, markup=False, highlight=False, soft_wrap=True)


@app.command(name="calibrate", epilog="Example: `headway calibrate http://127.0.0.1:8001 --model my-model --seats 64`")
def calibrate_engine(
    url: Annotated[str, typer.Argument(help="An engine that is idle: vLLM itself, not a gateway.")],
    model: Annotated[str, typer.Option(help="The model's name, as the engine serves it.")],
    seats: Annotated[int, typer.Option(help="How many streams it may carry at once.")] = 64,
) -> None:
    """Measure three points of an engine's curve and its speed with prompts; print the lines for headway.toml."""
    batches = batches_for(seats)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=len(batches))

        def show(batch: int) -> None:
            progress.update(bar, completed=batches.index(batch), description=f"{batch} streams")

        measured = uvloop.run(calibrate(url, model, seats, show))
    curve = fit([(batch, 1 / tps) for batch, tps in measured.points])
    table = Table("floor, tok/s", "times the full batch", "streams that keep it")
    for share in (0.9, 0.75, 0.5, 0.25):
        floor_tps = curve.speed_tps(seats) + share * (curve.speed_tps(1) - curve.speed_tps(seats))
        ratio = floor_tps / curve.speed_tps(seats)
        table.add_row(f"{floor_tps:.1f}", f"{ratio:.2f}", str(curve.largest_batch(floor_tps, seats)))
    console.print(table)
    console.print(measured.config_lines(), markup=False, highlight=False, soft_wrap=True, end="")


@app.command(epilog="Example: `headway bench http://127.0.0.1:8001 --model my-model --seats 64 --out bench`")
def bench(
    url: Annotated[str, typer.Argument(help="An engine or a gateway that is idle otherwise.")],
    model: Annotated[str, typer.Option(help="The model's name, as the server has it.")],
    seats: Annotated[
        int, typer.Option(help="How many streams it carries at once; measured to half as many more.")
    ] = 64,
    quick: Annotated[bool, typer.Option(help="Only the three points a curve is fitted to, once each.")] = False,
    repeats: Annotated[int, typer.Option(help="How often each point is measured; quick: once.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt, about.")] = 128,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    key: Annotated[
        str | None, typer.Option(envvar="HEADWAY_KEY", help="A key, where the gateway asks for one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for bench.json, curve.toml and the report.")] = Path("bench"),
) -> None:
    """Measure a server from one stream to past saturation: its frontier, its curve, and a report to look at."""
    require_pictures()
    plan = Plan(seats, prompt_tokens, output_tokens, 1 if quick else repeats, quick=quick)
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as progress:
        bar = progress.add_task("prompts", total=len(plan.order()))

        def show(streams: int, run: Load | None) -> None:
            if run is None:
                progress.update(bar, description=f"{streams} streams")
            else:
                progress.advance(bar)
                progress.console.print(f"{streams:>5} streams: {run_in_words(run)}", highlight=False, soft_wrap=True)

        found = uvloop.run(sweep(url, model, plan, show, key))
    write_rows(found, out)
    write_report(found, out)
    console.print(frontier_table(found))
    console.print(found.config_lines(), markup=False, highlight=False, soft_wrap=True, end="")
    console.print(f"{out / 'report.html'} shows it.", markup=False, highlight=False)


@app.command(
    epilog="Example: `headway fares bench.json --cost-per-hour 2.5 --fast 75 --write headway.toml --model my-model`"
)
def fares(
    bench_json: Annotated[Path, typer.Argument(help="What `headway bench` wrote.")],
    cost_per_hour: Annotated[float, typer.Option(min=0, help="What a replica costs in an hour, in any currency.")],
    floor: Annotated[list[float] | None, typer.Option(help="A floor to quote; may be given again.")] = None,
    fast: Annotated[float | None, typer.Option(help="The floor of the tier `fast`.")] = None,
    ultrafast: Annotated[float | None, typer.Option(help="The floor of the tier `ultrafast`.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write these two tiers into this headway.toml.")] = None,
    model: Annotated[str | None, typer.Option(help="The model in it whose tiers they are.")] = None,
    force: Annotated[bool, typer.Option(help="Quote floors also where prices explode.")] = False,
) -> None:
    """What each floor costs: batch, speed and price multiple, from a measured frontier."""
    points = read_frontier(bench_json)
    tiers = {name: tps for name, tps in (("fast", fast), ("ultrafast", ultrafast)) if tps is not None}
    floors_tps = sorted({*(floor or ()), *tiers.values()}) or suggested_floors(points)
    quoted = {
        fare.floor_tps: fare
        for fare in fare_table(points, cost_per_hour=cost_per_hour, floors_tps=floors_tps, force=force)
    }
    table = Table("floor, tok/s", "streams", "tok/s each", "tok/s in all", "price multiple", "of repeats", "per Mtok")
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
            raise SetupError("--write needs --model, and --fast or --ultrafast to say which floors shall be offered.")
        write_tiers(write, model, {name: quoted[tps] for name, tps in tiers.items()})
        console.print(f"[green]{write} offers {', '.join(tiers)} for {model}.[/green] `headway check` looks it over.")


@app.command(epilog="Example: `headway serve --record run.jsonl`, then `headway replay run.jsonl`")
def replay(record: Annotated[Path, typer.Argument(help="A file written by `headway serve --record`.")]) -> None:
    """Run a recorded gateway through core again and compare every action."""
    result = replay_record(record)
    if result.first_difference:
        complaints.print(f"Different at {result.first_difference}", style="red", markup=False)
        raise typer.Exit(1)
    console.print(f"{result.events} events, {result.actions} actions: identical.")


@app.command(epilog="Example: `headway mock-engine --port 9100 --step-ms 1:10,64:40`")
def mock_engine(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 9100,
    model: Annotated[str, typer.Option(help="The model's name.")] = "scripted",
    first_token_ms: Annotated[float, typer.Option(help="Time from a seat to the first token.")] = 20.0,
    step_ms: Annotated[str, typer.Option(help="Time per token by batch, as BATCH:MS,BATCH:MS,...")] = "1:10",
    max_num_seqs: Annotated[int, typer.Option(help="How many requests run at once; others wait.")] = 256,
) -> None:
    """Run a scripted engine: vLLM's HTTP with a programmed speed, for tests and trials without a model."""
    script = Script(model, first_token_ms / 1000, parse_curve(step_ms), max_num_seqs)
    serve_scripted(script, "127.0.0.1", port)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        console.print(__version__)
        raise typer.Exit


def _log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def main() -> None:
    try:
        app()
    except HeadwayError as error:
        complaints.print(error.message, style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(2) from None
