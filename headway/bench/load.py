"""Put load on a server: closed loops, open loops, and a check that the client was not the bottleneck.

Knows: when each call is due. In a closed loop each slot calls again as soon as it has its answer; in an open loop calls
are made on schedule, whether or not earlier ones have ended, without a limit on concurrency.
Does not know: how a call is sent (client.py), or what the results are used for.
Invariant: latencies count from when a call was due, and a run in which this process was the bottleneck is invalid.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from math import ceil

from headway.bench.client import LoadCall, LoadClient
from headway.errors import SetupError

CALL_TIMEOUT_S = 600.0
RETRY_S = 0.5  # after a refusal: short enough to get a free seat, long enough not to add load
REFUSALS = (429, 503)
LAG_INTERVAL_S = 0.01
# If reads are late by more than this share of the time per token, tokens can no longer be timed.
MAX_LAG_S, MAX_LAG_SHARE = 0.001, 0.1
MAX_LATE_S, MAX_LATE_SHARE = 0.005, 0.01  # lateness of sends, absolute and relative to the median time to first token


@dataclass(frozen=True, slots=True)
class Arrival:
    """A scheduled call, in seconds from the start."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Load:
    """What was measured in one window, without warm-up."""

    calls: list[LoadCall] = field(default_factory=list)  # due in the window, complete or failed
    began_at: float = 0.0
    ended_at: float = 0.0
    tokens: int = 0  # that arrived in the window, of any call
    prompt_tokens: int = 0  # of the calls whose first token arrived in the window
    lags_s: list[float] = field(default_factory=list)  # how late this process read, sampled all the time
    open_loop: bool = False

    @property
    def complete(self) -> list[LoadCall]:
        return [call for call in self.calls if not call.error]

    @property
    def output_tps(self) -> float:
        return self.tokens / max(1e-9, self.ended_at - self.began_at)

    @property
    def prompt_tps(self) -> float:
        return self.prompt_tokens / max(1e-9, self.ended_at - self.began_at)

    def problems(self) -> list[str]:
        """Return the reasons why the run is invalid; empty if it is valid."""
        good = self.complete
        found = [
            f"{number} calls failed: {error}" for error, number in Counter(c.error for c in self.calls).items() if error
        ]
        if not good:
            return [*found, "no call succeeded"]
        lag_s, tpot_s = quantile(self.lags_s, 0.99), statistics.median(call.tpot_s for call in good)
        if lag_s > max(MAX_LAG_S, MAX_LAG_SHARE * tpot_s):
            found.append(f"the client was late to read: p99 {1e3 * lag_s:.1f} ms with {1e3 * tpot_s:.1f} ms per token")
        if self.open_loop:
            late_s = quantile([call.sent_at - call.scheduled_at for call in self.calls], 0.99)
            if late_s > max(MAX_LATE_S, MAX_LATE_SHARE * statistics.median(call.ttft_s for call in good)):
                found.append(f"the client was late to send: p99 {1e3 * late_s:.1f} ms after schedule")
        return found


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, ceil(share * len(values)) - 1)] if values else 0.0


def poisson(rate_per_s: float, seconds: float, prompt_tokens: int, output_tokens: int, seed: int = 0) -> list[Arrival]:
    return bursts(rate_per_s, 1.0, seconds, prompt_tokens, output_tokens, seed)


def bursts(
    rate_per_s: float, variation: float, seconds: float, prompt_tokens: int, output_tokens: int, seed: int = 0
) -> list[Arrival]:
    """Return arrivals with gamma-distributed gaps. `variation` is their coefficient of variation; 1 is Poisson."""
    chance = random.Random(seed)
    shape = 1 / variation**2
    arrivals: list[Arrival] = []
    at_s = chance.gammavariate(shape, 1 / (shape * rate_per_s))
    while at_s < seconds:
        arrivals.append(Arrival(at_s, prompt_tokens, output_tokens))
        at_s += chance.gammavariate(shape, 1 / (shape * rate_per_s))
    return arrivals


# Ends when nobody reads its output any more.
TICKER = """
import os, struct, time
try:
    while True:
        time.sleep({interval})
        os.write(1, struct.pack("d", time.perf_counter()))
except OSError:
    pass
"""


class LagMeter:
    """Measures how late this process reads what has arrived.

    Another process writes timestamps to a pipe, and this one reads them as it reads tokens. A timer of the loop is too
    coarse (uvloop's have a resolution of a millisecond), and a thread competes with the loop for the interpreter.
    """

    def __init__(self, lags_s: list[float]) -> None:
        self._lags_s = lags_s

    def __enter__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        command = [sys.executable, "-I", "-S", "-c", TICKER.format(interval=LAG_INTERVAL_S)]
        self._ticker = subprocess.Popen(command, stdout=writing, stderr=subprocess.DEVNULL)
        os.close(writing)
        asyncio.get_running_loop().add_reader(self._reading, self._note)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self._ticker.terminate()
        self._ticker.wait()

    def _note(self) -> None:
        now = time.perf_counter()
        self._lags_s += [now - written_at for (written_at,) in struct.iter_unpack("d", os.read(self._reading, 4096))]


