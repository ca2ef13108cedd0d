"""A replica in virtual time: processor sharing at the speed that its curve gives for the current batch.

There is no event per token. All streams aboard have the same speed, so one counter of tokens since the start is enough:
a stream that gets its first token when the counter is v and wants k tokens is done when the counter is v + k - 1.

Reading a prompt delays all streams, as in an engine that reads prompts between two steps: the counter stops until all
prompts have been read, in order of arrival. The context that a stream reads in each step counts with its mean over the
stream's life, the prompt and half of the answer. This module knows the curve, but not why calls board or leave.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from headway.core.curve import Curve
from headway.core.prefix_index import UNKNOWN_KV_TOKENS
from headway.sim.cache import SimCache

NO_LIMIT = 1 << 16  # streams; more than any engine runs
ROUNDING = 1e-6  # tokens; a stream counts as done if the counter is short by at most this


class SimReplica:
    def __init__(
        self, name: str, curve: Curve, prompt_tps: float = 0.0, first_token_s: float = 0.0, kv_tokens: int = 0
    ) -> None:
        """With `prompt_tps` 0, prompts take no time. `first_token_s` is additional time before a stream's first token,
        which does not delay other streams. `kv_tokens` is the size of its cache; 0 means unknown."""
        self.name = name
        self.version = 0  # of the next event; events of older versions in the loop's heap are ignored
        self.streams: dict[str, int] = {}  # choices of the calls aboard, whether they decode yet or not
        self.load = 0  # the sum of `streams`
        self.over_limit = 0  # calls that boarded so that by the curve the strictest floor aboard is not kept
        self._contexts: dict[
            str, int
        ] = {}  # of the same calls, all choices together; empty if the curve has no such part
        self._context = 0  # the sum of `_contexts`
        self._curve = curve
        self._prompt_tps = prompt_tps
        self._first_token_s = first_token_s
        self.cached_tokens = 0  # of prompts, found in its cache
        self._cache = SimCache(kv_tokens or UNKNOWN_KV_TOKENS)
        self._floors: dict[str, float] = {}  # of the calls aboard that have one
        self._with_floor: dict[float, int] = {}  # the number of these calls, by floor; no zeros
        self._allowed = NO_LIMIT  # streams, by the strictest of these floors
        self._step_s = [curve.seconds_per_token(1)]  # by batch; [0] is not used
        self._slowness = 1.0
        self._noise = 1.0
        self._decoding = 0
        self._given = 0.0
        self._at = 0.0
        self._reading_s = 0.0  # prompts still to be read
        self._joins: list[tuple[float, str, int]] = []  # when each stream starts to decode, and its tokens
        self._ends: list[tuple[float, str]] = []
        self._ends_of: dict[str, float] = {}  # the same, by call

    def board(
        self,
        call_id: str,
        prompt_tokens: int,
        tokens: int,
        now: float,
        choices: int = 1,
        floor_tps: float = 0.0,
        blocks: tuple[int, ...] = (),
    ) -> float:
        """Add a call whose choices take `tokens` each. `blocks` are those of its prompt, if they are known. Returns the
        time of its first token if the replica's speed does not change until then."""
        self._advance(now)
        cached = self._cache.read(blocks, prompt_tokens) if blocks else 0
        self.cached_tokens += cached
        if self._prompt_tps:
            self._reading_s += self._slowness * self._noise * (prompt_tokens - cached) / self._prompt_tps
        first_at = now + self._reading_s + self._first_token_s
        self.streams[call_id] = choices
        self.load += choices
        if floor_tps:
            self._floors[call_id] = floor_tps
            self._with_floor[floor_tps] = self._with_floor.get(floor_tps, 0) + 1
            if self._with_floor[floor_tps] == 1:
                self._allowed = min(self._allowed, self._curve.largest_batch(floor_tps, NO_LIMIT, 0.0))
        if self.load > self._allowed:
            self.over_limit += 1
        if self._curve.e:
            self._contexts[call_id] = choices * (prompt_tokens + tokens // 2)
            self._context += self._contexts[call_id]
        if self._first_token_s:
            heappush(self._joins, (first_at, call_id, tokens))
        else:
            self._decode(call_id, tokens)
        self.version += 1
        return first_at

    def leave(self, call_id: str, now: float) -> None:
        """Remove a call before its end. Its entries in the heaps are skipped later."""
        self._advance(now)
        choices = self._gone(call_id)
        self._ends_of.pop(call_id, None)
        self._context -= self._contexts.pop(call_id, 0)
        joins = [one for one in self._joins if one[1] != call_id]
        if len(joins) == len(self._joins):
            self._decoding -= choices
        else:
            heapify(joins)
            self._joins = joins
        self.version += 1

    def slow_down(self, slowness: float, now: float) -> None:
        """From now on, every step takes `slowness` times as long as the curve says."""
        self._advance(now)
        self._slowness = slowness
        self.version += 1

    def set_noise(self, factor: float, now: float) -> None:
        """From now on, every step takes `factor` times as long, besides any slowness."""
        self._advance(now)
        self._noise = factor
        self.version += 1

    def tokens_left(self, call_id: str, now: float) -> float | None:
        """How many tokens each choice of the call still gets; None if it does not decode yet."""
        self._advance(now)
        end = self._ends_of.get(call_id)
        return max(0.0, end - self._given) if end is not None else None

    def next_event(self) -> float | None:
        """When the next stream ends or starts to decode, if no call boards or leaves before; None if there is none."""
        ends = self._ends
        while ends and self._ends_of.get(ends[0][1]) != ends[0][0]:
            heappop(ends)  # of a call that has left; it may have come back
        at = None
        if ends:
            at = self._at + self._reading_s + max(0.0, ends[0][0] - self._given) * self._step(self._decoding)
        if self._joins and (at is None or self._joins[0][0] < at):
            at = self._joins[0][0]
        return at

    def due(self, now: float) -> str | None:
        """Remove and return the call that is done now; None if the event was not the end of a call."""
        self._advance(now)
        self.version += 1
        if self._ends and self._ends[0][0] <= self._given + ROUNDING:
            end, call_id = heappop(self._ends)
            if self._ends_of.get(call_id) == end:
                self._decoding -= self._gone(call_id)
                del self._ends_of[call_id]
                self._context -= self._contexts.pop(call_id, 0)
                return call_id
        return None

    def _gone(self, call_id: str) -> int:
        """Forget the call's streams. Returns how many they were."""
        choices = self.streams.pop(call_id)
        self.load -= choices
        if floor_tps := self._floors.pop(call_id, 0.0):
            self._with_floor[floor_tps] -= 1
            if not self._with_floor[floor_tps]:
                del self._with_floor[floor_tps]
                batches = [self._curve.largest_batch(floor, NO_LIMIT, 0.0) for floor in self._with_floor]
                self._allowed = min(batches, default=NO_LIMIT)
        return choices

    def _decode(self, call_id: str, tokens: int) -> None:
        self._decoding += self.streams[call_id]
        end = self._ends_of[call_id] = self._given + tokens - 1
        heappush(self._ends, (end, call_id))

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
        return (steps[batch] + self._curve.e * self._context) * self._slowness * self._noise
