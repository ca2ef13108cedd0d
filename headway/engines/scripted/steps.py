"""The scripted engine's scheduler: one step loop with programmed speeds, programmed faults and a record.

Knows the seats, the batch, the queue, when each token is due, and what every request got. Does not know HTTP: it calls
a stream's `give` for each token and resolves `ended` at its end.
Invariant: until it ends, a stream is in exactly one of `waiting`, `prefilling`, `joining`, `batch`; the last three
hold seats, never more than `max_num_seqs`. No token comes before its time, and delays do not add up: each deadline
follows from the previous deadline, not from the time at which the loop woke up.
"""

import asyncio
import os
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

KEPT_REQUESTS = 10_000
KEPT_CHANGES = 50_000

# If the loop is late by more than this (a stopped process), the schedule restarts from now, because a real engine does
# not catch up. If it is late by less, it catches up, so that mean speeds match the script on a noisy machine.
CATCH_UP_S = 0.25

# uvloop rounds a delay to whole milliseconds and starts it from a clock that can be one millisecond behind.
TIMER_SLACK_S = 0.0015

State = Literal["running", "finished", "aborted", "died"]


@dataclass(frozen=True, slots=True)
class Script:
    """The engine's speed and capacity."""

    model: str = "scripted"
    first_token_s: float = 0.02  # from taking a seat to the first token
    step_s: tuple[tuple[int, float], ...] = ((1, 0.01),)  # (batch, seconds per token); linear between, flat outside
    max_num_seqs: int = 256
    # Requests that may wait for a seat. vLLM's --max-num-queued-reqs counts the seated ones too.
    max_queued: int | None = None
    max_model_len: int = 8192
    embedding_size: int = 0  # an embedding model with vectors of this size; 0 for a model that generates
    context_s: float = 0.0  # added to a step for each token of context of its streams

    def __post_init__(self) -> None:
        batches = [batch for batch, _ in self.step_s]
        if not batches or batches != sorted(set(batches)):
            raise ValueError(f"step_s needs points with rising batch sizes, got {self.step_s}")
        if self.max_num_seqs < 1:
            raise ValueError("max_num_seqs must be at least 1")

    def step_time_s(self, batch: int) -> float:
        above = bisect_left(self.step_s, (batch, 0.0))
        if above == 0:
            return self.step_s[0][1]
        if above == len(self.step_s):
            return self.step_s[-1][1]
        (low, low_s), (high, high_s) = self.step_s[above - 1], self.step_s[above]
        return low_s + (high_s - low_s) * (batch - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Faults:
    """Programmed faults. Token counts are per stream."""

    die_after_tokens: int | None = None  # cut the connection; with 0, before any byte of the response
    times: int | None = None  # limits die_after_tokens to this many of the next requests
    exit_after_tokens: int | None = None  # end the process with status 9
    hang_after_tokens: int | None = None  # no stream gets another token until the faults change
    slow_factor: float = 1.0
    refuse: bool = False
    unhealthy: bool = False


@dataclass(slots=True)
class RequestRecord:
    """What a request got. Steps are numbered from 1; a request without a step has `last_step` < `first_step`. Times are
    those of the monotonic clock."""

    prompt_tokens: int
    tokens_sent: int = 0  # or generated, if the answer is not streamed
    state: State = "running"
    first_step: int | None = None  # first step that began while it had a seat; None if it never had one
    last_step: int | None = None  # last step that did; None while it runs
    first_token_s: float | None = None
    ended_s: float | None = None  # if it finished, the time of its last token
    received_s: float | None = None  # first byte of the request
    answered_s: float | None = None  # last byte of the answer; None if it was cut off


@dataclass(slots=True, eq=False)
class ScriptedStream:
    record: RequestRecord
    total_tokens: int
    give: Callable[[int], None]  # called with the token's number, from 1
    ended: asyncio.Future[None]
    arrived_s: float
    seated_s: float = 0.0
    die_after_tokens: int | None = None


class QueueFull(Exception):
    """No seat is free and the queue is full, or the fault `refuse` is set."""


class StepLoop:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.faults = Faults()
        self.waiting: dict[ScriptedStream, None] = {}  # a dict is ordered and removes quickly
        self.prefilling: dict[ScriptedStream, asyncio.TimerHandle | None] = {}  # None if it is due but the engine hangs
        self.joining: dict[ScriptedStream, None] = {}  # have their first token and join the batch at the next step
        self.batch: dict[ScriptedStream, None] = {}
        self.requests: OrderedDict[str, RequestRecord] = OrderedDict()
        self.ended_as: dict[str, int] = {"finished": 0, "aborted": 0, "died": 0}
        self.refused = self.highest_running = self.tokens_sent = self.prompt_tokens = self.steps_begun = 0
        # (step, requests with a seat when it began), for each step where that number changed. With a request's first
        # and last step this gives the batch sizes it ran in, and costs only one comparison per step.
        self.running_changes: deque[tuple[int, int]] = deque(maxlen=KEPT_CHANGES)
        self._running_before = 0
        self._hung = False
        self._deaths_left: int | None = None
        self._step_timer: asyncio.TimerHandle | None = None
        self._step_due_s = 0.0

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.joining) + len(self.batch)

    def board(
        self, request_id: str, prompt_tokens: int, total_tokens: int, give: Callable[[int], None]
    ) -> ScriptedStream:
        """Give a request a seat or a place in the queue. With `die_after_tokens` 0 the stream has died on return."""
        max_queued = self.script.max_queued
        seat_free = self.running < self.script.max_num_seqs
        if self.faults.refuse or not (seat_free or max_queued is None or len(self.waiting) < max_queued):
            self.refused += 1
            raise QueueFull
        ended = asyncio.get_running_loop().create_future()
        stream = ScriptedStream(RequestRecord(prompt_tokens), total_tokens, give, ended, arrived_s=time.monotonic())
        self._keep(request_id, stream.record)
        if self._deaths_left is None or self._deaths_left > 0:
            stream.die_after_tokens = self.faults.die_after_tokens
            if self._deaths_left is not None:
                self._deaths_left -= 1
        if stream.die_after_tokens == 0:
            self._end(stream, "died")
        elif seat_free:
            self._seat(stream)
        else:
            self.waiting[stream] = None
        return stream

    def abort(self, stream: ScriptedStream) -> None:
        """Free the stream's seat, because its client has disconnected. Does nothing if the stream has ended."""
        if stream.record.state == "running":
            self._end(stream, "aborted")

    def set_faults(self, faults: Faults) -> None:
        """Replace the faults. Without `times`, `die_after_tokens` also applies to the streams that run now."""
        self.faults = faults
        self._deaths_left = faults.times
        aboard = [*self.waiting, *self.prefilling, *self.joining, *self.batch]
        for stream in aboard:
            stream.die_after_tokens = faults.die_after_tokens if faults.times is None else None
        most_tokens = max((stream.record.tokens_sent for stream in aboard), default=0)
        self._hung = faults.hang_after_tokens is not None and most_tokens >= faults.hang_after_tokens
        if not self._hung:
            self._resume()

    def _resume(self) -> None:
        now_s = time.monotonic()
        for stream, timer in self.prefilling.items():
            if timer is None:
                self.prefilling[stream] = self._at(now_s, self._first_token, stream, now_s)
        if self._step_timer is None:
            self._start_step(now_s)

    def _keep(self, request_id: str, record: RequestRecord) -> None:
        self.requests[request_id] = record
        self.requests.move_to_end(request_id)
        if len(self.requests) > KEPT_REQUESTS:
            self.requests.popitem(last=False)

    def _seat(self, stream: ScriptedStream) -> None:
        stream.seated_s = time.monotonic()
        stream.record.first_step = self.steps_begun + 1
        due_s = stream.seated_s + self.script.first_token_s * self.faults.slow_factor
        self.prefilling[stream] = self._at(due_s, self._first_token, stream, due_s)
        self.highest_running = max(self.highest_running, self.running)

    def _first_token(self, stream: ScriptedStream, due_s: float) -> None:
        if self._hung:
            self.prefilling[stream] = None
            return
        del self.prefilling[stream]
        self.joining[stream] = None
        stream.record.first_token_s = time.monotonic()
        self.prompt_tokens += stream.record.prompt_tokens
        self._give_token(stream)
        if self._step_timer is None and not self._hung:
            self._start_step(due_s)

    def _start_step(self, start_s: float) -> None:
        self.batch.update(self.joining)
        self.joining.clear()
        if self.batch:
            self._count_step()
            step_s = self.script.step_time_s(len(self.batch))
            if self.script.context_s:
                records = [stream.record for stream in self.batch]
                step_s += self.script.context_s * sum(one.prompt_tokens + one.tokens_sent for one in records)
            self._step_due_s = start_s + step_s * self.faults.slow_factor
            self._step_timer = self._at(self._step_due_s, self._end_step)

    def _count_step(self) -> None:
        self.steps_begun += 1
        running = self.running
        if running != self._running_before:
            self._running_before = running
            self.running_changes.append((self.steps_begun, running))

    def _end_step(self) -> None:
        self._step_timer = None
        if self._hung:
            return
        for stream in tuple(self.batch):
            self._give_token(stream)
        if not self._hung:
            now_s = time.monotonic()
            self._start_step(self._step_due_s if now_s - self._step_due_s < CATCH_UP_S else now_s)

    def _give_token(self, stream: ScriptedStream) -> None:
        record = stream.record
        record.tokens_sent += 1
        self.tokens_sent += 1
        number = record.tokens_sent
        stream.give(number)
        faults = self.faults
        if faults.hang_after_tokens is not None and number >= faults.hang_after_tokens:
            self._hung = True
        if faults.exit_after_tokens is not None and number >= faults.exit_after_tokens:
            # One turn of the loop later, when the token has been written.
            asyncio.get_running_loop().call_soon(os._exit, 9)
        if stream.die_after_tokens is not None and number >= stream.die_after_tokens:
            self._end(stream, "died")
        elif number >= stream.total_tokens:
            self._end(stream, "finished")

    def _end(self, stream: ScriptedStream, state: State) -> None:
        timer = self.prefilling.pop(stream, None)
        if timer is not None:
            timer.cancel()
        for place in (self.waiting, self.joining, self.batch):
            place.pop(stream, None)
        stream.record.state = state
        stream.record.last_step = self.steps_begun
        stream.record.ended_s = time.monotonic()
        self.ended_as[state] += 1
        if not stream.ended.done():  # the server cancels it with its request when it stops
            stream.ended.set_result(None)
        if self.waiting and self.running < self.script.max_num_seqs:
            next_stream = next(iter(self.waiting))
            del self.waiting[next_stream]
            self._seat(next_stream)

    def _at(self, due_s: float, callback: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        delay_s = due_s - time.monotonic()
        delay_s = delay_s + TIMER_SLACK_S if delay_s > 0 else 0.0
        return asyncio.get_running_loop().call_later(delay_s, callback, *arguments)
