"""What both models say to tasks of known answer, and how far the student may be trusted after that."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from headway.auto.calibration import Compared, Endpoint, _compare, allowed, calibrate, read_calibration
from headway.auto.gate import Evidence, GateCall
from headway.auto.risk import calls_needed
from headway.cli import app
from headway.errors import SetupError
from headway.evals.expected import Wanted, read_wanted
from headway.evals.plain_tasks import PlainTask
from headway.evals.task_files import write_tasks
from headway.evals.tool_calls import Expected, Task
from tests.running import raw_server

TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}
HERE = Endpoint("http://unused", "m-spark", "m")


def task(number: int) -> Task:
    message = {"role": "user", "content": f"a timer of {number} minutes"}
    return Task(f"t{number}", [message], [TIMER], [Expected("set_timer", {"minutes": [number]})])


def plain(number: int) -> PlainTask:
    return PlainTask(task(number), Wanted("calls", task(number).expected), "timers")


def compared(dice: random.Random, count: int) -> list[Compared]:
    """A student that is wrong where its margin is small: always below 1, never above."""
    rows = []
    for _ in range(count):
        margin = dice.uniform(0, 4)
        wrong = margin < 1
        rows.append(Compared("timer", Evidence("call", margin), wrong, wrong))
    return rows


def test_the_gate_learns_where_the_student_is_wrong() -> None:
    made = calibrate(compared(random.Random(1), 1200), HERE, "2026-11-15", ["a"])
    assert len(made.judged) == 600
    two = allowed(made, 0.02)
    assert 0.6 < two.served < 0.8
    assert two.excess / two.of < 0.02
    assert allowed(made, 0.05).served >= two.served >= allowed(made, 0.01).served
    assert 0.02 < two.watched < 0.03  # nothing differed that did no harm


def test_the_strictest_temperature_decides() -> None:
    """At temperature 1 the student is wrong where its margin is below 2, at 0 only below 1."""
    dice, rows = random.Random(1), []
    for _ in range(1200):
        margin = dice.uniform(0, 4)
        for temperature, least in ((0.0, 1), (1.0, 2)):
            wrong = margin < least
            rows.append(Compared("timer", Evidence("call", margin), wrong, wrong, temperature))
    both = replace(HERE, temperatures=(0.0, 1.0))
    made = calibrate(rows, both, "2026-11-15", [], tools=["b", "a", "b"])
    assert (made.temperatures, made.tools, len(made.judged)) == ([0.0, 1.0], ["a", "b"], 1200)
    two = allowed(made, 0.02)
    assert two.of == 600
    assert 0.4 < two.served < 0.52
    only_zero = calibrate([row for row in rows if row.temperature == 0.0], HERE, "2026-11-15", [])
    assert allowed(only_zero, 0.02).served > 0.6


def test_too_few_tasks_allow_nothing() -> None:
    made = calibrate(compared(random.Random(1), 2 * calls_needed(0.02) - 2), HERE, "2026-11-15", [])
    assert allowed(made, 0.02).served == 0.0


@asynccontextmanager
async def endpoint(say: Any) -> AsyncIterator[str]:
    """A chat endpoint: `say(body)` gives (status, answer)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        status, answer = say(json.loads(await reader.readexactly(length)))
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    async with raw_server(serve) as url:
        yield url


