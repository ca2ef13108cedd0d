"""Calibrates the gate: asks both models tasks with known answers, and fits the gate to the results.

The gate is fitted on one half of the tasks. The other half shows how many excess mistakes each score would let through.
No task is in both halves: a threshold chosen on the data that the scores were fitted on guarantees nothing.

Knows the OpenAI chat dialect over HTTP, and weighs answers with the same code as in service (auto/requests.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.auto.gate import Evidence, Gate, GateAnswer, GateCalibration, Seen, differ, tool_id, weigh
from headway.auto.requests import CHAT, TOP_LOGPROBS, read_answer, read_call
from headway.auto.risk import Judged, by_temperature, limit_of
from headway.errors import ConnectionFailed, SetupError
from headway.evals.expected import RIGHT, GivenAnswer, verdict
from headway.evals.plain_tasks import PlainTask
from headway.evals.tool_calls import Task, ToolCall
from headway.http1 import ConnectionPool

TRIES, WAIT_S = 5, 2.0
LATER = {429, 503, 529}
SHOWN_BUDGETS = (0.01, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    student: str
    full: str
    key: str | None = None
    max_tokens: int = 256
    at_once: int = 8
    temperatures: tuple[float, ...] = (0.0,)


@dataclass(slots=True)
class Compared:
    """A task that both models answered at one temperature."""

    words: str
    evidence: Evidence
    is_excess: bool
    differs: bool
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a budget allows, measured on the second half of the tasks."""

    budget: float
    level: float
    served: float  # share of calls that the student would serve
    excess: int  # at the temperature with the most
    of: int
    watched: float


def require_no_commands(tasks: Sequence[PlainTask]) -> None:
    if any(one.wanted.how == "command" for one in tasks):
        raise SetupError(
            "Tasks that are checked by a command cannot be used for calibration. Give their expected answer instead."
        )


def compare(endpoint: Endpoint, tasks: Sequence[PlainTask], progress: Callable[[], None]) -> list[Compared]:
    return asyncio.run(_compare(endpoint, tasks, progress))


