"""`headway auto`: how far a student may be trusted, found out on tasks of known answer."""

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
    write_calibration,
)
from headway.auto.calibration import calibrate as learn
from headway.auto.gate import GateCalibration
from headway.auto.risk import calls_needed
from headway.config import load
from headway.errors import SetupError
from headway.evals.plain_tasks import read_plain_tasks

console = Console()
auto_app = typer.Typer(
    no_args_is_help=True,
    help="The auto models: a student first, within a budget of mistakes.",
    epilog="Example: `headway auto calibrate tasks.jsonl --model my-model --out auto.json`",
)


@auto_app.command(epilog="Example: `headway auto calibrate tasks.jsonl --model my-model --out auto.json`")
def calibrate(
    tasks: Annotated[
        Path, typer.Argument(help="Tasks of known answer, drawn as your calls are; none the student was trained on.")
    ],
    model: Annotated[str, typer.Option(help="The full model.")],
    student: Annotated[str | None, typer.Option(help="Its student; else `<model>-spark`.")] = None,
    url: Annotated[str | None, typer.Option(help="The gateway; else where headway.toml has it.")] = None,
    out: Annotated[Path, typer.Option(help="What `[models.auto]` names as its calibration.")] = Path("auto.json"),
    at_once: Annotated[int, typer.Option(min=1, max=512, help="Calls under way.")] = 8,
    config: Annotated[Path, typer.Option(help="The configuration file.")] = Path("headway.toml"),
    key: Annotated[str | None, typer.Option(envvar="HEADWAY_KEY", help="Where the gateway asks for one.")] = None,
) -> None:
    """Ask both models every task, and find out which of the student's answers may be taken."""
    closed = closed_file(out)
    chosen = read_plain_tasks(tasks)
    require_no_commands(chosen)
    used = [name_of(one.task) for one in chosen]
    if closed.exists() and out.exists() and set(used) & set(read_calibration(out).used):
        raise SetupError(
            f"The gate was closed ({closed}: {closed.read_text().strip()}) after it was calibrated on some of these "
            "tasks: what they show is known to be no longer true. Take tasks drawn since."
        )
    if url is None:
        gateway = load(config).gateway
        url = f"http://{gateway.host}:{gateway.port}"
    endpoint = Endpoint(url, student or f"{model}-spark", model, key, at_once=at_once)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"asking {endpoint.student} and {endpoint.full}", total=len(chosen))
        compared = compare(endpoint, chosen, lambda: progress.advance(bar))
    made = learn(compared, endpoint, datetime.now(UTC).date().isoformat(), used)
    write_calibration(out, made)
    closed.unlink(missing_ok=True)
    console.print(table_of(made))
    console.print(
        f"written: {out}. Name it in headway.toml, as `calibration` of [models.auto].", highlight=False, markup=False
    )


def table_of(made: GateCalibration) -> Table:
    table = Table("budget", "the student serves", "excess mistakes seen", "closed when more differ than")
    table.title = f"{made.student} before {made.full}, on {len(made.judged)} tasks kept for this"
    for budget in SHOWN_BUDGETS:
        one = allowed(made, budget)
        if one.of < calls_needed(budget):
            table.add_row(f"{budget:.0%}", f"nothing: at least {2 * calls_needed(budget)} tasks are needed", "", "")
        else:
            seen = f"{one.excess} of {one.of}"
            table.add_row(f"{budget:.0%}", f"{one.served:.0%} of calls", seen, f"{one.watched:.1%} of audits")
    return table
