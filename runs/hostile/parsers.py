"""Fuzzes the parsers in process: a seeded mutator over a corpus, and hypothesis. On every core. See runs/hostile.sh."""

from __future__ import annotations

import json
import logging
import os
import random
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from runs.hostile import corpus
from runs.hostile.targets import LINES_AT_ONCE, TARGETS, Broken, Target, within_time

INPUTS_PER_JOB = 50_000
LARGE_EVERY = 25_000  # one large input in so many
REDUCE_S = 3.0


@dataclass
class Failure:
    target: str
    how: str  # the exception and the function that raised it, or what does not hold
    data: bytes
    shape: int
    times: int = 1


@dataclass
class Outcome:
    target: str
    inputs: int = 0
    examples: int = 0
    cpu_s: float = 0.0
    failures: dict[str, Failure] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        self.inputs += other.inputs
        self.examples += other.examples
        self.cpu_s += other.cpu_s
        for how, failure in other.failures.items():
            if how in self.failures:
                self.failures[how].times += failure.times
            else:
                self.failures[how] = failure


def failure_of(target: Target, data: bytes, shape: int) -> str | None:
    """How the target fails for this input; None if all holds."""
    try:
        within_time(target, data, shape)
    except Broken as broken:
        return str(broken)
    except Exception as error:  # noqa: BLE001 (any other exception is a finding)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/headway/" in frame.filename]
        where = f"{frames[-1].filename.rpartition('/headway/')[2]} {frames[-1].name}" if frames else "the test itself"
        return f"{type(error).__name__} in {where}"
    return None


def fuzz(name: str, count: int, with_seed: int) -> Outcome:
    """Give a target `count` mutated inputs, and a few large ones."""
    target, outcome = TARGETS[name], Outcome(name)
    make, shape = target.maker(with_seed), random.Random(with_seed + 1).getrandbits
    large = target.large()
    began = time.process_time()
    for number in range(0, count, target.inputs_at_once):
        data = make()
        if number % LARGE_EVERY == 0:
            data = large[(with_seed + number // LARGE_EVERY) % len(large)]
        _try(target, data, shape(32), outcome)
        outcome.inputs += target.inputs_at_once
    outcome.cpu_s = time.process_time() - began
    return outcome


def prove(name: str, examples: int, with_seed: int) -> Outcome:
    """Give a target that many examples of hypothesis. Failures are collected, so that all examples are tried."""
    target, outcome = TARGETS[name], Outcome(name)

    @seed(with_seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(name), st.integers(0, 2**32 - 1))
    def one(data: bytes, shape: int) -> None:
        _try(target, data, shape, outcome)
        outcome.examples += 1

    one()
    return outcome


def _try(target: Target, data: bytes, shape: int, outcome: Outcome) -> None:
    if (how := failure_of(target, data, shape)) is not None:
        outcome.add(Outcome(target.name, failures={how: Failure(target.name, how, data, shape)}))


# --- hypothesis ------------------------------------------------------------------------------------------------------

_NAMES = (
    "usage", "choices", "index", "delta", "content", "text", "error", "message", "prompt_tokens", "completion_tokens",
    "prompt_tokens_details", "cached_tokens", "input_tokens", "output_tokens", "type", "metrics", "generation_time_ms",
    "model", "messages", "role", "stream", "n", "max_tokens", "tools", "function", "parameters", "schema", "pattern",
    "kind", "call_id", "attempt", "amount", "id", "input", "partial_json", "thinking", "service_tier", "stop",
    "prompt", "system", "",
)  # fmt: skip
_KINDS = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "error", "ping",
)  # fmt: skip


def _json() -> st.SearchStrategy[Any]:
    texts = st.text(max_size=12) | st.sampled_from(["m", "fast", "user", "text_delta", "entry", "reserved", "object"])
    leaves = st.none() | st.booleans() | st.integers() | st.integers(0, 2**31) | st.floats() | texts
    names = st.sampled_from(_NAMES) | st.text(max_size=4)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=12
    )


def _bytes_of(value: object, *, is_ascii: bool) -> bytes:
    return json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":")).encode("utf-8", "surrogatepass")


def strategy(name: str) -> st.SearchStrategy[bytes]:
    values = st.builds(_bytes_of, _json(), is_ascii=st.booleans())
    if name == "spool reader":
        kinds = st.sampled_from([b'"entry"', b'"seen"', b'"open"', b'"again"']) | values
        real = st.sampled_from([line.removesuffix(b"\n") for line in corpus.spool_lines("evil-", 3)])
        line = st.builds(lambda kind, value: b"[%b,%b]" % (kind, value), kinds, values) | values | real
        return st.lists(line | st.binary(max_size=20), max_size=LINES_AT_ONCE // 8).map(b"\n".join)
    if name.startswith("fields of "):
        objects = st.dictionaries(st.sampled_from(_NAMES), _json(), max_size=8)
        bodies = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 5}
        return (
            st.builds(lambda more: _bytes_of(bodies | more, is_ascii=True), objects) | values | st.binary(max_size=60)
        )
    if name == "event splitter":
        return st.lists(st.sampled_from([b"\n", b"\n\n", b"data: x", b"\r\n"]) | st.binary(max_size=9)).map(b"".join)
    return _answers(name, values)


