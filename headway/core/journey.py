"""Where a call is: aboard a replica or held, and what it has used of its pool.

A stream that has begun and lost its engine is *paused* until it boards another one. It pauses for MAX_PAUSE_S at most
since its last token, however many engines fail it meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from headway.core.pool import Pool
from headway.core.rate_limit import RateLimit, RateLimiter, TokenLimit
from headway.core.types import EXPRESS, MAX_MOVES, MAX_PAUSE_S, Call, Failed, Left, Stage
from headway.errors import RefusalReason

# A call is refused after so many engines accepted it and failed: one that crashes engines must not crash all of them.
MAX_ENGINES_REACHED = 2


class Journey:
    """Aboard `replica`, or held if that is None.

    Not a dataclass: the __init__ of a compiled dataclass is interpreted, and a journey is made for every call."""

    def __init__(self, call: Call, pool: Pool, arrived_at: float) -> None:
        self.call = call
        self.home = pool  # of its model
        self.pool = pool  # where it has its seats, or waits: at home, unless it has overflowed
        self.arrived_at = arrived_at
        self.replica: str | None = None
        self.boarded_at = arrived_at  # the last time
        self.is_leaving = False  # it is being taken off its replica
        self.prompt_tokens = call.prompt_tokens  # as they came; those of `call` include what was delivered since
        self.output_tokens = 0  # delivered when it lost its last engine
        self.paused_at: float | None = None  # when it lost the engine that gave its last token; None if it never did
        self.seat_s = 0.0  # its time in seats of replicas that it has left after it had begun
        self.avoid: set[str] = set()  # replicas that failed this call and have not come up again since
        self.engines_reached = 0
        self.counted = False  # in the reserve, as an express call that is present
        self.seat_us = 0  # from the replicas that it has left
        self.reason: RefusalReason | None = None  # why it was downgraded
        self.rate_limit: RateLimit | None = None  # what its tenant had left when it arrived, this request counted

    @property
    def falls_back(self) -> bool:
        """Whether the call may be served as standard, and some replica could carry all its choices then."""
        return self.call.may_fall_back and self.pool.could_seat(replace(self.call, tier="standard"))

    @property
    def bucket(self) -> tuple[str, TokenLimit] | None:
        """The key and the limit of the bucket that the call uses; None if there is no limit. An API key with its own
        limits has one bucket for the express tiers and one for the others, whatever the model. Otherwise each tier of
        each model has its own bucket."""
        call = self.call
        own = call.express_limit if call.tier in EXPRESS else call.other_limit
        if own is not None:
            return f"{call.tenant} {'express' if call.tier in EXPRESS else 'other'}", own
        limit = self.pool.offers[call.model].tiers[call.tier].limit
        return None if limit.is_none else (f"{call.tenant} {call.tier} {call.model}", limit)

    def count_request(self, limiter: RateLimiter, now: float) -> bool:
        """Count the request against its tenant's limit, unless that is used up. Returns whether it was counted."""
        if (bucket := self.bucket) is None:
            return True
        self.rate_limit = limiter.of(*bucket, now)
        if self.rate_limit is not None and self.rate_limit.is_used_up:
            return False
        limiter.spend(*bucket, now, requests=1)
        self.rate_limit = limiter.of(*bucket, now)
        return True

    @property
    def has_begun(self) -> bool:
        """Whether core knows that part of the answer was delivered: the call lost an engine after that."""
        return self.paused_at is not None

    def adopt(self, call: Call, replica: str | None, waited_s: float, now: float, *, is_delivering: bool) -> None:
        """A driver says what the call is and where."""
        self.prompt_tokens = call.prompt_tokens
        self.call = replace(call, prompt_tokens=call.prompt_tokens + self.output_tokens)
        self.replica, self.boarded_at, self.is_leaving = replica, now, False
        self.arrived_at = now - waited_s
        if replica is None and is_delivering and self.paused_at is None:
            self.paused_at = now - waited_s

    def lose_engine(self, event: Failed, now: float) -> str:
        """Free the seats of the call; it waits at home from now on. Returns the replica that it has lost."""
        assert self.replica is not None
        lost, self.replica = self.replica, None
        self.seat_us += self.pool.free(self.call.id, lost, now)
        self.pool = self.home
        if event.stage == "streaming" or event.output_tokens:
            if self.paused_at is None or event.output_tokens > self.output_tokens:
                self.paused_at = now
            self.output_tokens = event.output_tokens
            self.seat_s += (now - self.boarded_at) * self.call.choices
            self.call = replace(self.call, prompt_tokens=self.prompt_tokens + self.output_tokens)
        is_loss = event.stage in ("streaming", "waiting") and self.has_begun
        if is_loss and not self.is_leaving:  # that was counted when it was to leave
            self.call = replace(self.call, moves=self.call.moves + 1)
        self.is_leaving = False
        return lost

    def refused_after(self, stage: Stage, failed: str) -> RefusalReason | None:
        """Why the call goes to no other engine after this one failed it; None if it does."""
        self.avoid.add(failed)
        self.engines_reached += stage == "waiting"
        if self.engines_reached >= MAX_ENGINES_REACHED or self.call.moves > MAX_MOVES:
            return "engine_failed"
        is_full = stage == "full" and not self.has_begun and not self.pool.is_any_open(self.avoid)
        return "engine_full" if is_full else None

    def hold(self, now: float, *, returned: bool, waited_s: float = 0.0) -> float:
        """Hold the call, which has waited for so long already. Returns for how much longer it may be held."""
        if self.paused_at is not None:
            hold_s = max(0.0, MAX_PAUSE_S - (now - self.paused_at))
        else:
            hold_s = max(0.0, self.pool.waiting.max_hold_s(self.call) - waited_s)
        self.pool.waiting.hold(self.call, now + hold_s, self.avoid, returned=returned or self.has_begun)
        return hold_s

    def give_back(self, now: float, speed_tps: float | None = None) -> None:
        """Give back the call's seats, or its place among the held calls. `speed_tps` is of its stream, if known. The
        speed of a stream that was moved says nothing about its replica: it includes the pause."""
        if self.replica is None:
            self.pool.waiting.drop(self.call)
        else:
            speed_tps = None if self.call.moves else speed_tps
            self.seat_us += self.pool.free(self.call.id, self.replica, now, speed_tps, has_ended=True)
        self.uncount_express(now)

    # --- how much the call was given ---

    def learn_pace(self, output_tokens: int, now: float) -> None:
        """The call was served to its end, aboard."""
        assert self.replica is not None
        self.pool.pace.learn(output_tokens, self.call.choices, self._seat_s(now))
        self.pool.answer_seen(self.replica, now)

    def tokens_left(self, event: Left, now: float) -> tuple[int, int]:
        """The output tokens of a call that is left, and how many of them are an estimate.

        In the fair queue such a call costs its tenant at least its time aboard. Else a client that always leaves would
        take more of the seats than others: while its prompts are read, and until engines notice."""
        output_tokens, estimated_tokens = event.output_tokens, 0
        if self.replica is not None:
            if output_tokens is None:
                estimated_tokens = self.pool.tokens_given(self.call.id, self.replica, now)
                if event.max_output_tokens is not None:
                    estimated_tokens = min(estimated_tokens, event.max_output_tokens)
                output_tokens = estimated_tokens
            in_that_time = self.pool.pace.tokens(self._seat_s(now))
            self.pool.waiting.charge(self.call, max(0, in_that_time - output_tokens))
        return output_tokens or 0, estimated_tokens

    def _seat_s(self, now: float) -> float:
        """How long the call has taken its seats, added up, on all replicas that gave part of its answer."""
        return self.seat_s + (now - self.boarded_at) * self.call.choices

    def count_express(self, now: float) -> None:
        """The call is present from now on, if it has a floor."""
        if self.call.tier in EXPRESS and not self.counted:
            self.counted = True
            self.pool.express_present(self.call.choices, now)

    def uncount_express(self, now: float) -> None:
        if self.counted:
            self.counted = False
            self.pool.express_present(-self.call.choices, now)
