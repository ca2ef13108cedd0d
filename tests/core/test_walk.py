"""Random walks over core: any events in any order, and after each of them everything that must be true."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.types import (
    EXPRESS,
    Arrived,
    Board,
    Call,
    Cut,
    Downgrade,
    Event,
    Failed,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Refuse,
    Replica,
    ReplicaDown,
    ReplicaSuspect,
    ReplicaUp,
    Stage,
    Ticked,
    Tier,
    TierPolicy,
)

NAMES = ["r0", "r1", "r2", "r3"]
CURVE = Curve(a=0.005, c=0.005, d=0.0)
HOLD_S: dict[Tier, float] = {"ultrafast": 2.0, "fast": 4.0, "standard": 8.0, "flex": 16.0}
FLOORS: dict[Tier, float] = {"ultrafast": 60.0, "fast": 30.0}
# CI walks about 50,000 steps; `make nightly` sets this to walk a million.
EXAMPLES = int(os.environ.get("HEADWAY_WALKS", "1000"))


class Walk(RuleBasedStateMachine):
    calls = Bundle("calls")

    @initialize(share=st.sampled_from([0.0, 0.25, 0.5, 1.0]), headroom=st.sampled_from([0.0, 1.0]))
    def begin(self, share: float, headroom: float) -> None:
        tiers = {tier: TierPolicy(4, hold_s, FLOORS.get(tier, 0.0)) for tier, hold_s in HOLD_S.items()}
        policy = ModelPolicy(tiers, share, margin=0.0, reserve_window_s=6.0, reserve_headroom=headroom)
        self.machine = Machine({"m": policy})
        self.now = 0.0
        self.seats: dict[str, int] = {}
        self.open: set[str] = set()
        self.where: dict[str, str | None] = {}  # call -> replica, or None while held
        self.tier: dict[str, Tier] = {}  # as served
        self.deadline: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.arrivals: list[str] = []

    def tell(self, event: Event) -> None:
        light_before = self.machine.boarding["m"].light_replicas
        for action in self.machine.step(event, self.now):
            call_id = action.call_id
            assert call_id not in self.ended, f"{action} for a call that had {self.ended.get(call_id)}"
            match action:
                case Board(replica=replica, tier=tier):
                    assert replica in self.open
                    assert self.where.get(call_id) is None, "boarded twice"
                    assert tier == self.tier[call_id]
                    self.where[call_id] = replica
                    self.deadline.pop(call_id, None)
                case Hold(until=until):
                    assert until == self.now + HOLD_S[self.tier[call_id]]
                    self.where[call_id] = None
                    self.deadline[call_id] = until
                case Downgrade():
                    assert self.tier[call_id] in EXPRESS
                    self.tier[call_id] = "standard"
                    self.deadline.pop(call_id, None)
                case Refuse(retry_after_s=retry_after_s):
                    assert retry_after_s >= 1
                    self.end(call_id, "refused")
                case Cut():
                    assert self.where[call_id] is not None
        boarding = self.machine.boarding["m"]
        assert boarding.light_replicas <= max(light_before, boarding.max_light_replicas), "the standard share was taken"

    def end(self, call_id: str, how: str) -> None:
        self.ended[call_id] = how
        self.where.pop(call_id, None)
        self.deadline.pop(call_id, None)

    @rule(
        target=calls,
        tier=st.sampled_from(["ultrafast", "fast", "fast", "standard", "standard", "standard", "flex"]),
        tenant=st.sampled_from("ab"),
        falls_back=st.booleans(),
    )
    def arrive(self, tier: Tier, tenant: str, falls_back: bool) -> str:
        call_id = f"c{len(self.arrivals)}"
        self.arrivals.append(call_id)
        self.tier[call_id] = tier
        self.tell(Arrived(Call(call_id, "m", tier, tenant, falls_back)))
        return call_id

    @rule(call_id=consumes(calls), leaves=st.booleans())
    def end_call(self, call_id: str, leaves: bool) -> None:
        if call_id in self.ended:
            return
        leaves = leaves or self.where[call_id] is None
        self.end(call_id, "left" if leaves else "finished")
        self.tell(Left(call_id) if leaves else Finished(call_id, 3, 5))

    @rule(target=calls, call_id=consumes(calls), stage=st.sampled_from(["connect", "full", "waiting", "streaming"]))
    def fail_call(self, call_id: str, stage: Stage) -> object:
        replica = self.where.get(call_id)
        if replica is None:
            return call_id
        if stage in ("connect", "waiting"):
            self.replica_suspect(replica)
        if stage == "streaming":
            self.end(call_id, "failed")
        else:
            self.where[call_id] = None
        self.tell(Failed(call_id, stage))
        return call_id if call_id not in self.ended else multiple()

    @rule(name=st.sampled_from(NAMES), seats=st.integers(1, 9))
    def replica_up(self, name: str, seats: int) -> None:
        self.open.add(name)
        self.tell(ReplicaUp(Replica(name, "m", self.seats.setdefault(name, seats), CURVE)))

    @rule(name=st.sampled_from(NAMES))
    def replica_suspect(self, name: str) -> None:
        self.open.discard(name)
        self.tell(ReplicaSuspect(name))

    @rule(name=st.sampled_from(NAMES))
    def replica_down(self, name: str) -> None:
        self.open.discard(name)
        self.seats.pop(name, None)
        aboard = [call_id for call_id, replica in self.where.items() if replica == name]
        self.tell(ReplicaDown(name))
        for call_id in aboard:  # the driver cuts them, and reports each
            self.where[call_id] = None
            self.tell(Failed(call_id, "waiting"))

    @rule(seconds=st.floats(0.1, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Ticked())

    @invariant()
    def the_express_rule_holds(self) -> None:
        for name, seats in self.seats.items():
            aboard = [self.tier[call_id] for call_id, replica in self.where.items() if replica == name]
            allowed = [CURVE.largest_batch(FLOORS[tier], seats, 0.0) for tier in aboard if tier in FLOORS]
            assert len(aboard) <= min([seats, *allowed]), f"{name} carries {aboard}"
            assert len(aboard) == self.machine.boarding["m"].aboard(name)

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        assert all(until > self.now for until in self.deadline.values())

    @invariant()
    def no_standard_call_is_held_beside_an_open_seat_on_a_heavy_replica(self) -> None:
        boarding = self.machine.boarding["m"]
        carriers = [carrier for name in self.open if (carrier := boarding.carrier(name)) is not None]
        free = {c.replica.name for c in carriers if not c.light and len(c.aboard) < c.replica.seats}
        for call_id in self.deadline:
            if self.tier[call_id] == "standard":
                assert free <= self.machine._journeys[call_id].avoid, f"{call_id} is held while {free} have seats"

    @invariant()
    def heavy_replicas_carry_no_express_stream(self) -> None:
        boarding = self.machine.boarding["m"]
        for call_id, name in self.where.items():
            if name is not None and self.tier[call_id] in EXPRESS:
                carrier = boarding.carrier(name)
                assert carrier is None or carrier.light

    @invariant()
    def every_call_is_somewhere(self) -> None:
        assert set(self.arrivals) == set(self.where) | set(self.ended)
        assert self.machine.calls == len(self.where)
        boarding = self.machine.boarding["m"]
        present = sum(self.tier[call_id] in EXPRESS for call_id in self.where)
        assert boarding._reserve.present == present
        assert boarding.held == len(self.deadline)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=EXAMPLES, stateful_step_count=60, deadline=None)
