"""Random walks over core: any events in any order, and after each of them everything that must be true."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from headway.core.boarding import RETURNED, SET_ASIDE, TRIED_AGAIN
from headway.core.curve import Curve
from headway.core.learnt import (
    Learnt,
    LearntBucket,
    LearntCaps,
    LearntPace,
    LearntPool,
    LearntQueue,
    LearntReplica,
    LearntReserve,
    LearntTenant,
    LearntWaiting,
)
from headway.core.machine import Machine
from headway.core.pool import Pool
from headway.core.types import (
    EXPRESS,
    MAX_MOVES,
    MAX_PAUSE_S,
    TIERS,
    Adopted,
    Arrived,
    Board,
    Call,
    Cut,
    Delivering,
    Downgrade,
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
    Replica,
    ReplicaBehind,
    ReplicaCacheLost,
    ReplicaChanged,
    ReplicaDown,
    ReplicaDraining,
    ReplicaRecovered,
    ReplicaRemoved,
    ReplicaStrangers,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Stage,
    Ticked,
    Tier,
    TierPolicy,
)

NAMES = ["r0", "r1", "r2", "r3"]
CURVE = Curve(a=0.005, c=0.005, d=0.0)
CURVES = [CURVE, CURVE, CURVE.slower(2.0), Curve(a=0.005, c=0.002, d=0.0, e=2e-6), None]
# Two models on one pool, with other floors and another patience. One of them has an overflow pool, with one server.
OVERFLOW = "h0"
OFFERS: dict[str, Offer] = {
    "m": Offer(
        "p",
        {
            "ultrafast": TierPolicy(4, 2.0, floor_tps=60.0),
            "fast": TierPolicy(12, 4.0, floor_tps=30.0),
            "standard": TierPolicy(12, 8.0, overflow_after_s=1.0),
            "flex": TierPolicy(4, 16.0, overflow_after_s=0.0),
        },
        overflow="o",
    ),
    "n": Offer(
        "p",
        {
            "ultrafast": TierPolicy(2, 6.0, floor_tps=50.0),
            "fast": TierPolicy(2, 1.0, floor_tps=45.0, target_tps=55.0),
            "standard": TierPolicy(2, 3.0),
            "flex": TierPolicy(2, 30.0),
        },
    ),
}
N = OFFERS["n"]
# What the owner may change them to: other floors and limits, tiers and models that come and go, a pool without replicas.
CHANGED_OFFERS: list[dict[str, Offer]] = [
    OFFERS,
    OFFERS,
    {"m": OFFERS["m"]},
    {"m": Offer("p", {tier: OFFERS["m"].tiers[tier] for tier in ("standard", "fast")}), "n": N},
    {"m": Offer("p", {"standard": TierPolicy(1, 1.0), "flex": TierPolicy(1, 2.0)}), "n": N},
    {"m": Offer("p", {"standard": TierPolicy(1, 1.0)})},
    {"m": OFFERS["m"], "n": Offer("p", N.tiers | {"fast": TierPolicy(3, 2.0, floor_tps=35.0)})},
    {"m": OFFERS["m"], "n": Offer("q", N.tiers)},
    {"n": Offer("q", {"standard": TierPolicy(1, 1.0)})},
]
# What another core may say that it has learnt: any numbers, of replicas, pools and tenants that are known or not.
LEARNT = st.builds(
    Learnt,
    pools=st.lists(
        st.builds(
            LearntPool,
            name=st.sampled_from("pq"),
            pace=st.builds(LearntPace, st.floats(), st.floats(), st.floats()),
            caps=st.builds(
                LearntCaps,
                width=st.floats(),
                square=st.floats(),
                streams=st.integers(),
                caps_share=st.floats(),
                replicas=st.lists(
                    st.builds(
                        LearntReplica,
                        name=st.sampled_from([*NAMES, "unknown"]),
                        curve_s=st.sampled_from([one.seconds_per_token(1, 1) for one in CURVES if one is not None]),
                        mean=st.floats(),
                        caps_slowness=st.floats(),
                        retry_in_s=st.none() | st.floats(),
                    ),
                    max_size=5,
                ),
            ),
            reserve=st.from_type(LearntReserve),
            waiting=st.builds(
                LearntWaiting,
                freed_each_s=st.floats(),
                since_freed_s=st.none() | st.floats(),
                queues=st.lists(
                    st.builds(
                        LearntQueue,
                        tier=st.sampled_from([*TIERS, "unknown"]),
                        tenants=st.lists(st.builds(LearntTenant, st.sampled_from("abc"), st.floats()), max_size=3),
                    ),
                    max_size=3,
                ),
            ),
        ),
        max_size=2,
    ),
    buckets=st.lists(st.from_type(LearntBucket), max_size=2),
)
# Two conversations with the same beginning, and what is in no prompt.
PREFIXES = [(), (1,), (1, 2), (1, 2, 3, 4), (1, 2, 7, 8, 9), (2**63 - 1,)]
# CI walks about 50,000 steps; `make nightly` sets this to walk a million.
EXAMPLES = int(os.environ.get("HEADWAY_WALKS", "1000"))


def paid_us(pool: Pool) -> int:
    return sum(sum(by_tier.values()) for by_tier in pool.seat_us.values())


class Walk(RuleBasedStateMachine):
    calls = Bundle("calls")

    @initialize(
        share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        express_wait_s=st.sampled_from([0.4, inf]),
        up=st.integers(0, 3),
        moves=st.booleans(),
    )
    def begin(self, share: float, express_wait_s: float, up: int, moves: bool) -> None:
        policy = PoolPolicy(standard_share=share, margin=0.0, express_wait_s=express_wait_s, moves_streams=moves)
        self.moves_streams = moves
        self.machine = Machine({"p": policy, "o": PoolPolicy()}, OFFERS)
        self.overflow_seats = 0  # while its server is open
        self.removed_us = 0  # what calls have paid to pools that are gone
        self.refused_us = 0  # what calls had paid that were refused then
        self.policies = {(model, tier): one for model, offer in OFFERS.items() for tier, one in offer.tiers.items()}
        self.floor: dict[str, float] = {}  # of each call that has boarded, as it was promised
        self.held_at_a_change: set[str] = set()
        self.now = 0.0
        self.replicas: dict[str, Replica] = {}
        self.open: set[str] = set()
        self.draining: set[str] = set()
        self.strangers: dict[str, int] = {}
        self.boarded_again: set[str] = set()  # a driver never got their seat
        self.where: dict[str, str | None] = {}  # call -> replica, or None while held
        self.calls_told: dict[str, Call] = {}  # as they arrived
        self.tier: dict[str, Tier] = {}  # as served
        self.deadline: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.settled_us: dict[str, int] = {}
        self.boarded: set[str] = set()  # at least once
        self.arrivals: list[str] = []
        self.delivering: set[str] = set()
        self.tokens = Counter[str]()  # delivered, of the continuable calls
        self.lost_at = Counter[str]()  # of these, when the last engine was lost
        self.paused_at: dict[str, float] = {}
        self.moves = Counter[str]()
        self.was_preempted: set[str] = set()
        self.being_preempted: set[str] = set()
        self.is_misled = False  # by another core
        self.has_closed = False  # a replica, and core has not looked since what that means for others
        for name in NAMES[:up]:
            self.replica_up(name, 4, CURVE, 1_000.0, 0, same=False)

    def tell(self, event: Event) -> None:
        light_before = self.machine.pools["p"].light_replicas
        load_before = {name: self.machine.pools["p"].aboard(name) for name in self.replicas}
        kv_before = {name: state.kv_taken for name, state in self.machine.pools["p"].doors.replicas.items()}
        context_before = {name: state.context for name, state in self.machine.pools["p"].doors.replicas.items()}
        if isinstance(event, ReplicaStrangers):
            load_before[event.name] += event.streams
        for action in self.machine.step(event, self.now):
            call_id = action.call_id
            if isinstance(action, Settled):
                self.settle(action)
                continue
            assert call_id not in self.ended, f"{action} for a call that had {self.ended.get(call_id)}"
            match action:
                case Board(replica=replica, tier=tier, floor_tps=floor_tps):
                    assert replica in self.open or (replica == OVERFLOW and self.may_overflow(call_id))
                    assert floor_tps == self.policy(call_id).floor_tps
                    self.floor[call_id] = floor_tps
                    self.boarded.add(call_id)
                    assert self.where.get(call_id) is None, "boarded twice"
                    assert tier == self.tier[call_id]
                    self.where[call_id] = replica
                    self.deadline.pop(call_id, None)
                case Hold(for_s=for_s):
                    paused_at = self.paused_at.get(call_id)
                    max_hold_s = self.policy(call_id).max_hold_s
                    if paused_at is not None:
                        max_hold_s = max(0.0, MAX_PAUSE_S - (self.now - paused_at))
                    assert 0.0 <= for_s <= max_hold_s if isinstance(event, Adopted) else for_s == max_hold_s
                    self.where[call_id] = None
                    self.deadline[call_id] = self.now + for_s
                case Downgrade():
                    assert self.tier[call_id] in EXPRESS
                    self.tier[call_id] = "standard"
                    self.deadline.pop(call_id, None)
                case Refuse(retry_after_s=retry_after_s, reason=reason, seat_us=seat_us):
                    assert not seat_us or call_id in self.boarded, "a call that never boarded pays"
                    self.refused_us += seat_us
                    assert retry_after_s >= 1
                    if call_id in self.paused_at:
                        assert reason in ("engine_failed", "hold_timeout", "no_replica")
                    if reason == "too_many_choices":
                        assert self.choices(call_id) > self.most_choices(self.policy(call_id)) > 0
                    self.end(call_id, "refused")
                case Cut():
                    assert isinstance(event, ReplicaDown | ReplicaRemoved)
                    assert self.where[call_id] == event.name
                case Preempt():
                    assert self.where[call_id] is not None
                    drains = self.where[call_id] in self.draining
                    is_express = self.tier[call_id] in EXPRESS
                    retires = is_express and self.moves_streams and self.retires(self.where[call_id])
                    is_moved = drains or retires or (self.moves_streams and not is_express)
                    assert self.tier[call_id] == "flex" or (is_moved and self.is_continuable(call_id))
                    assert call_id not in self.delivering | self.being_preempted
                    assert self.is_continuable(call_id) or call_id not in self.was_preempted
                    self.moves[call_id] += 1
                    is_for_held = any(self.tier[held] in EXPRESS for held in self.deadline)
                    is_for_replica = drains or retires or isinstance(event, ReplicaBehind)
                    assert is_for_held or is_for_replica, "preempted for nobody"
                    self.was_preempted.add(call_id)
                    self.being_preempted.add(call_id)
        pool = self.machine.pools["p"]
        if isinstance(event, ReplicaSuspect | ReplicaDown | ReplicaRemoved):
            self.has_closed = True
        elif isinstance(event, Ticked | Finished | Left | Failed | ReplicaUp):
            self.has_closed = False
        self.check_the_express_rule(load_before)
        self.check_the_context(load_before, context_before)
        for name, state in pool.doors.replicas.items():
            budget = max(state.replica.kv_tokens, kv_before.get(name, 0))
            assert state.kv_taken <= budget or not state.replica.kv_tokens or len(state.aboard) == 1, "memory was full"
        if isinstance(event, ReplicaUp):  # what was draining counts again with what it carries
            light_before += 1
        assert pool.light_replicas <= max(light_before, pool.doors.max_light_replicas), "the standard share was taken"

    def may_overflow(self, call_id: str) -> bool:
        is_offered = self.policy(call_id).overflow_after_s is not None
        model, pool = self.calls_told[call_id].model, self.machine.pools.get("o")
        is_there = pool is not None and pool.offers_tier(model, self.tier[call_id])
        return self.overflow_seats > 0 and self.calls_told[call_id].may_overflow and is_offered and is_there

    def policy(self, call_id: str) -> TierPolicy:
        """Of its model and tier: the one that is offered now, or was offered last."""
        return self.policies[self.calls_told[call_id].model, self.tier[call_id]]

    def is_continuable(self, call_id: str) -> bool:
        return self.calls_told[call_id].is_continuable and call_id not in self.delivering

    def retires(self, replica: str | None) -> bool:
        state = self.machine.pools["p"].replica_state(replica or "")
        return state is not None and state.retiring

    def choices(self, call_id: str) -> int:
        return self.calls_told[call_id].choices

    def most_choices(self, tier: TierPolicy) -> int:
        """That any replica which is not draining could ever seat."""
        replicas = [replica for name, replica in self.replicas.items() if name not in self.draining]
        if not tier.floor_tps:
            return max((replica.seats for replica in replicas), default=0)
        curves = [(replica.curve, replica.seats) for replica in replicas if replica.curve is not None]
        caps = [curve.largest_batch(tier.floor_tps, seats, 0.0) for curve, seats in curves]
        if tier.target_tps:
            targets = [max(1, curve.largest_batch(tier.target_tps, seats, 0.0)) for curve, seats in curves]
            caps = [min(pair) for pair in zip(caps, targets, strict=True)]
        return max(caps, default=0)

    def settle(self, settled: Settled) -> None:
        assert self.ended.get(settled.call_id) in ("left", "finished"), f"{settled} for a call that had not ended"
        assert settled.call_id not in self.settled_us, "settled twice"
        assert settled.seat_us >= 0
        assert not settled.seat_us or settled.call_id in self.boarded, "a call that never boarded pays"
        self.settled_us[settled.call_id] = settled.seat_us

    def check_the_express_rule(self, load_before: dict[str, int]) -> None:
        """With a floor aboard nobody boards beyond what it allows. A limit that falls takes nobody off the replica."""
        pool = self.machine.pools["p"]
        for name, replica in self.replicas.items():
            calls = [call_id for call_id, where in self.where.items() if where == name]
            aboard = [self.floor[call_id] for call_id in calls for _ in range(self.choices(call_id))]
            state = pool.replica_state(name)
            if state is None:
                continue
            allowed = [
                replica.curve.largest_batch(floor_tps, replica.seats, state.caps_slowness - 1.0)
                if replica.curve is not None and not pool._caps.is_shut_out(state)
                else 0
                for floor_tps in aboard
                if floor_tps
            ]
            most = max(min([replica.seats, *allowed]), load_before.get(name, 0))
            assert len(aboard) + state.strangers <= most, f"{name} carries {aboard}"
            too_loose = max(1.0, state.feedback.slowness) / state.caps_slowness - 1.0
            assert too_loose <= 0.01
            assert too_loose >= -0.01 or self.is_misled  # a spread that nothing explains is forgotten step by step

    def check_the_context(self, load_before: dict[str, int], context_before: dict[str, int]) -> None:
        """Nobody's context makes the steps of a replica longer than a floor aboard allows."""
        for name, state in self.machine.pools["p"].doors.replicas.items():
            if state.express and state.replica.curve is not None:
                curve = state.replica.curve.slower(state.caps_slowness)
                before_s = curve.seconds_per_token(load_before.get(name, 0), context_before.get(name, 0))
                most_s = max(before_s, 1.0 / max(state.express)) if curve.e else inf
                assert curve.seconds_per_token(state.load, state.context) <= most_s * (1 + 1e-9), f"{name} is too slow"

    def end(self, call_id: str, how: str) -> None:
        self.being_preempted.discard(call_id)
        self.ended[call_id] = how
        self.where.pop(call_id, None)
        self.deadline.pop(call_id, None)

    @rule(
        target=calls,
        tier=st.sampled_from(["ultrafast", "fast", "fast", "standard", "standard", "standard", "flex"]),
        model=st.sampled_from("mmn"),
        tenant=st.sampled_from("ab"),
        falls_back=st.booleans(),
        prompt_tokens=st.sampled_from([0, 0, 100, 5_000]),
        choices=st.sampled_from([1, 1, 1, 2, 3, 7]),
        overflows=st.booleans(),
        goes_on=st.booleans(),
        prefix=st.sampled_from(PREFIXES),
    )
    def arrive_one(
        self,
        tier: Tier,
        model: str,
        tenant: str,
        falls_back: bool,
        prompt_tokens: int,
        choices: int,
        overflows: bool,
        goes_on: bool,
        prefix: tuple[int, ...],
    ) -> str:
        return self.arrive(
            Call(
                "",
                model,
                tier,
                tenant,
                falls_back,
                prefix_keys=prefix,
                prefix_tokens=tuple(900 * (place + 1) for place in range(len(prefix))),
                is_continuable=goes_on,
                prompt_tokens=prompt_tokens,
                choices=choices,
                may_overflow=overflows,
            )
        )

    @rule(
        target=calls, tier=st.sampled_from(["fast", "standard"]), does_not_fit=st.sampled_from([(2_000_000, 1), (0, 3)])
    )
    def arrive_many(self, tier: Tier, does_not_fit: tuple[int, int]) -> MultipleResults[str]:
        """A tenant sends more calls that do not fit than are tried in one step."""
        prompt_tokens, choices = does_not_fit
        tries = range(SET_ASIDE + TRIED_AGAIN)
        call = Call("", "m", tier, "many", prompt_tokens=prompt_tokens, choices=choices)
        return multiple(*[self.arrive(replace(call)) for _ in tries])

    def arrive(self, call: Call) -> str:
        call_id = call.id = f"c{len(self.arrivals)}"
        self.arrivals.append(call_id)
        self.calls_told[call_id], self.tier[call_id] = call, call.tier
        self.tell(Arrived(call))
        if call_id not in self.ended:
            assert call.choices == 1 or call.choices <= (self.most_choices(self.policy(call_id)) or call.choices)
        return call_id

    @rule(call_id=consumes(calls), leaves=st.booleans(), speed_tps=st.sampled_from([None, 1.0, 25.0, 50.0, 100.0]))
    def end_call(self, call_id: str, leaves: bool, speed_tps: float | None) -> None:
        if call_id in self.ended:
            return
        leaves = leaves or self.where[call_id] is None
        self.end(call_id, "left" if leaves else "finished")
        self.tell(Left(call_id, 3, 2) if leaves else Finished(call_id, 3, 5, speed_tps))

    @rule(target=calls, call_id=consumes(calls), is_fixed=st.sampled_from([False, False, True]))
    def deliver(self, call_id: str, is_fixed: bool) -> str:
        """A continuable call goes on elsewhere if it must, until the driver says that it can no longer."""
        replica = self.where.get(call_id)
        if replica is not None and call_id not in self.being_preempted:
            if self.is_continuable(call_id) and not is_fixed and replica != OVERFLOW:
                self.tokens[call_id] += 5
            else:
                self.delivering.add(call_id)
                self.tell(Delivering(call_id))
        return call_id

    @rule()
    def let_go(self) -> None:
        """The engines let go of those that were preempted."""
        for call_id in sorted(self.being_preempted):
            self.being_preempted.discard(call_id)
            self.lose_engine(call_id, "preempted")

    def lose_engine(self, call_id: str, stage: Stage) -> None:
        """The call is to go on elsewhere."""
        tokens = self.tokens[call_id]
        if tokens and (call_id not in self.paused_at or tokens > self.lost_at[call_id]):
            self.paused_at[call_id] = self.now
        self.lost_at[call_id] = tokens
        self.where[call_id] = None
        self.tell(Failed(call_id, stage, tokens))

    @rule(target=calls, call_id=consumes(calls), stage=st.sampled_from(["connect", "full", "waiting"]))
    def fail_call(self, call_id: str, stage: Stage) -> object:
        replica = self.where.get(call_id)
        if replica is None:
            return call_id
        if stage in ("connect", "waiting"):
            self.overflow_suspect() if replica == OVERFLOW else self.replica_suspect(replica)
        self.lose(call_id, stage)
        return call_id if call_id not in self.ended else multiple()

    @rule(
        name=st.sampled_from(NAMES),
        seats=st.integers(1, 9),
        curve=st.sampled_from(CURVES),
        prompt_tps=st.sampled_from([0.0, 1_000.0]),
        kv_tokens=st.sampled_from([0, 0, 500, 6_000]),
        same=st.booleans(),
    )
    def replica_up(
        self, name: str, seats: int, curve: Curve | None, prompt_tps: float, kv_tokens: int, same: bool
    ) -> None:
        """As it was, or with other seats and another curve."""
        if not same or name not in self.replicas:
            self.replicas[name] = Replica(name, "p", seats, curve, prompt_tps, kv_tokens)
        self.open.add(name)
        self.draining.discard(name)
        self.tell(ReplicaUp(self.replicas[name]))

    @rule(name=st.sampled_from(NAMES), seats=st.integers(1, 9), curve=st.sampled_from(CURVES))
    def replica_changed(self, name: str, seats: int, curve: Curve | None) -> None:
        replica = Replica(name, "p", seats, curve)
        if name in self.replicas:
            self.replicas[name] = replica
        self.tell(ReplicaChanged(replica))

    @rule(name=st.sampled_from(NAMES))
    def replica_draining(self, name: str) -> None:
        self.open.discard(name)
        if name in self.replicas:
            self.draining.add(name)
        self.tell(ReplicaDraining(name))

    @rule(
        name=st.sampled_from([*NAMES, OVERFLOW, "unknown"]),
        keys=st.none() | st.lists(st.sampled_from([1, 2, 3, 4, 9, 0, -1, 2**63 - 1, 2**70]), max_size=4),
    )
    def replica_cache_lost(self, name: str, keys: list[int] | None) -> None:
        self.tell(ReplicaCacheLost(name, keys))

    @rule(name=st.sampled_from(NAMES))
    def replica_suspect(self, name: str) -> None:
        self.open.discard(name)
        self.tell(ReplicaSuspect(name))

    @precondition(lambda self: "o" in self.machine.pools)
    @rule(seats=st.integers(1, 3))
    def overflow_up(self, seats: int) -> None:
        self.overflow_seats = seats
        self.tell(ReplicaUp(Replica(OVERFLOW, "o", seats)))

    @rule()
    def overflow_suspect(self) -> None:
        self.overflow_seats = 0
        self.tell(ReplicaSuspect(OVERFLOW))

    @rule(is_removed=st.booleans())
    def overflow_gone(self, is_removed: bool) -> None:
        self.overflow_seats = 0
        self.lose_all(OVERFLOW, is_removed=is_removed)

    @rule(name=st.sampled_from(NAMES), is_behind=st.booleans())
    def replica_pace(self, name: str, is_behind: bool) -> None:
        self.tell(ReplicaBehind(name) if is_behind else ReplicaRecovered(name))

    @rule(name=st.sampled_from(NAMES), is_removed=st.booleans())
    def replica_gone(self, name: str, is_removed: bool) -> None:
        self.open.discard(name)
        self.draining.discard(name)
        self.replicas.pop(name, None)
        self.strangers.pop(name, None)
        self.lose_all(name, is_removed=is_removed)

    def lose_all(self, name: str, *, is_removed: bool) -> None:
        aboard = [call_id for call_id, replica in self.where.items() if replica == name]
        self.tell(ReplicaRemoved(name) if is_removed else ReplicaDown(name))
        for call_id in aboard:  # the driver cuts them, and reports each
            self.lose(call_id, "waiting")

    def lose(self, call_id: str, stage: Stage) -> None:
        """The call's engine failed it. With part of its answer delivered it is over."""
        if call_id in self.delivering:
            self.end(call_id, "left")
            self.tell(Left(call_id, 3, 2))
            return
        if self.tokens[call_id] and stage == "waiting":
            stage = "streaming"
            self.moves[call_id] += call_id not in self.being_preempted
        self.being_preempted.discard(call_id)
        self.lose_engine(call_id, stage)

    @precondition(lambda self: self.where)
    @rule(data=st.data(), is_lost=st.booleans())
    def a_driver_says_where_its_call_is(self, data: st.DataObject, is_lost: bool) -> None:
        """It agrees with core, or the action that boarded the call was lost on the way: then it is held again."""
        call_id = data.draw(st.sampled_from(sorted(self.where)), label="call")
        journey = self.machine._journeys[call_id]
        call, where = replace(journey.call, prompt_tokens=journey.prompt_tokens), self.where[call_id]
        has_new_tokens = self.tokens[call_id] > self.lost_at[call_id]
        is_open = where in self.open or (where == OVERFLOW and self.overflow_seats)
        if is_lost and is_open and call_id not in self.being_preempted | self.delivering and not has_new_tokens:
            self.where[call_id] = None
            self.boarded_again.add(call_id)
            self.tell(Adopted(call, None))
            self.tell(Ticked())  # it may have waited for too long
        elif where is None or where in self.replicas or (where == OVERFLOW and self.overflow_seats):
            before = self.where.copy()
            self.tell(Adopted(call, where))
            assert self.where == before

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), streams=st.integers(0, 5))
    def an_engine_runs_streams_that_nobody_knows(self, data: st.DataObject, streams: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.replicas)), label="replica")
        self.strangers[name] = streams
        self.tell(ReplicaStrangers(name, streams))

    @rule(learnt=LEARNT, age_s=st.floats())
    def another_core_has_learnt(self, learnt: Learnt, age_s: float) -> None:
        """Whatever it says, nothing that must be true is lost."""
        self.is_misled = True
        self.tell(Remembered(learnt, age_s))

    @rule(age_s=st.floats(0.0, 10.0))
    def core_is_told_what_it_has_learnt_itself(self, age_s: float) -> None:
        self.tell(Remembered(self.machine.learnt(self.now), age_s))

    @rule(offers=st.sampled_from(CHANGED_OFFERS), share=st.sampled_from([0.0, 0.25, 0.5, 1.0]), moves=st.booleans())
    def the_owner_changes_the_policy(self, offers: dict[str, Offer], share: float, moves: bool) -> None:
        paid_before = {name: paid_us(pool) for name, pool in self.machine.pools.items()}
        here = [(model, offer) for model, offer in offers.items() if offer.pool == "p"]  # what calls have that stay
        self.policies |= {(model, tier): one for model, offer in here for tier, one in offer.tiers.items()}
        self.held_at_a_change |= self.deadline.keys()
        overflows = {offer.overflow for offer in offers.values() if offer.overflow}
        names = ["p", "q", *overflows]
        pools = {name: PoolPolicy(standard_share=share, margin=0.0, moves_streams=moves) for name in names}
        self.moves_streams = moves
        self.tell(PolicyChanged(pools, offers))
        self.removed_us += sum(paid for name, paid in paid_before.items() if name not in self.machine.pools)

    @rule(seconds=st.floats(0.1, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Ticked())
        for call_id in self.deadline:
            journey = self.machine._journeys[call_id]
            after_s, waited_s = self.policy(call_id).overflow_after_s, self.now - journey.arrived_at
            is_due = self.may_overflow(call_id) and after_s is not None and waited_s >= after_s
            if is_due and self.machine._offers.get(journey.call.model) is OFFERS["m"] and OVERFLOW not in journey.avoid:
                free = self.overflow_seats - self.machine.pools["o"].aboard(OVERFLOW)
                assert free < journey.call.choices, f"{call_id} waits while the overflow pool has {free} seats"

    @invariant()
    def core_is_sound(self) -> None:
        self.machine.check(self.now)

    @invariant()
    def core_and_driver_agree_who_is_where(self) -> None:
        pool = self.machine.pools["p"]
        for name in self.replicas:
            known = sum(self.choices(one) for one, where in self.where.items() if where == name)
            assert pool.aboard(name) == known + self.strangers.get(name, 0)
        assert pool.preemption.leaving == sum(self.choices(call_id) for call_id in self.being_preempted)
        assert pool.open_replicas == len(self.open)
        assert pool.known_replicas == len(self.replicas.keys() - self.draining)
        overflown = sum(self.choices(one) for one, where in self.where.items() if where == OVERFLOW)
        assert ("o" in self.machine.pools and self.machine.pools["o"].aboard(OVERFLOW)) == overflown

    @invariant()
    def seat_time_is_told_once(self) -> None:
        """What was settled, and what those present will be told of boardings that are over, is what calls have paid."""
        assert {call_id for call_id, how in self.ended.items() if how != "refused"} == set(self.settled_us)
        told_us = sum(self.settled_us.values()) + sum(one.seat_us for one in self.machine._journeys.values())
        paid = sum(map(paid_us, self.machine.pools.values())) + self.removed_us
        assert told_us + self.refused_us == paid

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        assert all(until > self.now for until in self.deadline.values())
        assert all(self.deadline.get(one, 0.0) <= at + MAX_PAUSE_S + 1e-9 for one, at in self.paused_at.items())

    @invariant()
    def no_stream_is_moved_too_often(self) -> None:
        assert max(self.moves.values(), default=0) <= MAX_MOVES + 1
        for call_id in self.where:
            assert self.machine._journeys[call_id].call.moves == self.moves[call_id] <= MAX_MOVES

    def is_tried_in_each_step(self, call_id: str) -> bool:
        """A call that must avoid a replica and was set aside may have to wait its turn (boarding.py)."""
        waiting = self.machine.pools["p"].waiting
        tier = self.tier[call_id]
        if call_id in waiting.returned[tier]:
            return len(waiting.returned[tier]) <= RETURNED
        return len(waiting.queues[tier]) <= TRIED_AGAIN or not self.machine._journeys[call_id].avoid

    @invariant()
    def no_standard_call_is_held_beside_an_open_seat_on_a_heavy_replica(self) -> None:
        pool = self.machine.pools["p"]
        states = [state for name in self.open if (state := pool.replica_state(name)) is not None]
        for call_id in self.deadline:
            if self.tier[call_id] == "standard" and self.is_tried_in_each_step(call_id):
                choices = self.choices(call_id)
                call = self.machine._journeys[call_id].call
                free = {c.replica.name for c in states if not c.light and c.load + choices <= c.replica.seats}
                if not all(one.has_memory_for(call) for one in states):
                    continue  # of replicas with as many free seats, only the first few are looked at
                assert free <= self.machine._journeys[call_id].avoid, f"{call_id} is held while {free} have seats"

    @invariant()
    def no_tenants_call_is_held_while_a_seat_that_it_could_take_is_free(self) -> None:
        """However many calls of others do not fit."""
        pool = self.machine.pools["p"]
        for call_id in self.deadline if not self.has_closed else ():
            journey = self.machine._journeys[call_id]
            can_all_take = all(one.can_take(journey.call, self.now) for one in pool.doors.replicas.values())
            if self.is_tried_in_each_step(call_id) and can_all_take:
                found = pool._find(journey.call, self.policy(call_id).floor_tps, journey.avoid, self.now)
                assert found is None, f"{call_id} is held while {found.replica.name} has a seat"

    @invariant()
    def every_call_is_somewhere(self) -> None:
        assert set(self.arrivals) == set(self.where) | set(self.ended)
        assert self.machine.calls == len(self.where)
        pool = self.machine.pools["p"]
        present = sum(self.choices(call_id) for call_id in self.where if self.tier[call_id] in EXPRESS)
        assert pool.reserve.present == present
        taken = Counter[tuple[str, Tier]]()
        for state in pool.doors.replicas.values():
            for stream in state.aboard.values():
                taken[stream.call.model, stream.call.tier] += stream.call.choices
        assert +pool.taken == taken
        assert pool.waiting.held == len(self.deadline)
        returned = {held.call.id for calls in pool.waiting.all_returned() for held in calls}
        uncounted = returned | self.was_preempted | self.boarded_again | self.held_at_a_change
        in_line = [one for one in self.deadline if one not in uncounted]
        for call_id in in_line:
            model, tier = self.calls_told[call_id].model, self.tier[call_id]
            alike = [one for one in in_line if (self.calls_told[one].model, self.tier[one]) == (model, tier)]
            tenants = Counter(self.calls_told[one].tenant for one in alike)
            for place, (_, held) in enumerate(tenants.most_common(), 1):
                assert held * place <= self.policy(call_id).max_held


TestWalk = pytest.mark.timeout(600 + EXAMPLES // 10)(Walk.TestCase)  # what it finds must have the time to be made small
TestWalk.settings = settings(max_examples=EXAMPLES, stateful_step_count=60)