def _answers(name: str, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Streams of real and made events, and whole answers."""
    is_openai = name == "OpenAI meter"
    streams = corpus.OPENAI_STREAMS if is_openai else corpus.ANTHROPIC_STREAMS
    real = st.sampled_from(sorted({event + b"\n\n" for stream in streams for event in stream.split(b"\n\n")[:-1]}))
    usage = _json() | st.dictionaries(
        st.sampled_from(["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"]), _json()
    )
    if is_openai:
        chunk = st.fixed_dictionaries(
            {}, optional={"choices": _json(), "usage": usage, "error": _json(), "id": _json()}
        )
        made = chunk.map(lambda fields: b"data: " + _bytes_of(fields, is_ascii=True) + b"\n\n")
    else:
        fields = {"message": _json(), "usage": usage, "delta": _json(), "index": _json(), "content_block": _json()}
        chunk = st.fixed_dictionaries({"type": st.sampled_from(_KINDS) | _json()}, optional=fields)
        made = st.builds(
            lambda kind, fields: b"event: %b\ndata: %b\n\n" % (kind.encode(), _bytes_of(fields, is_ascii=True)),
            st.sampled_from(_KINDS),
            chunk,
        )
    whole = st.fixed_dictionaries({}, optional={"usage": usage, "choices": _json(), "metrics": _json()})
    return (
        st.lists(real | made | st.binary(max_size=12), max_size=6).map(b"".join)
        | whole.map(lambda fields: _bytes_of(fields, is_ascii=False))
        | values
    )


# --- the run ---------------------------------------------------------------------------------------------------------


def reduce(failure: Failure) -> Failure:
    """The smallest input found in a few seconds that fails in the same way: parts are removed as long as it does."""
    target, data, deadline = TARGETS[failure.target], failure.data, time.monotonic() + REDUCE_S
    size = max(1, len(data) // 2)
    while time.monotonic() < deadline:
        at, before = 0, len(data)
        while at < len(data) and time.monotonic() < deadline:
            shorter = data[:at] + data[at + size :]
            if failure_of(target, shorter, failure.shape) == failure.how:
                data = shorter
            else:
                at += size
        if size == 1 and len(data) == before:
            break
        size = max(1, size // 2)
    return Failure(failure.target, failure.how, data, failure.shape, failure.times)


def run_parsers(inputs: int, examples: int, with_seed: int, console: Console) -> list[Outcome]:
    """Share the inputs among the targets, and the work among the cores."""
    each = -(-inputs // len(TARGETS))
    jobs: list[Callable[[], Outcome]] = []
    for number, name in enumerate(TARGETS):
        jobs.append(partial(prove, name, examples, with_seed * 1_000_003 + number))
        for part in range(0, each, INPUTS_PER_JOB):
            count = min(INPUTS_PER_JOB, each - part)
            part_seed = with_seed * 1_000_003 + number * 100_003 + part // INPUTS_PER_JOB
            jobs.append(partial(fuzz, name, count, part_seed))
    outcomes = {name: Outcome(name) for name in TARGETS}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=logging.disable) as pool,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        bar = progress.add_task("parsers", total=len(jobs))
        for done in as_completed([pool.submit(job) for job in jobs]):
            outcome = done.result()
            outcomes[outcome.target].add(outcome)
            progress.advance(bar)
    return list(outcomes.values())


def show(outcomes: list[Outcome], console: Console) -> None:
    table = Table("parser", "mutated inputs", "inputs/s of a core", "examples", "failures", title="parsers")
    for outcome in outcomes:
        failures = sum(failure.times for failure in outcome.failures.values())
        rate = outcome.inputs / max(1e-9, outcome.cpu_s)
        table.add_row(outcome.target, f"{outcome.inputs:,}", f"{rate:,.0f}", f"{outcome.examples:,}", f"{failures:,}")
    console.print(table)
    logging.disable()
    for outcome in outcomes:
        for failure in map(reduce, outcome.failures.values()):
            console.print(
                f"{failure.target}: {failure.how}, {failure.times:,} times; shape {failure.shape}, smallest input "
                f"{failure.data[:400]!r}{f' and {len(failure.data) - 400:,} bytes' if len(failure.data) > 400 else ''}",
                style="red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
