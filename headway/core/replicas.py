"""The state of a pool's replicas: the streams aboard each of them.

A replica's state includes how many streams it may carry and how many tokens each stream got according to its curve.
pool.py decides which replica a call boards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from headway.core.fare import SeatTime
from headway.core.feedback import Feedback
from headway.core.pace import Pace
from headway.core.prefix_index import HeldPrefixes
from headway.core.types import MAX_MOVES, Call, Replica

# How often a prompt's reading counts in what it costs. Chosen on the first quarter of a public trace (runs/prefix.sh).
READING_COUNTS: Final = 6.0


class Stream:
    """A call aboard. It has a seat for each of its choices. `floor_tps` is 0 if nothing is promised.

    Not a dataclass: the __init__ of a compiled dataclass is interpreted, and a stream is made for every call."""

    def __init__(
        self,
        call: Call,
        floor_tps: float,
        boarded_at: float,
        boarded_given: float,
        boarded_taken: int,
        first_at: float,
        boarded_read_s: float,
        boarded_most_read_s: float,
        kv_tokens: int,
        context: int,
        is_seen_whole: bool,
    ) -> None:
        self.call = call
        self.floor_tps = floor_tps
        self.boarded_at = boarded_at
        self.boarded_given = boarded_given  # the replica's `given` when the call boarded
        self.boarded_taken = boarded_taken  # the time that one stream of its kind had taken then (fare.py)
        self.first_at = first_at  # when its prompt and those before it have been read
        self.boarded_read_s = boarded_read_s  # the replica's `read_s` when the call boarded, with its own prompt
        self.boarded_most_read_s = boarded_most_read_s
        self.kv_tokens = kv_tokens  # that its prompt and its answers are expected to take
        self.context = context  # the tokens that its choices are expected to read in each step
        self.is_seen_whole = is_seen_whole  # False if it began before this core knew it


@dataclass(slots=True)
class ReplicaState:
    """A replica and the streams aboard."""

    replica: Replica
    time: SeatTime
    pace: Pace
    feedback: Feedback
    prefixes: HeldPrefixes  # that its engine is expected to have in its cache
    caps: dict[float, int] = field(default_factory=dict)  # the largest batch that keeps each floor here
    longest_s: dict[float, float] = field(default_factory=dict)  # the curve's longest time per token for each floor
    light_seats: int = 0  # the largest cap: the replica's seats while it is light
    open: bool = False
    draining: bool = False
    light: bool = False
    retiring: bool = False  # light until its express streams have left; until then it takes only calls without a floor
    aboard: dict[str, Stream] = field(default_factory=dict)
    load: int = 0  # seats taken by the streams aboard and by strangers
    strangers: int = 0  # streams that the engine runs for calls that core does not know
    kv_taken: int = 0  # tokens of memory that the streams aboard are expected to take
    context: int = 0  # tokens that the streams aboard are expected to read in each step
    express: dict[float, int] = field(default_factory=dict)  # seats taken by streams with a floor, by floor; no zeros
    express_seats: int = 0  # the sum of `express`
    flex: dict[str, int] = field(default_factory=dict)  # seats of flex calls that may be preempted, newest last
    movable: dict[str, int] = field(default_factory=dict)  # seats of calls that may move to another, without a floor
    movable_express: dict[str, int] = field(default_factory=dict)  # the same, with one
    leaving: dict[str, int] = field(default_factory=dict)  # seats of calls being preempted, still taken
    leaving_seats: int = 0  # the sum of `leaving`
    is_behind: bool = False  # a stream with a floor falls behind: no call boards
    rank: int = 0  # by what its light seats cost in throughput (seat_cost.py); 0 are the cheapest
    caps_slowness: float = 1.0  # how slow streams may be, compared with the curve, by the caps
    given: float = 0.0  # tokens that one stream got since the start, according to the curve without correction
    given_at: float = 0.0
    read_s: float = 0.0  # for reading the prompts of all calls that boarded, in seconds, as far as they are not cached
    most_read_s: float = 0.0  # the same if nothing was cached
    read_until: float = 0.0  # when the last of them will have been read
    # Set by doors.py: the queues that the replica is in, and how it is counted there.
    is_among_light: bool = False
    is_among_retiring: bool = False
    is_among_heavy: bool = False
    is_never_light: bool = False
    is_among_removable: bool = False
    is_idle_light: bool = False
    is_full_heavy: bool = False
    removable_bucket: int = 0
    retiring_bucket: int = 0
    counted_coming: int = 0
    express_bucket: int = 0
    bucket: int = 0
    placed: int = 0  # orders replicas of the same bucket
    free: int = 0
    counted_replicas: int = 0
    counted_seats: int = 0
    counted_emptying: int = 0

    @property
    def limit(self) -> int:
        """How many streams it may carry now."""
        if not self.light:
            return self.replica.seats
        limit = self.light_seats
        for floor_tps in self.express:
            limit = min(limit, self.caps[floor_tps])
        return limit

    def has_room_for(self, call: Call, floor_tps: float, now: float) -> bool:
        """Whether an express call can board so that its floor and those of the streams aboard are kept."""
        if call.choices > self.free or self.load + call.choices > self.caps[floor_tps]:
            return False
        return self.can_take(call, now, floor_tps)

    def can_take(self, call: Call, now: float, floor_tps: float = 0.0) -> bool:
        """Whether it has the memory for the call, and the time to read its prompt and then its context in each step.
        Seats are not checked."""
        return self.has_memory_for(call) and self._keeps_floors_with(call, floor_tps) and self._has_time_for(call, now)

    def has_memory_for(self, call: Call) -> bool:
        """Whether the call's prompt and answers are expected to fit beside those aboard. An engine whose memory is full
        stops streams and computes them again later. An empty replica takes any call."""
        budget = self.replica.kv_tokens
        return not budget or not self.aboard or self.kv_taken + self._kv_tokens(call) <= budget

    def _kv_tokens(self, call: Call) -> int:
        return call.prompt_tokens + call.choices * round(self.pace.answer_tokens)

    def _context(self, call: Call) -> int:
        """Choices share the memory of their prompt, but each of them reads it. A long answer is aboard for longer than
        a short one, so the streams aboard have generated about a mean answer, not half of one."""
        return call.choices * (call.prompt_tokens + round(self.pace.answer_tokens))

    def _keeps_floors_with(self, call: Call, floor_tps: float) -> bool:
        """Whether the call's floor and those aboard are kept with the call's context, by the curve. A light replica
        without floors aboard stays quick enough for the loosest one. An empty replica takes any call without a floor.
        """
        curve = self.replica.curve
        if curve is None or not curve.e:
            return True
        if floor_tps:
            longest_s = self.longest_s[floor_tps]
        elif self.aboard:
            longest_s = max(self.longest_s.values(), default=inf)
        else:
            return True
        for floor in self.express:
            longest_s = min(longest_s, self.longest_s[floor])
        return curve.seconds_per_token(self.load + call.choices, self.context + self._context(call)) <= longest_s

    def _has_time_for(self, call: Call, now: float) -> bool:
        """Whether the streams aboard keep their floors while the call's prompt is read."""
        if not self.express_seats or not self.replica.prompt_tps:
            return True
        prompt_s = self._prompt_s(call)
        return prompt_s <= max(0.0, self.slack_s(now, enough_s=prompt_s))

    def slack_s(self, now: float, enough_s: float = -inf) -> float:
        """By how many seconds the slowest express stream aboard is ahead of its floor; if that is less than `enough_s`,
        any number that is less.

        While an engine reads a prompt, no stream gets tokens; the total delay is the same if the prompt is read in
        chunks. So this is how long the prompts of calls that board now may take."""
        self.advance(now)
        slack_s = inf
        for stream in self.aboard.values():
            if stream.floor_tps:
                slack_s = min(slack_s, self._ahead_s(stream, now))
                if slack_s < enough_s:
                    break
        return slack_s

    def _ahead_s(self, stream: Stream, now: float) -> float:
        """By how many seconds the stream is ahead of its floor."""
        delay_s = self.read_s - stream.boarded_read_s  # by calls that boarded later
        decoding_s = now - stream.first_at - max(0.0, delay_s - max(0.0, self.read_until - now))
        if decoding_s <= 0.0:
            return -delay_s
        given = (self.given - stream.boarded_given) / self.feedback.slowness
        return decoding_s * (given / (now - stream.boarded_at) / stream.floor_tps - 1.0) - delay_s

    def can_pause(self, call_id: str, pause_s: float, now: float) -> bool:
        """Whether a stream with a floor keeps it even if it pauses for so long, and for as long as its tokens are read
        again."""
        self.advance(now)
        read_s = self.read_again(call_id, now) / self.replica.prompt_tps if self.replica.prompt_tps else 0.0
        return self._ahead_s(self.aboard[call_id], now) >= pause_s + read_s

    def cost_s(self, call: Call, now: float) -> float:
        """What it costs if the call boards now. In how many seconds it would be answered: the prompts before it and its
        own are read, and an answer of mean length comes at the speed of a batch with it. Its own prompt counts several
        times: reading it also delays the streams aboard, and what is kept of it takes the room of other prompts."""
        waiting_s, curve = max(0.0, self.read_until - now), self.replica.curve
        prompt_s = READING_COUNTS * self._prompt_s(call)
        if curve is None:
            return waiting_s + prompt_s
        step_s = curve.seconds_per_token(self.load + call.choices, self.context + self._context(call))
        return waiting_s + prompt_s + self.pace.answer_tokens * step_s

    def _prompt_s(self, call: Call) -> float:
        """How long the engine reads what it is not expected to have in its cache."""
        if not self.replica.prompt_tps:
            return 0.0
        return (call.prompt_tokens - self.prefixes.cached_tokens(call)) / self.replica.prompt_tps

    def board(self, call: Call, floor_tps: float, now: float, *, is_read: bool = False) -> None:
        """`is_read`: the engine has read its prompt already, for another core."""
        self.advance(now)
        prompt_s = 0.0 if is_read else self._prompt_s(call)
        self.read_s += prompt_s
        if not is_read and self.replica.prompt_tps:
            self.most_read_s += call.prompt_tokens / self.replica.prompt_tps
        self.read_until = max(self.read_until, now) + prompt_s
        taken = self.time.taken(express=floor_tps > 0.0)
        kv_tokens, context = self._kv_tokens(call), self._context(call)
        self.aboard[call.id] = Stream(
            call,
            floor_tps,
            now,
            self.given,
            taken,
            self.read_until,
            self.read_s,
            self.most_read_s,
            kv_tokens,
            context,
            not is_read,
        )
        self.load += call.choices
        self.kv_taken += kv_tokens
        self.context += context
        if floor_tps:
            self.express[floor_tps] = self.express.get(floor_tps, 0) + call.choices
            self.express_seats += call.choices
        may_move = call.is_continuable and call.moves < MAX_MOVES
        if may_move:
            (self.movable_express if floor_tps else self.movable)[call.id] = call.choices
        if call.tier == "flex" and (may_move or not (call.is_continuable or call.moves)):
            self.flex[call.id] = call.choices

    def stays(self, call_id: str) -> None:
        """The call can no longer be preempted."""
        self.flex.pop(call_id, None)
        self.movable.pop(call_id, None)
        self.movable_express.pop(call_id, None)

    def take_off(self, call_id: str) -> Stream:
        """The call is being preempted."""
        stream = self.aboard[call_id]
        self.stays(call_id)
        self.leaving[call_id] = stream.call.choices
        self.leaving_seats += stream.call.choices
        return stream

    @property
    def staying(self) -> int:
        """Seats taken by calls that are not being preempted."""
        return self.load - self.leaving_seats

    def leave(self, call_id: str, now: float) -> tuple[Stream, int]:
        """Remove the stream. Returns it and its seat-time in microseconds."""
        self.advance(now)
        stream = self.aboard.pop(call_id)
        floor_tps, seats = stream.floor_tps, stream.call.choices
        is_last = not self.aboard
        seat_us = self.time.charge(stream.boarded_taken, seats, express=floor_tps > 0.0, is_last=is_last)
        self.load -= seats
        self.kv_taken -= stream.kv_tokens
        self.context -= stream.context
        self.stays(call_id)
        self.leaving_seats -= self.leaving.pop(call_id, 0)
        if floor_tps:
            self.express_seats -= seats
            self.express[floor_tps] -= seats
            if not self.express[floor_tps]:
                del self.express[floor_tps]
        return stream, seat_us

    def tokens_given(self, call_id: str, now: float) -> int:
        """The tokens that the curve predicts for all choices of a call aboard, until now."""
        self.advance(now)
        stream = self.aboard[call_id]
        return int((self.given - stream.boarded_given) * stream.call.choices)

    def seat_s(self, call_id: str, now: float) -> float:
        """How long the call has taken its seats, added up."""
        stream = self.aboard[call_id]
        return (now - stream.boarded_at) * stream.call.choices

    def read_again(self, call_id: str, now: float) -> float:
        """The tokens that the next replica would read if the call moved: its prompt, and its answer until now."""
        return self.aboard[call_id].call.prompt_tokens + self.tokens_given(call_id, now)

    def slowness_of(self, stream: Stream, speed_tps: float, now: float) -> float:
        """How many times as long as the curve predicts the stream took for each token; 0 if there is no prediction, as
        for a stream of which only the end was seen: its speed is of its whole life.

        Prompts that were read meanwhile delayed it; that is no slowness of the replica. Whether they were in the
        engine's cache is not certain, whatever was expected. So they explain at most what exceeds the prediction."""
        given, decoding_s = self.given - stream.boarded_given, now - stream.first_at
        if given <= 0 or decoding_s <= 0.0 or not stream.is_seen_whole:
            return 0.0
        slowness = given / (now - stream.boarded_at) / speed_tps
        read_share = min(1.0, (self.most_read_s - stream.boarded_most_read_s) / decoding_s)
        return max(min(slowness, 1.0), slowness * (1.0 - read_share))

    def change(self, replica: Replica, now: float) -> None:
        """The replica has other seats, another curve or another `prompt_tps` from now on."""
        self.advance(now)
        self.replica = replica
        self.time.seats = replica.seats

    def advance(self, now: float) -> None:
        """Count the time until now with the current state. Call this before every change of the streams aboard, of
        light or heavy, and of the replica's settings."""
        if now == self.given_at:
            return  # one step asks for this several times
        express = self.express_seats
        self.time.advance(now, express=express, others=self.load - self.strangers - express, light=self.light)
        if self.load and self.replica.curve is not None:
            self.given += (now - self.given_at) / self.replica.curve.seconds_per_token(self.load, self.context)
        self.given_at = now
