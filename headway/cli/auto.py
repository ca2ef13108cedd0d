"""`headway auto`: measure on tasks with known answers which answers of a student can be trusted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.auto.calibration import (
    SHOWN_BUDGETS,
    Endpoint,
    allowed,
    closed_file,
    compare,
    name_of,
    read_calibration,
    require_no_commands,
    tools_of,
    write_calibration,
)
from headway.auto.calibration import calibrate as learn
from headway.auto.gate import GateCalibration
from headway.auto.risk import calls_needed
from headway.cli.options import DEFAULT_CONFIG, ApiKey, ConfigPath
from headway.config import load
from headway.errors import SetupError
from headway.evals.plain_tasks import read_plain_tasks

console = Console()
auto = typer.Typer()


@auto.command(epilog="Example: `headway auto calibrate tasks.jsonl --model my-model --out auto.json`")
def calibrate(
    tasks: Annotated[
        Path, typer.Argument(help="Tasks with known answers, typical of your calls and not used to train the student.")
    ],
    model: Annotated[str, typer.Option(help="Name of the full model.")],
    student: Annotated[
        str | None, typer.Option(help="Name of the student.", show_default="the model's name with -spark")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of the gateway.", show_default="host and port of the configuration")
    ] = None,
    out: Annotated[Path, typer.Option(help="File for the calibration, to name in `[models.auto]`.")] = Path(
        "auto.json"
    ),
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=2,
            help="Temperature to ask at; repeat it to cover several. Calls outside the range of the temperatures go to "
            "the full model; the temperature of a call is 1 unless it says otherwise.",
            show_default="0",
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, max=512, help="Number of concurrent calls.")] = 8,
    config: ConfigPath = DEFAULT_CONFIG,
    key: ApiKey = None,
) -> None:
    """Ask both models every task, and learn which answers of the student can be trusted."""
    closed = closed_file(out)
    chosen = read_plain_tasks(tasks)
    require_no_commands(chosen)
    used = [name_of(one.task) for one in chosen]
    if closed.exists() and out.exists() and set(used) & set(read_calibration(out).used):
        raise SetupError(
            f"The gate was calibrated on some of these tasks and has been closed since ({closed}: "
            f"{closed.read_text().strip()}). They no longer represent your calls. Use newer tasks."
        )
    if url is None:
        gateway = load(config).gateway
        url = f"http://{gateway.host}:{gateway.port}"
    temperatures = tuple(sorted(set(temperature or [0.0])))
    endpoint = Endpoint(url, student or f"{model}-spark", model, key, at_once=at_once, temperatures=temperatures)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"asking {endpoint.student} and {endpoint.full}", total=len(chosen) * len(temperatures))
        compared = compare(endpoint, chosen, lambda: progress.advance(bar))
    made = learn(compared, endpoint, datetime.now(UTC).date().isoformat(), used, tools=tools_of(chosen))
    write_calibration(out, made)
    closed.unlink(missing_ok=True)
    console.print(table_of(made))
    console.print(
        f"Wrote {out}. Name it in headway.toml as `calibration` of [models.auto].", highlight=False, markup=False
    )


def table_of(made: GateCalibration) -> Table:
    table = Table("budget", "student serves", "excess mistakes seen", "gate closes above")
    covered = "temperature " + " .. ".join(f"{one:g}" for one in sorted({made.temperatures[0], made.temperatures[-1]}))
    table.title = f"{made.student} before {made.full}: {len(made.judged)} held-out answers, {covered}"
    for budget in SHOWN_BUDGETS:
        one = allowed(made, budget)
        if one.of < calls_needed(budget):
            table.add_row(f"{budget:.0%}", f"nothing: needs at least {2 * calls_needed(budget)} tasks", "", "")
        else:
            seen = f"{one.excess} of {one.of}"
            table.add_row(f"{budget:.0%}", f"{one.served:.0%} of calls", seen, f"{one.watched:.1%} of audits differ")
    return table