async def _compare(endpoint: Endpoint, tasks: Sequence[PlainTask], progress: Callable[[], None]) -> list[Compared]:
    """Returns the rows of each task together, one for each temperature."""
    pool, seats = ConnectionPool(endpoint.url), asyncio.Semaphore(endpoint.at_once)

    async def one(plain: PlainTask, temperature: float) -> Compared:
        async with seats:
            asked = {"messages": plain.task.messages, "temperature": temperature, "max_tokens": endpoint.max_tokens}
            asked |= {"tools": plain.task.tools} if plain.task.tools else {}
            margins = {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
            student = await _ask(pool, endpoint, {**asked, **margins, "model": endpoint.student})
            full = await _ask(pool, endpoint, {**asked, "model": endpoint.full})
            progress()
            return _compared(plain, asked, student, full)

    try:
        asked = [one(task, temperature) for task in tasks for temperature in endpoint.temperatures]
        return list(await asyncio.gather(*asked))
    finally:
        pool.close()


def _compared(plain: PlainTask, asked: dict[str, Any], student: dict[str, Any], full: dict[str, Any]) -> Compared:
    call = read_call(CHAT, asked)
    assert call is not None
    student_answer = read_answer(student) if student else GateAnswer([], "", is_cut=True)
    full_answer = read_answer(full) if full else GateAnswer([], "")
    is_excess = _is_right(plain, full_answer) and not _is_right(plain, student_answer)
    evidence = Evidence("text") if call.is_free_text else weigh(call, student_answer)
    return Compared(call.words, evidence, is_excess, differ(student_answer, full_answer), call.temperature)


def _is_right(plain: PlainTask, answer: GateAnswer) -> bool:
    """Judges an answer as `headway eval` does. A refused request has an empty answer, which is wrong."""
    calls = [ToolCall(name, arguments) for name, arguments in answer.tool_calls if isinstance(arguments, dict)]
    given = GivenAnswer(answer.text, calls, is_unparsable=len(calls) < len(answer.tool_calls))
    return verdict(plain.task, plain.wanted, given, Path()) == RIGHT


async def _ask(pool: ConnectionPool, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer; {} if the engine rejects this prompt, as it would in service."""
    headers = ((b"authorization", f"Bearer {endpoint.key}".encode()),) if endpoint.key else ()
    problem = ""
    for _ in range(TRIES):
        try:
            status, whole = await pool.exchange(b"POST", CHAT, msgspec.json.encode(body), headers)
        except ConnectionFailed as error:
            problem = str(error)
            await asyncio.sleep(WAIT_S)
            continue
        if status == 200:
            return dict(msgspec.json.decode(whole))
        problem = f"{status}: {whole[:300].decode(errors='replace')}"
        if status == 400:
            return {}
        if status not in LATER:
            break
        await asyncio.sleep(WAIT_S)
    raise SetupError(f"{endpoint.url} does not answer for {body['model']!r}: {problem}")


def calibrate(
    compared: Sequence[Compared],
    endpoint: Endpoint,
    day: str,
    used: Sequence[str],
    seed: int = 0,
    tools: Iterable[str] = (),
) -> GateCalibration:
    """`used` identifies the tasks, so that they cannot be used again after the gate has closed. `compared` has the rows
    of each task together; a task is in one half with all of them."""
    asked_times = len(endpoint.temperatures)
    tasks = [compared[at : at + asked_times] for at in range(0, len(compared), asked_times)]
    random.Random(seed).shuffle(tasks)
    half = len(tasks) // 2
    gate = Gate.fit([Seen(one.words, one.evidence, one.is_excess) for task in tasks[:half] for one in task])
    judged = []
    for one in (one for task in tasks[half:] for one in task):
        evidence = one.evidence
        if evidence.kind == "text":
            evidence = Evidence("text", gate.prompts.strength(one.words))
        judged.append(Judged(gate.score(evidence), one.is_excess, one.differs, one.temperature))
    names = endpoint.student, endpoint.full, day
    return GateCalibration(*names, gate, judged, list(used), sorted(endpoint.temperatures), sorted(set(tools)))


def tools_of(tasks: Sequence[PlainTask]) -> list[str]:
    """The ids of all tools that the tasks offer."""
    found = []
    for plain in tasks:
        call = read_call(CHAT, {"messages": plain.task.messages, "tools": plain.task.tools})
        assert call is not None
        found += [tool_id(name, schema) for name, schema in call.tools.items()]
    return found


def allowed(calibration: GateCalibration, budget: float) -> Allowed:
    judged = calibration.judged
    limit = limit_of(judged, budget, 1.0)

    def is_taken(one: Judged) -> bool:
        return one.score > 0 and one.score >= limit.level

    served = sum(map(is_taken, judged)) / max(1, len(judged))
    groups = by_temperature(judged)
    excess, of = max((sum(one.is_excess and is_taken(one) for one in group), len(group)) for group in groups)
    return Allowed(budget, limit.level, served, excess, of, limit.may_differ)


def name_of(task: Task) -> str:
    """A name that depends on the task's messages and tools, not on its id."""
    request = json.dumps([task.messages, task.tools], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()[:16]


def calibration_id(calibration: GateCalibration) -> str:
    """Changes with every calibration: what was audited under another one says nothing about this one."""
    return hashlib.sha256(msgspec.json.encode(calibration.as_plain())).hexdigest()[:16]


def read_calibration(path: Path) -> GateCalibration:
    """Raises SetupError if the file is missing or invalid."""
    try:
        return GateCalibration.from_plain(msgspec.json.decode(path.read_bytes()))
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}.") from error
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, IndexError) as error:
        raise SetupError(f"{path} is not a file written by `headway auto calibrate` ({error}).") from error


def closed_file(calibration: Path) -> Path:
    """The file that exists while the gate is closed; it contains the reason."""
    return calibration.with_name(f"{calibration.name}.closed")


def write_calibration(path: Path, calibration: GateCalibration) -> None:
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.write_bytes(msgspec.json.encode(calibration.as_plain()))
    unfinished.replace(path)
