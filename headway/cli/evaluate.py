"""`headway eval`: send the same tasks to several speeds and recommend when to use which."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headway.charts import require_pictures
from headway.errors import SetupError
from headway.evals import wording
from headway.evals.expected import NO_ANSWER
from headway.evals.inspect_run import Settings, TaskSet, find_tasks, require_inspect, run_in_rounds, to_ask
from headway.evals.page import AskedTasks, result_table, write_page
from headway.evals.targets import STANDARD, Target, offered, read_targets, require_different
from headway.evals.verdict import Run, judge_runs

console = Console()


def evaluate(
    tasks: Annotated[str, typer.Argument(help="A .jsonl file, `bfcl`, `bfcl:multiple`, or an Inspect task.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Speed to measure: standard, fast, spark, auto, ... Repeat for several.",
            show_default="all except flex",
        ),
    ] = None,
    targets: Annotated[Path | None, typer.Option(help="TOML file with other endpoints to compare.")] = None,
    fix_minutes: Annotated[float, typer.Option(min=0, max=10_000, help="Minutes to find and fix one mistake.")] = 5.0,
    url: Annotated[
        str | None,
        typer.Option(help="URL of Headway.", show_default="http://127.0.0.1:8000, or only the targets of --targets"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the full model. Required if Headway serves several.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Target that others are compared with.", show_default="standard")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N tasks.", show_default="all")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum tokens of an answer.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Sampling temperature of Headway's tiers.")] = 0.0,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=86_400, help="Time limit of an answer, in seconds.")] = 120.0,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="Concurrent calls. More than one slows each.")] = 1,
    run_commands: Annotated[bool, typer.Option(help="Allow tasks that check answers with a command.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the report, the results and Inspect's logs.")] = Path("eval"),
) -> None:
    require_inspect()
    require_pictures()
    task_set = find_tasks(tasks, run_commands)
    asked_of = _targets(target or [], targets, url, model, temperature)
    full = _baseline(asked_of, baseline)
    settings = Settings(out / "logs", limit, max_tokens, timeout_s, at_once)
    runs = _run_all(task_set, asked_of, full, settings)
    asked = AskedTasks(task_set.name, full, 60 * fix_minutes, at_once, max_tokens)
    verdicts = judge_runs(runs, full, asked.fix_s)
    console.print(result_table(verdicts[0]))
    for verdict in verdicts:
        console.print(f"{verdict.kind}: use {wording.use_of(verdict)}.", style="bold", markup=False, highlight=False)
        console.print(wording.reason(verdict, full), markup=False, highlight=False)
    _say_what_failed(runs)
    page = write_page(asked, runs, verdicts, out)
    console.print(
        f"The report is {page}. To see every answer: inspect view --log-dir {settings.log_dir}", highlight=False
    )


def _targets(
    names: list[str], file: Path | None, url: str | None, model: str | None, temperature: float
) -> list[Target]:
    found = read_targets(file) if file is not None else []
    if url is not None or names or not found:
        found = [*offered(url or "http://127.0.0.1:8000", model, names, temperature), *found]
    require_different(found)
    return found


def _baseline(targets: list[Target], named: str | None) -> str:
    names = [target.name for target in targets]
    if named is not None and named not in names:
        raise SetupError(f"--baseline {named}: must be one of the targets: {', '.join(names)}.")
    return named or (STANDARD if STANDARD in names else names[0])


def _run_all(task_set: TaskSet, targets: list[Target], full: str, settings: Settings) -> list[Run]:
    """Ask the full model last in each round, so that prefix caches favour it and not the faster targets."""
    in_order = [*(one for one in targets[::-1] if one.name != full), *(one for one in targets if one.name == full)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = to_ask(task_set, settings)
        bars = {target.name: progress.add_task(target.name, total=total) for target in in_order}
        done = run_in_rounds(task_set, in_order, settings, lambda name: progress.advance(bars[name]))
    return [Run(target.name, target.weights, done[target.name]) for target in targets]


def _say_what_failed(runs: list[Run]) -> None:
    for one in runs:
        whys = Counter(attempt.why for attempt in one.attempts if attempt.verdict == NO_ANSWER and attempt.why)
        for why, count in whys.most_common(3):
            console.print(f"{one.name}, no answer ({count}): {why}", style="red", markup=False, highlight=False)
