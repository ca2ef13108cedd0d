"""Runs tasks on targets with Inspect and reads the results from its log.

Sets Inspect up so that its times are those of single answers: a fixed number of connections, no retries, no cache.
Inspect and inspect_parts.py are imported only when needed, so that the rest of Headway works without Inspect.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.evals.bfcl import bfcl_wheel, read_bfcl, require_categories
from headway.evals.expected import NO_ANSWER, RIGHT
from headway.evals.plain_tasks import ANY_KIND, HOW_TO, PlainTask, read_plain_tasks, require_some
from headway.evals.targets import Target
from headway.evals.verdict import Attempt

JSONL, BFCL = ".jsonl", "bfcl"
MOST_ROUNDS, LEAST_IN_ROUND = 5, 6  # few rounds, because each writes a log per target
Part = int | tuple[int, int] | None  # Inspect's `limit`: the first N, a range, or all


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks to run: one of our Inspect tasks with its arguments, or the name of another one."""

    name: str
    spec: str
    arguments: dict[str, Any]
    count: int | None  # None if it is not ours


@dataclass(frozen=True, slots=True)
class Settings:
    log_dir: Path
    limit: int | None = None
    max_tokens: int = 1024
    timeout_s: float = 120.0
    at_once: int = 1


def require_inspect() -> Any:
    """Import Inspect. Raises SetupError if it is not installed."""
    try:
        import inspect_ai
        import inspect_ai._util.error
        import inspect_ai.model
    except ImportError:
        raise SetupError("Counting mistakes needs Inspect: pip install 'headway[eval]'") from None
    return inspect_ai


def find_tasks(said: str, run_commands: bool) -> TaskSet:
    """`said` is a JSONL file, `bfcl`, `bfcl:multiple,parallel`, or any Inspect task such as `file.py@task`."""
    if said == BFCL or said.startswith(f"{BFCL}:"):
        chosen = require_categories([one for one in said.removeprefix(BFCL).removeprefix(":").split(",") if one])
        tasks = read_bfcl(bfcl_wheel(), chosen)
        return TaskSet(said, "bfcl", {"categories": ",".join(chosen)}, len(tasks))
    if said.endswith(JSONL):
        tasks = read_plain_tasks(Path(said))
        _require_allowed(tasks, said, run_commands)
        return TaskSet(Path(said).name, "plain", {"path": said, "run_commands": run_commands}, len(tasks))
    file = said.partition("@")[0]
    if file.endswith(".py") and not Path(file).exists():
        raise SetupError(f"{file}: no such file.")
    if "/" not in said and not file.endswith(".py"):
        raise SetupError(f"{said!r} is neither a file of tasks (.jsonl), nor `bfcl`, nor an Inspect task. {HOW_TO}")
    return TaskSet(Path(said).name, said, {}, None)


def _require_allowed(tasks: Sequence[PlainTask], said: str, run_commands: bool) -> None:
    require_some(tasks, said)
    commands = sum(one.wanted.how == "command" for one in tasks)
    if commands and not run_commands:
        raise SetupError(
            f"{commands} tasks of {said} run a command on this machine. "
            "Read the file, then allow them with --run-commands."
        )


def run_in_rounds(
    tasks: TaskSet, targets: Sequence[Target], settings: Settings, on_call: Callable[[str], None]
) -> dict[str, list[Attempt]]:
    """Run a part of the tasks on every target, then the next part, so that slow minutes of the machine affect all.

    Tasks that are not ours run in one round, because their number is not known."""
    done: dict[str, list[Attempt]] = {target.name: [] for target in targets}
    for part in _rounds(tasks, settings):
        for target in targets:
            done[target.name] += _run(tasks, target, settings, part, partial(on_call, target.name))
    return done


def to_ask(tasks: TaskSet, settings: Settings) -> int | None:
    """The number of tasks per target, or None if it is not known yet."""
    return None if tasks.count is None else min(tasks.count, settings.limit or tasks.count)


def _rounds(tasks: TaskSet, settings: Settings) -> list[Part]:
    count = to_ask(tasks, settings)
    if count is None:
        return [settings.limit]
    rounds = max(1, min(MOST_ROUNDS, count // LEAST_IN_ROUND))
    ends = [count * number // rounds for number in range(rounds + 1)]
    return list(pairwise(ends))


def _run(tasks: TaskSet, target: Target, settings: Settings, part: Part, on_call: Callable[[], None]) -> list[Attempt]:
    """Run every task of this part once. Raises SetupError if Inspect cannot run them."""
    inspect = require_inspect()
    parts = importlib.import_module("headway.evals.inspect_parts")
    model = inspect.model.get_model(
        f"headway/{target.name}", memoize=False, target=target.as_arguments(), timeout_s=settings.timeout_s
    )
    model.api.on_call = on_call
    try:
        [log] = inspect.eval(
            tasks.spec if tasks.count is None else getattr(parts, tasks.spec)(**tasks.arguments),
            model=model,
            display="none",
            log_dir=str(settings.log_dir),
            log_level="error",
            limit=part,
            epochs=1,
            fail_on_error=False,  # a failure is a mistake on that task only
            retry_on_error=0,
            max_samples=settings.at_once,
            max_connections=settings.at_once,
            adaptive_connections=False,
            max_retries=0,
            max_tokens=settings.max_tokens,
            cache=False,
        )
    except (ValueError, FileNotFoundError, LookupError, inspect._util.error.PrerequisiteError) as error:
        raise SetupError(f"Inspect could not run {tasks.name} on {target.name}: {error}") from error
    finally:
        model.api.close()
    if log.status != "success" or not log.samples:
        why = log.error.message if log.error else f"status {log.status}"
        raise SetupError(f"Inspect could not run {tasks.name} on {target.name}: {why}")
    return [_attempt(sample) for sample in log.samples]


def _attempt(sample: Any) -> Attempt:
    """The total time and cost of a sample's model calls, and its verdict (NO_ANSWER if it has none)."""
    calls = [event for event in sample.events if event.event == "model"]
    measured = [(call.output.metadata or {}).get("headway") for call in calls]
    seconds = sum(_took_s(call) if one is None else one["seconds"] for call, one in zip(calls, measured, strict=True))
    costs = [one["cost_micro"] for one in measured if one is not None]
    verdict, why = _verdict(sample)
    proof = (measured[-1] or {}).get("proof") or {} if measured else {}
    return Attempt(
        task=str(sample.id),
        kind=str((sample.metadata or {}).get("kind") or ANY_KIND),
        verdict=verdict,
        seconds=seconds,
        cost_micro=sum(costs) if all(cost is not None for cost in costs) else None,
        is_proven=all(one is not None and one["timed_by"] == "proof" for one in measured) and bool(measured),
        why=why,
        speed_tps=proof.get("tokens_per_second"),
        rung=proof.get("rung") or "",
    )


def _took_s(call: Any) -> float:
    """The time of a failed call, which has no proof."""
    return (call.call.time if call.call else None) or 0.0


def _verdict(sample: Any) -> tuple[str, str]:
    if sample.error is not None:
        failed = [event.call for event in sample.events if event.event == "model" and event.error and event.call]
        return NO_ANSWER, str(failed[-1].response["error"] if failed else sample.error.message)
    if not sample.scores:
        return NO_ANSWER, "not scored"
    score = next(iter(sample.scores.values()))
    if verdict := (score.metadata or {}).get("verdict"):
        return str(verdict), ""
    to_float = require_inspect().scorer.value_to_float()
    return (RIGHT if to_float(score.value) >= 1 else "wrong answer"), ""