async def closed_loop(
    client: LoadClient, streams: int, prompt_tokens: int, output_tokens: int, generations: int = 1
) -> Load:
    """Run `streams` slots that each call again at once, until each has made `generations` calls after all are warm.

    Everything is measured at full load: a slot that has made its calls continues until all slots have.
    """
    return await _ClosedLoop(client, streams, prompt_tokens, output_tokens, generations).run()


class _ClosedLoop:
    def __init__(
        self, client: LoadClient, streams: int, prompt_tokens: int, output_tokens: int, generations: int
    ) -> None:
        self._client = client
        self._streams = streams
        self._lengths = prompt_tokens, output_tokens
        self._generations = generations
        self._load = Load()
        self._cold, self._unfinished = streams, streams
        self._end = asyncio.Event()

    async def run(self) -> Load:
        load = self._load
        with LagMeter(load.lags_s):
            slots = [asyncio.create_task(self._slot(number)) for number in range(self._streams)]
            waiting = asyncio.create_task(self._end.wait())
            try:
                await asyncio.wait([waiting, *slots], return_when=asyncio.FIRST_COMPLETED)
                load.ended_at = time.perf_counter()
            finally:
                for task in (waiting, *slots):
                    task.cancel()
                ends = await asyncio.gather(waiting, *slots, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        return load

    async def _slot(self, number: int) -> None:
        prompt_tokens, output_tokens = self._lengths
        # The first answers have different lengths, so that the slots do not stay in step.
        warm_up = await self._call(prompt_tokens, ceil(output_tokens * (number + 1) / self._streams))
        if warm_up.error:
            raise SetupError(f"cannot measure the server: {warm_up.error}")
        self._cold -= 1
        if self._cold == 0:
            self._load.began_at = time.perf_counter()
            self._load.lags_s.clear()
        measured = 0
        while True:
            in_window = self._cold == 0
            call = await self._call(prompt_tokens, output_tokens)
            if in_window:
                self._load.calls.append(call)
                measured += 1
                if measured == self._generations:
                    self._unfinished -= 1
                    if self._unfinished == 0:
                        self._end.set()
            if call.error:
                await asyncio.sleep(RETRY_S)

    async def _call(self, prompt_tokens: int, output_tokens: int) -> LoadCall:
        request = self._client.request(prompt_tokens, output_tokens)
        call = LoadCall(time.perf_counter(), output_tokens)
        await _make(self._client, call, request, self._load)
        while call.status in REFUSALS and time.perf_counter() - call.scheduled_at < CALL_TIMEOUT_S:
            # The latency still counts from when the call was first due.
            await asyncio.sleep(RETRY_S)
            call.refusals += 1
            await _make(self._client, call, request, self._load)
        return call


async def open_loop(client: LoadClient, arrivals: list[Arrival], warm_up_s: float = 0.0) -> Load:
    """Make calls on schedule. Calls of the first `warm_up_s` are not counted. A refused call counts as failed."""
    load = Load(open_loop=True)
    todo = sorted(arrivals, key=lambda arrival: arrival.at_s)
    requests = [client.request(arrival.prompt_tokens, arrival.output_tokens) for arrival in todo]
    tasks: list[asyncio.Task[None]] = []
    with LagMeter(load.lags_s):
        start = time.perf_counter() + 0.05
        load.began_at = start + warm_up_s
        for arrival, request in zip(todo, requests, strict=True):
            call = LoadCall(start + arrival.at_s, arrival.output_tokens)
            await _sleep_until(call.scheduled_at)
            if arrival.at_s >= warm_up_s:
                load.calls.append(call)
            tasks.append(asyncio.create_task(_make(client, call, request, load)))
        await asyncio.gather(*tasks)
        load.ended_at = time.perf_counter()
    return load


async def _make(client: LoadClient, call: LoadCall, request: bytes, load: Load) -> None:
    def note(at: float, tokens: int) -> None:
        if 0 < load.began_at <= at and not load.ended_at:
            load.tokens += tokens
            if call.tokens == 0:  # these are its first
                load.prompt_tokens += call.prompt_tokens

    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await client.make(call, request, note)
    except TimeoutError:
        call.error = f"no complete answer in {CALL_TIMEOUT_S:.0f} s"


async def _sleep_until(moment: float) -> None:
    """Sleep to the microsecond. Timers have a resolution of a millisecond, so yield to the loop for the rest."""
    while (left_s := moment - time.perf_counter()) > 0:  # noqa: ASYNC110 (there is nothing else to wait for)
        await asyncio.sleep(left_s - 0.002 if left_s > 0.003 else 0)
