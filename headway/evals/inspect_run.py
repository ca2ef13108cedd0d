"""Runs tasks on a target with Inspect, and reads what happened out of its log.

Knows: how Inspect is called so that times are those of the answers (one connection, no second tries, no cache), and
what its log says. Inspect and what it is given (inspect_parts.py) are imported when they are needed and not before: all
else of Headway works without it installed.
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
MOST_ROUNDS, LEAST_IN_ROUND = 5, 6  # every round of a target has a log of its own, for people to find their way in
Part = int | tuple[int, int] | None  # the first so many, from one to before another, or all


@dataclass(frozen=True, slots=True)
class TaskSet:
    """What Inspect is told to run: a task of ours by its name and arguments, or one that it finds by itself."""

    name: str
    spec: str
    arguments: dict[str, Any]
    count: int | None  # None: not one of ours, so not known


@dataclass(frozen=True, slots=True)
class Settings:
    log_dir: Path
    limit: int | None = None
    max_tokens: int = 1024
    timeout_s: float = 120.0
    at_once: int = 1


def require_inspect() -> Any:
    """Inspect, or the words that say how to get it."""
    try:
        import inspect_ai
        import inspect_ai._util.error
        import inspect_ai.model
    except ImportError:
        raise SetupError("Counting mistakes needs Inspect: pip install 'headway[eval]'") from None
    return inspect_ai


def find_tasks(said: str, run_commands: bool) -> TaskSet:
    """A JSONL file, `bfcl` (or `bfcl:multiple,parallel`), or any Inspect task, as `file.py@task`."""
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
        raise SetupError(f"{file}: no such file. {HOW_TO}")
    if "/" not in said and not file.endswith(".py"):
        raise SetupError(f"{said!r} is neither a file of tasks (.jsonl), nor `bfcl`, nor an Inspect task. {HOW_TO}")
    return TaskSet(Path(said).name, said, {}, None)


def _require_allowed(tasks: Sequence[PlainTask], said: str, run_commands: bool) -> None:
    require_some(tasks, said)
    commands = sum(one.wanted.how == "command" for one in tasks)
    if commands and not run_commands:
        raise SetupError(
            f"{commands} tasks of {said} run a command of their own on this machine. "
            "Read the file, and allow it with --run-commands."
        )


def run_in_rounds(
    tasks: TaskSet, targets: Sequence[Target], settings: Settings, on_call: Callable[[str], None]
) -> dict[str, list[Attempt]]:
    """Some of the tasks of every target, then the next ones: a machine that is slower for some minutes is so for all.

    Tasks that are not ours are asked in one round, since their number is not known."""
    done: dict[str, list[Attempt]] = {target.name: [] for target in targets}
    for part in _rounds(tasks, settings):
        for target in targets:
            done[target.name] += _run(tasks, target, settings, part, partial(on_call, target.name))
    return done


def to_ask(tasks: TaskSet, settings: Settings) -> int | None:
    """How many tasks of each target; None: not known before."""
    return None if tasks.count is None else min(tasks.count, settings.limit or tasks.count)


def _rounds(tasks: TaskSet, settings: Settings) -> list[Part]:
    count = to_ask(tasks, settings)
    if count is None:
        return [settings.limit]
    rounds = max(1, min(MOST_ROUNDS, count // LEAST_IN_ROUND))
    ends = [count * number // rounds for number in range(rounds + 1)]
    return list(pairwise(ends))


def _run(tasks: TaskSet, target: Target, settings: Settings, part: Part, on_call: Callable[[], None]) -> list[Attempt]:
    """Every task of this part once; raises SetupError where Inspect could not run them at all."""
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
            fail_on_error=False,  # a target that fails is wrong on that task, and asked the next
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
        why = log.error.message if log.error else f"it ended as {log.status}"
        raise SetupError(f"Inspect could not run {tasks.name} on {target.name}: {why}")
    return [_attempt(sample) for sample in log.samples]


def _attempt(sample: Any) -> Attempt:
    """What a sample's model calls took together, and the verdict; a sample without one has no answer."""
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
    """Of a call that failed: there is no proof of it."""
    return (call.call.time if call.call else None) or 0.0


def _verdict(sample: Any) -> tuple[str, str]:
    if sample.error is not None:
        failed = [event.call for event in sample.events if event.event == "model" and event.error and event.call]
        return NO_ANSWER, str(failed[-1].response["error"] if failed else sample.error.message)
    if not sample.scores:
        return NO_ANSWER, "it was not scored"
    score = next(iter(sample.scores.values()))
    if verdict := (score.metadata or {}).get("verdict"):
        return str(verdict), ""
    to_float = require_inspect().scorer.value_to_float()
    return (RIGHT if to_float(score.value) >= 1 else "wrong answer"), ""
