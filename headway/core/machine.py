"""The machine takes one event and returns the actions that follow from it.

Rule 1: the state of a call changes only here, in `step`.
Rule 2: nothing here reads a clock, waits or does I/O. The live gateway and the simulator are two drivers of this class,
so the simulator runs the code that serves, and replaying a recorded run gives the same actions.

pool.py decides which call boards which replica; the machine applies these decisions.

Invariants, verified by `check`:
- every call that arrives ends exactly once: finished, refused, or left;
- until then it either has seats on one replica or is held by its pool, never both (a call that was cut has lost its
  seats, and has neither until the driver reports Failed or Left);
- only such calls have seats, so no seat is lost;
- the invariants of each pool (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import Any

from headway.core.boarding import board_held
from headway.core.invariants import check_calls, check_pool
from headway.core.journey import Journey
from headway.core.learnt import Learnt, within
from headway.core.overflow import LACKS_SEATS, overflow_held, overflow_pool, pool_aboard, seat_in_overflow
from headway.core.pool import Pool
from headway.core.pools import ToldOfReplica, change_pools, learnt_of_pools, tell_pool
from headway.core.rate_limit import RateLimiter
from headway.core.types import (
    EXPRESS,
    Action,
    Adopted,
    Arrived,
    Board,
    Call,
    Cut,
    Delivering,
    Downgrade,
    Draining,
    Event,
    Failed,
    Finished,
    Hold,
    Left,
    Offer,
    PolicyChanged,
    PoolPolicy,
    Preempt,
    Refuse,
    Remembered,
    ReplicaBehind,
    ReplicaCacheLost,
    ReplicaChanged,
    ReplicaDown,
    ReplicaDraining,
    ReplicaKnown,
    ReplicaRecovered,
    ReplicaRemoved,
    ReplicaStrangers,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
)
from headway.errors import RefusalReason


class Machine:
    def __init__(self, pools: dict[str, PoolPolicy], offers: dict[str, Offer]) -> None:
        """`offers` are by model. If each model has its own pool, types.own_pools creates both arguments."""
        self.pools: dict[str, Pool] = {}
        self._offers: dict[str, Offer] = {}  # by model
        self._pool_of_replica: dict[str, Pool] = {}
        self._journeys: dict[str, Journey] = {}
        self._draining = False
        self._rate_limiter = RateLimiter()
        self._set_policy(pools, offers, 0.0)
        self._handlers: dict[type, Callable[[Any, float, list[Action]], None]] = {
            Arrived: self._arrived,
            Adopted: self._adopted,
            Delivering: self._delivering,
            Finished: self._finished,
            Failed: self._failed,
            Left: self._left,
            ReplicaUp: self._replica_up,
            ReplicaKnown: self._replica_known,
            ReplicaStrangers: self._replica_told,
            ReplicaChanged: self._replica_changed,
            ReplicaCacheLost: self._replica_told,
            ReplicaSuspect: self._replica_told,
            ReplicaBehind: self._replica_told,
            ReplicaRecovered: self._replica_told,
            ReplicaDraining: self._replica_told,
            ReplicaDown: self._replica_gone,
            ReplicaRemoved: self._replica_gone,
            Remembered: self._remembered,
            PolicyChanged: self._policy_changed,
            Ticked: self._ticked,
            Draining: self._drain,
        }

    def step(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        self._handlers[type(event)](event, now, actions)
        return actions

    def check(self, now: float) -> None:
        """Raise AssertionError with a message if an invariant does not hold. For tests and debugging: it looks at every
        call and replica. Call it between two steps, and only if the driver ticks at every deadline."""
        for pool in self.pools.values():
            check_pool(pool, now)
            check_calls(pool, [journey for journey in self._journeys.values() if journey.pool is pool])

    def offers(self, call: Call) -> bool:
        """Whether new calls to this model, at this tier, are served."""
        offer = self._offers.get(call.model)
        return offer is not None and call.tier in offer.tiers

    def replica_of(self, call_id: str) -> str | None:
        """The replica that the call is aboard; None if it is held, or has ended."""
        journey = self._journeys.get(call_id)
        return journey.replica if journey is not None else None

    def pool_of(self, model: str) -> Pool:
        return self.pools[self._offers[model].pool]

    @property
    def calls(self) -> int:
        """The number of calls that have arrived and not ended."""
        return len(self._journeys)

    def next_deadline(self) -> float:
        """When the first of the held calls has waited for too long: time for a Ticked."""
        return min([pool.waiting.next_deadline() for pool in self.pools.values()], default=inf)

    def learnt(self, now: float) -> Learnt:
        """What the core that follows this one should know beside calls and replicas."""
        return Learnt(learnt_of_pools(self.pools, now), self._rate_limiter.learnt(now))

    # --- calls ---

    def _arrived(self, event: Arrived, now: float, actions: list[Action]) -> None:
        call = event.call
        if not self.offers(call):  # whoever sent it has the policy before
            actions.append(Refuse(call.id, "not_offered", 1))
            return
        pool = self.pool_of(call.model)
        journey = self._journeys[call.id] = Journey(call, pool, now)
        if self._draining or not (pool.known_replicas or overflow_pool(journey, self.pools)):
            self._refuse(journey, "draining" if self._draining else "no_replica", now, actions)
            return
        if call.choices > 1 and not pool.could_seat(call):
            if not journey.falls_back:
                self._refuse(journey, "too_many_choices", now, actions)
                return
            self._downgrade(journey, "too_many_choices", now, actions)
        if journey.count_request(self._rate_limiter, now):
            self._board_or_hold(journey, now, actions, returned=False)
        else:
            self._refuse_or_downgrade(journey, "over_limit", now, actions)
        if call.tier in EXPRESS:
            self._settle(pool, now, actions)

    def _adopted(self, event: Adopted, now: float, actions: list[Action]) -> None:
        """Seats and promises were given by another core, so no limit is checked here. A call that the policy does not
        offer, and that is not known, is a stranger."""
        call, journey = event.call, self._journeys.get(event.call.id)
        if journey is None and not self.offers(call):
            return
        if journey is None:
            journey = self._journeys[call.id] = Journey(call, self.pool_of(call.model), now)
        elif journey.replica == event.replica and journey.call.tier == call.tier:
            return
        else:
            journey.give_back(now)
        journey.adopt(call, event.replica, event.waited_s, now, is_delivering=event.is_delivering)
        journey.reason = event.reason
        pool = journey.pool = pool_aboard(journey, self.pools)
        journey.count_express(now)
        if event.replica is None:
            hold_s = journey.hold(now, returned=bool(journey.avoid), waited_s=event.waited_s)
            actions.append(Hold(call.id, hold_s))
        elif not pool.adopt(journey.call, event.replica, now, is_delivering=event.is_delivering):
            actions.append(Cut(call.id))
        elif event.is_delivering and not call.is_continuable:
            pool.stays(call.id, event.replica, now)
        self._settle(pool, now, actions)

    def _delivering(self, event: Delivering, now: float, _actions: list[Action]) -> None:
        journey = self._journeys.get(event.call_id)
        if journey is not None:
            if journey.call.is_continuable:
                journey.call = replace(journey.call, is_continuable=False)
            if journey.replica is not None:
                journey.pool.stays(event.call_id, journey.replica, now)

    def _finished(self, event: Finished, now: float, actions: list[Action]) -> None:
        journey = self._journeys.get(event.call_id)
        if journey is not None and journey.replica is not None:
            journey.learn_pace(event.output_tokens, now)
        self._end(event.call_id, (event.prompt_tokens, event.output_tokens), now, actions, speed_tps=event.speed_tps)

    def _left(self, event: Left, now: float, actions: list[Action]) -> None:
        journey = self._journeys.get(event.call_id)
        output_tokens, estimated_tokens = journey.tokens_left(event, now) if journey is not None else (0, 0)
        tokens = (event.prompt_tokens, output_tokens)
        self._end(event.call_id, tokens, now, actions, estimated_tokens=estimated_tokens)

    def _failed(self, event: Failed, now: float, actions: list[Action]) -> None:
        journey = self._journeys.get(event.call_id)
        if journey is None or journey.replica is None:
            return
        failed = journey.lose_engine(event, now)
        pool = journey.pool
        if event.stage in ("preempted", "unsent"):
            waited_s = now - journey.arrived_at if event.stage == "unsent" else 0.0  # then it has only waited
            # A flex call that has not begun waits as it did before.
            is_returned = event.stage == "preempted" and journey.call.tier != "flex"
            actions.append(Hold(event.call_id, journey.hold(now, returned=is_returned, waited_s=waited_s)))
            self._settle(pool, now, actions)
            return
        if (reason := journey.refused_after(event.stage, failed)) is not None:
            self._refuse(journey, reason, now, actions)
        else:
            self._board_or_hold(journey, now, actions, returned=True)
        self._settle(pool, now, actions)

    # --- replicas ---

    def _replica_up(self, event: ReplicaUp, now: float, actions: list[Action]) -> None:
        name, pool = event.replica.name, self.pools[event.replica.pool]
        if self._pool_of_replica.get(name, pool) is not pool:  # the engine was restarted with other weights
            self._replica_gone(ReplicaRemoved(name), now, actions)
        self._pool_of_replica[name] = pool
        pool.replica_up(event.replica, now)
        for held in (held for calls in pool.waiting.all_returned() for held in calls):
            self._journeys[held.call.id].avoid.discard(name)
        self._settle(pool, now, actions)

    def _replica_known(self, event: ReplicaKnown, now: float, _actions: list[Action]) -> None:
        if event.replica.name not in self._pool_of_replica:
            pool = self._pool_of_replica[event.replica.name] = self.pools[event.replica.pool]
            pool.replica_known(event.replica, now)

    def _replica_changed(self, event: ReplicaChanged, now: float, actions: list[Action]) -> None:
        pool = self.pools[event.replica.pool]
        if self._pool_of_replica.get(event.replica.name) is pool:
            pool.replica_changed(event.replica, now)
            self._settle(pool, now, actions)

    def _replica_told(self, event: ToldOfReplica, now: float, actions: list[Action]) -> None:
        if (pool := self._pool_of_replica.get(event.name)) is None:
            return
        self._preempt(tell_pool(pool, event, now), actions)
        self._settle(pool, now, actions)  # another replica may become light in its place

    def _replica_gone(self, event: ReplicaDown | ReplicaRemoved, now: float, actions: list[Action]) -> None:
        if (pool := self._pool_of_replica.pop(event.name, None)) is not None:
            for call_id, seat_us in pool.replica_gone(event.name, now):
                self._journeys[call_id].seat_us += seat_us
                actions.append(Cut(call_id))
            self._settle(pool, now, actions)

    # --- another policy, what another core has learnt, time and shutdown ---

    def _policy_changed(self, event: PolicyChanged, now: float, actions: list[Action]) -> None:
        self._set_policy(event.pools, event.offers, now)
        for pool in self.pools.values():
            self._settle(pool, now, actions)

    def _set_policy(self, pools: dict[str, PoolPolicy], offers: dict[str, Offer], now: float) -> None:
        journeys = self._journeys.values()
        in_use = [(pool, one.call.model, one.call.tier) for one in journeys for pool in {one.home, one.pool}]
        change_pools(self.pools, pools, offers, in_use, now)
        self._offers = offers

    def _remembered(self, event: Remembered, now: float, actions: list[Action]) -> None:
        age_s = within(event.age_s, 0.0)
        self._rate_limiter.recall(event.learnt.buckets, age_s, now)
        for learnt in event.learnt.pools:
            if (pool := self.pools.get(learnt.name)) is not None:
                pool.recall(learnt, age_s, now)
        for pool in self.pools.values():
            self._settle(pool, now, actions)

    def _ticked(self, _event: Ticked, now: float, actions: list[Action]) -> None:
        for pool in self.pools.values():
            for call in pool.waiting.expired(now):
                reason: RefusalReason = "hold_timeout" if pool.open_replicas else "no_replica"
                journey = self._journeys[call.id]
                if journey.has_begun:
                    self._end_pause(journey, reason, now, actions)
                    continue
                if call.tier in EXPRESS:
                    pool.express_waited(now - journey.arrived_at, now)
                self._refuse_or_downgrade(journey, reason, now, actions)
            self._settle(pool, now, actions)
            overflown = overflow_held(pool, self._journeys, self.pools, now)
            actions.extend(self._board(journey, now) for journey in overflown)

    def _drain(self, _event: Draining, _now: float, _actions: list[Action]) -> None:
        self._draining = True

    # --- what the handlers share ---

    def _board_or_hold(self, journey: Journey, now: float, actions: list[Action], *, returned: bool) -> None:
        pool, call = journey.pool, journey.call
        journey.count_express(now)
        # A new call can pass only held calls that do not fit here: a held call that fits would have boarded already.
        journey.replica = pool.seat(call, journey.avoid, now)
        if journey.replica is not None or seat_in_overflow(journey, self.pools, now, is_refused=False):
            actions.append(self._board(journey, now))
        elif pool.waiting.is_full(call) and not returned:
            self._refuse_or_downgrade(journey, "full", now, actions)
        else:
            actions.append(Hold(call.id, journey.hold(now, returned=returned)))

    def _board(self, journey: Journey, now: float) -> Board:
        call, replica = journey.call, journey.replica
        assert replica is not None
        journey.boarded_at = now
        floor_tps = journey.pool.floor_tps(call.model, call.tier)
        if floor_tps and not journey.seat_us:
            journey.pool.express_waited(now - journey.arrived_at, now)
        return Board(call.id, replica, call.tier, floor_tps, journey.reason, journey.rate_limit)

    def _settle(self, pool: Pool, now: float, actions: list[Action]) -> None:
        """Set the doors, then board and preempt calls. Needed after any change of the free seats or of the demand."""
        pool.set_doors(now)
        for call, replica in board_held(pool, now):
            journey = self._journeys[call.id]
            journey.replica = replica
            actions.append(self._board(journey, now))
        self._preempt(pool.preempt(now), actions)

    def _preempt(self, call_ids: Iterable[str], actions: list[Action]) -> None:
        for call_id in call_ids:
            journey = self._journeys[call_id]
            journey.is_leaving = True
            journey.call = replace(journey.call, moves=journey.call.moves + 1)  # set now: its replica may fail first
            actions.append(Preempt(call_id))

    def _refuse_or_downgrade(self, journey: Journey, reason: RefusalReason, now: float, actions: list[Action]) -> None:
        if reason in LACKS_SEATS and seat_in_overflow(journey, self.pools, now, is_refused=True):
            actions.append(self._board(journey, now))
            return
        if not journey.falls_back:
            self._refuse(journey, reason, now, actions)
            return
        self._downgrade(journey, reason, now, actions)
        # A call that must avoid a replica waits outside the queue, so that it does not delay the calls behind it.
        self._board_or_hold(journey, now, actions, returned=bool(journey.avoid))

    def _end_pause(self, journey: Journey, reason: RefusalReason, now: float, actions: list[Action]) -> None:
        """A stream that has begun found no seat in time. If it had a floor it may take any seat, but only at once."""
        if journey.call.tier in EXPRESS:
            self._downgrade(journey, reason, now, actions)
        journey.replica = journey.pool.seat(journey.call, journey.avoid, now)
        if journey.replica is not None:
            actions.append(self._board(journey, now))
        else:
            self._refuse(journey, reason, now, actions)

    def _downgrade(self, journey: Journey, reason: RefusalReason, now: float, actions: list[Action]) -> None:
        journey.uncount_express(now)
        journey.call = replace(journey.call, tier="standard", falls_back=False)
        journey.reason, journey.rate_limit = reason, None
        actions.append(Downgrade(journey.call.id, reason))

    def _refuse(self, journey: Journey, reason: RefusalReason, now: float, actions: list[Action]) -> None:
        journey.uncount_express(now)
        del self._journeys[journey.call.id]
        retry_after_s = journey.pool.waiting.retry_after_s(journey.call.tier)
        if reason == "over_limit" and journey.rate_limit is not None:
            retry_after_s = journey.rate_limit.retry_after_s
        actions.append(Refuse(journey.call.id, reason, retry_after_s, journey.rate_limit, journey.seat_us))

    def _end(
        self,
        call_id: str,
        tokens: tuple[int, int],
        now: float,
        actions: list[Action],
        *,
        speed_tps: float | None = None,
        estimated_tokens: int = 0,
    ) -> None:
        """`tokens` are of the prompt and of the answer."""
        journey = self._journeys.pop(call_id, None)
        if journey is None:
            return  # it has ended already: a driver may report the end twice
        journey.pool.waiting.charge(journey.call, sum(tokens))
        if (bucket := journey.bucket) is not None:
            self._rate_limiter.spend(*bucket, now, input=tokens[0], output=tokens[1])
        journey.give_back(now, speed_tps)
        actions.append(Settled(call_id, journey.seat_us, estimated_tokens))
        self._settle(journey.pool, now, actions)