def answer(minutes: int, margin: float) -> dict[str, Any]:
    arguments = json.dumps({"minutes": minutes})
    top = [{"token": "else", "logprob": -margin}]
    tokens = [{"token": one, "logprob": 0.0, "top_logprobs": top} for one in ("set_timer", arguments)]
    call = {"id": "c", "type": "function", "function": {"name": "set_timer", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"choices": [{"message": message, "logprobs": {"content": tokens}, "finish_reason": "tool_calls"}]}


def minutes_in(body: dict[str, Any]) -> int:
    return int(body["messages"][0]["content"].split()[3])


def say(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The student is wrong about every fourth task, and has a small margin there; one prompt is too long for it."""
    number = minutes_in(body)
    if body["model"] == "m":
        assert "logprobs" not in body
        return 200, answer(number, 9.0)
    assert body["top_logprobs"] == 2
    if number == 7:
        return 400, {"error": {"message": "too long"}}
    return 200, answer(number + (number % 4 == 0), 0.5 if number % 4 == 0 else 3.0)


@pytest.mark.anyio
async def test_both_are_asked_and_judged() -> None:
    async with endpoint(say) as url:
        rows = await _compare(Endpoint(url, "m-spark", "m"), [plain(number) for number in range(1, 9)], lambda: None)
    assert [one.is_excess for one in rows] == [False, False, False, True, False, False, True, True]
    assert [one.differs for one in rows] == [one.is_excess for one in rows]
    assert rows[6].evidence.doubt == "cut off"  # it was refused: nothing to take
    assert rows[0].evidence == Evidence("call", 3.0)
    assert rows[3].evidence.kind == "own words"


@pytest.mark.anyio
async def test_an_endpoint_that_refuses_for_good_is_an_error() -> None:
    async with endpoint(lambda _: (404, {"error": {"message": "no such model"}})) as url:
        with pytest.raises(SetupError, match="no such model"):
            await _compare(Endpoint(url, "m-spark", "m"), [plain(1)], lambda: None)


@pytest.mark.anyio
async def test_the_command_writes_what_the_gateway_reads_and_wants_new_tasks_after_a_close(tmp_path: Path) -> None:
    out, tasks = tmp_path / "auto.json", tmp_path / "tasks.jsonl"
    write_tasks(tasks, [task(number) for number in range(1, 401)])

    def run(url: str) -> typer.testing.Result:
        words = ["auto", "calibrate", str(tasks), "--model", "m", "--url", url, "--out", str(out)]
        words += ["--temperature", "0.7", "--temperature", "0"]
        return typer.testing.CliRunner().invoke(app, words)

    async with endpoint(say) as url:
        result = await asyncio.to_thread(run, url)
        assert result.exit_code == 0, result.output
        assert "of calls" in result.output
        assert "[models.auto]" in result.output
        made = read_calibration(out)
        assert (made.student, made.full, len(made.used)) == ("m-spark", "m", 400)
        assert (made.temperatures, len(made.tools), len(made.judged)) == ([0.0, 0.7], 1, 400)
        (tmp_path / "auto.json.closed").write_text("9 of 20 differ")
        again = await asyncio.to_thread(run, url)
        assert isinstance(again.exception, SetupError)
        assert "Use newer tasks" in again.exception.message
        write_tasks(tasks, [task(number) for number in range(501, 901)])
        assert (await asyncio.to_thread(run, url)).exit_code == 0
        assert not (tmp_path / "auto.json.closed").exists()


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for name in ("x.json", "missing.json"):
        with pytest.raises(SetupError):
            read_calibration(tmp_path / name)


@pytest.mark.anyio
async def test_free_text_is_judged_by_what_it_expects_and_weighed_by_its_prompt() -> None:
    def say(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = "Paris" if body["model"] == "m" or "France" in body["messages"][0]["content"] else "No idea"
        return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}

    asked = [
        PlainTask(Task(name, [{"role": "user", "content": f"The capital of {name}?"}], [], []), wanted, "capitals")
        for name, wanted in (("France", read_wanted({"exact": "Paris"})), ("Texas", read_wanted({"regex": "Paris"})))
    ]
    async with endpoint(say) as url:
        easy, hard = await _compare(Endpoint(url, "m-spark", "m"), asked, lambda: None)
    assert (easy.evidence.kind, easy.is_excess, hard.is_excess) == ("text", False, True)
    made = calibrate([easy, hard] * 200, HERE, "2026-11-15", [])
    before = made.gate.before
    assert made.gate.score(before(GateCall("The capital of France?"))) > 0.9
    assert made.gate.score(before(GateCall("The capital of Texas?"))) < 0.5
