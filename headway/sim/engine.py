"""A replica in virtual time: processor sharing at the speed its curve gives for the present batch.

No event per token. All streams aboard run at one speed, so one counter of tokens given since the start serves them all:
a stream whose first token comes when the counter stands at v and that wants k tokens is done when it stands at
v + k - 1.
A prompt takes its time from everyone, as in an engine that reads it between two steps: the counter stands still until
all prompts have been read, first come first served. Knows the curve; does not know why calls come or go.
"""

from __future__ import annotations

from heapq import heappop, heappush

from headway.core.curve import Curve

ROUNDING = 1e-6  # tokens: what the counter may lack of a stream's end when its time has come


class SimReplica:
    def __init__(self, name: str, curve: Curve, prompt_tps: float = 0.0, first_token_s: float = 0.0) -> None:
        """`prompt_tps` 0: prompts take no time. `first_token_s` is what else passes before a stream's first token, and
        is nobody's but its own."""
        self.name = name
        self.version = 0  # of the next event; older ones in the loop's heap are void
        self.streams: dict[str, int] = {}  # choices of the calls aboard: reading, waiting for a first token, decoding
        self._curve = curve
        self._prompt_tps = prompt_tps
        self._first_token_s = first_token_s
        self._step_s = [curve.seconds_per_token(1)]  # by batch; [0] is of no meaning
        self._slowness = 1.0
        self._decoding = 0
        self._given = 0.0
        self._at = 0.0
        self._reading_s = 0.0  # prompts still to be read
        self._joins: list[tuple[float, str, int]] = []  # when a stream begins to decode, and for how many tokens
        self._ends: list[tuple[float, str]] = []

    def board(self, call_id: str, prompt_tokens: int, tokens: int, now: float, choices: int = 1) -> float:
        """Each choice is given so many tokens. Returns when the first one comes, unless the replica changes its speed
        meanwhile."""
        self._advance(now)
        if self._prompt_tps:
            self._reading_s += self._slowness * prompt_tokens / self._prompt_tps
        first_at = now + self._reading_s + self._first_token_s
        self.streams[call_id] = choices
        if self._first_token_s:
            heappush(self._joins, (first_at, call_id, tokens))
        else:
            self._decode(call_id, tokens)
        self.version += 1
        return first_at

    def leave(self, call_id: str, now: float) -> None:
        """It is taken off in the middle. Its place in the heaps is passed over when it comes up."""
        self._advance(now)
        choices = self.streams.pop(call_id)
        if not any(joining == call_id for _, joining, _ in self._joins):
            self._decoding -= choices
        self.version += 1

    def slow_down(self, slowness: float, now: float) -> None:
        """Every step takes so many times as long from now on."""
        self._advance(now)
        self._slowness = slowness
        self.version += 1

    def next_event(self) -> float | None:
        """When the first stream will be done, or another begin to decode, if nobody boards or leaves."""
        ends, streams = self._ends, self.streams
        while ends and ends[0][1] not in streams:
            heappop(ends)
        at = None
        if ends:
            at = self._at + self._reading_s + max(0.0, ends[0][0] - self._given) * self._step(self._decoding)
        if self._joins and (at is None or self._joins[0][0] < at):
            at = self._joins[0][0]
        return at

    def due(self, now: float) -> str | None:
        """Take out the stream that is done now; None if it was not for that that the time had come."""
        self._advance(now)
        self.version += 1
        if self._ends and self._ends[0][0] <= self._given + ROUNDING:
            _, call_id = heappop(self._ends)
            if call_id in self.streams:
                self._decoding -= self.streams.pop(call_id)
                return call_id
        return None

    def _decode(self, call_id: str, tokens: int) -> None:
        self._decoding += self.streams[call_id]
        heappush(self._ends, (self._given + tokens - 1, call_id))

    def _advance(self, now: float) -> None:
        while self._joins and self._joins[0][0] <= now:
            at, call_id, tokens = heappop(self._joins)
            self._give(at)
            if call_id in self.streams:
                self._decode(call_id, tokens)
        self._give(now)

    def _give(self, now: float) -> None:
        passed = now - self._at
        self._at = now
        if self._reading_s:
            read = min(passed, self._reading_s)
            self._reading_s -= read
            passed -= read
        if self._decoding and passed > 0.0:
            self._given += passed / self._step(self._decoding)

    def _step(self, batch: int) -> float:
        steps = self._step_s
        while len(steps) <= batch:
            steps.append(self._curve.seconds_per_token(len(steps)))
        return steps[batch] * self._slowness
