"""What a core has learnt goes to the core that follows it, which then decides as the first one would have."""

from __future__ import annotations

from dataclasses import asdict
from math import inf, isclose, isfinite, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.curve import Curve
from headway.core.fairness import FairQueue
from headway.core.learnt import Learnt, LearntPace, LearntTenant, within
from headway.core.machine import Machine
from headway.core.pace import Pace
from headway.core.rate_limit import RateLimiter, TokenLimit
from headway.core.types import (
    Action,
    Adopted,
    Arrived,
    Board,
    Call,
    Event,
    Finished,
    Hold,
    Left,
    Offer,
    PoolPolicy,
    Refuse,
    Remembered,
    Replica,
    ReplicaKnown,
    ReplicaSuspect,
    ReplicaUp,
    Ticked,
    Tier,
    TierPolicy,
)

CURVE = Curve(a=0.005, c=0.002, d=0.0)
REPLICAS = [Replica(f"r{number}", "m", 8, CURVE) for number in range(4)]
LIMIT = TokenLimit(input_tpm=6_000, output_tpm=1_200, requests_pm=60)
OFFERS = {
    "m": Offer(
        "m",
        {
            "fast": TierPolicy(12, 4.0, floor_tps=60.0),
            "standard": TierPolicy(12, 8.0),
            "flex": TierPolicy(4, 16.0),
        },
    )
}
CLOCKS_APART = 4096.0
MOMENT = 1 / 64  # times are multiples of it, so that none is rounded


def new_machine() -> Machine:
    return Machine({"m": PoolPolicy(standard_share=0.25)}, OFFERS)


def successor(of: Learnt, now: float, age_s: float = 0.0) -> Machine:
    m = new_machine()
    for replica in REPLICAS:
        m.step(ReplicaKnown(replica), now)
    assert m.step(Remembered(of, age_s), now) == []
    return m


class Driver:
    """Sends the same calls, and ends them, however long the list of choices is."""

    def __init__(self) -> None:
        self.now = 8.0
        self.aboard: list[str] = []
        self.held: list[str] = []
        self.calls = 0

    def events(self, choice: tuple[int, Tier, str, float]) -> list[Event]:
        what, tier, tenant, speed_tps = choice
        if what < 4:
            self.calls += 1
            own = LIMIT if tenant == "limited" else None
            return [Arrived(Call(f"c{self.calls}", "m", tier, tenant, express_limit=own, other_limit=own))]
        if what < 8 and self.aboard:
            call_id = self.aboard.pop(what % len(self.aboard))
            return [Finished(call_id, 10, 40, speed_tps)]
        self.now += MOMENT * 2 ** (what - 4)
        return [Ticked()]

    def seen(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Board):
                self.aboard.append(action.call_id)
            if action.call_id in self.held:
                self.held.remove(action.call_id)
            if isinstance(action, Hold):
                self.held.append(action.call_id)


CHOICES = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(["fast", "fast", "standard", "flex"]),
        st.sampled_from(["a", "b", "limited"]),
        st.sampled_from([40.0, 70.0, 90.0, 110.0]),
    ),
    max_size=80,
)


@given(before=CHOICES, after=CHOICES, age=st.integers(0, 640))
@settings(max_examples=150, deadline=None)
def test_the_next_core_decides_as_the_one_before_would_have(before: Any, after: Any, age: int) -> None:
    """Handed over while no call is aboard and replicas open again in the same order: what is not handed over."""
    driver, first = Driver(), new_machine()
    for replica in REPLICAS:
        first.step(ReplicaUp(replica), driver.now)
    for choice in before:
        for event in driver.events(choice):
            driver.seen(first.step(event, driver.now))
    while driver.aboard or driver.held:
        driver.seen(first.step(Left((driver.held or driver.aboard)[0], 5, 5), driver.now))
        (driver.held or driver.aboard).pop(0)
    for replica in REPLICAS:
        first.step(ReplicaSuspect(replica.name), driver.now)
    handed = first.learnt(driver.now)
    driver.now += age * MOMENT
    first.step(Ticked(), driver.now)
    second = successor(handed, driver.now + CLOCKS_APART, age * MOMENT)
    for replica in REPLICAS:
        assert first.step(ReplicaUp(replica), driver.now) == second.step(ReplicaUp(replica), driver.now + CLOCKS_APART)
    for choice in after:
        for event in driver.events(choice):
            actions = first.step(event, driver.now)
            assert second.step(event, driver.now + CLOCKS_APART) == actions
            driver.seen(actions)
    second.check(driver.now + CLOCKS_APART)
    assert is_alike(asdict(second.learnt(driver.now + CLOCKS_APART)), asdict(first.learnt(driver.now)))


def is_alike(one: Any, other: Any) -> bool:
    """Whether they are the same up to rounding: tokens are counted from when a core began."""
    if isinstance(one, dict):
        return all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) if isinstance(one, float) else bool(one == other)


def serve(m: Machine, speed_tps: float, calls: int, now: float, tenant: str = "a") -> float:
    for number in range(calls):
        call_id = f"{tenant}-{now}-{number}"
        [board] = m.step(Arrived(Call(call_id, "m", "fast", tenant)), now)
        assert isinstance(board, Board)
        now += 1.0
        m.step(Finished(call_id, 10, 60, speed_tps), now)
    return now


def test_a_slow_replica_stays_slow_for_the_next_core() -> None:
    m = new_machine()
    m.step(ReplicaUp(REPLICAS[0]), 0.0)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    before = state.caps[60.0]
    now = serve(m, 100.0, 30, 0.0)  # the curve says 143
    assert state.caps[60.0] < before
    nextone = successor(m.learnt(now), 0.0).pools["m"].replica_state("r0")
    assert nextone is not None
    assert nextone.caps == state.caps
    assert nextone.longest_s == state.longest_s


def test_what_was_measured_of_another_curve_says_nothing() -> None:
    m = new_machine()
    m.step(ReplicaUp(REPLICAS[0]), 0.0)
    handed = m.learnt(serve(m, 100.0, 30, 0.0))
    other = new_machine()
    other.step(ReplicaKnown(Replica("r0", "m", 8, CURVE.slower(1.1))), 0.0)
    other.step(Remembered(handed), 0.0)
    state = other.pools["m"].replica_state("r0")
    assert state is not None
    assert state.feedback.mean == 1.0


def test_a_replica_that_is_shut_out_is_tried_again_when_it_would_have_been() -> None:
    m = new_machine()
    m.step(ReplicaUp(REPLICAS[0]), 0.0)
    now = 0.0
    while m.pools["m"].doors.replicas["r0"].light_seats:
        now = serve(m, 10.0, 1, now)
    m2 = successor(m.learnt(now), now, age_s=4.0)
    m2.step(ReplicaUp(REPLICAS[0]), now)
    for later, seats in ((5.9, 0), (6.1, 5)):
        m2.step(Ticked(), now + later)
        assert bool(m2.pools["m"].doors.replicas["r0"].light_seats) == bool(seats)
    m2.check(now + 6.1)


def test_a_tenant_that_has_used_its_limit_is_refused_by_the_next_core_until_it_has_refilled() -> None:
    m = new_machine()
    for replica in REPLICAS:
        m.step(ReplicaUp(replica), 0.0)
    m.step(Arrived(Call("c1", "m", "standard", "a", other_limit=LIMIT)), 0.0)
    m.step(Finished("c1", 10, LIMIT.output_tpm + 200), 1.0)  # ten seconds too many
    m2 = successor(m.learnt(1.0), 100.0, age_s=4.0)
    for replica in REPLICAS:
        m2.step(ReplicaUp(replica), 100.0)
    [refused] = m2.step(Arrived(Call("c2", "m", "standard", "a", other_limit=LIMIT)), 100.0)
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.retry_after_s) == ("over_limit", 7)
    [board] = m2.step(Arrived(Call("c3", "m", "standard", "a", other_limit=LIMIT)), 106.5)
    assert isinstance(board, Board)


def test_what_was_spent_since_the_takeover_is_added() -> None:
    first, second = RateLimiter(), RateLimiter()
    first.spend("a", LIMIT, 0.0, output=600)
    second.spend("a", LIMIT, 100.0, output=100)
    second.recall(first.learnt(0.0), 0.0, 100.0)
    left = second.of("a", LIMIT, 100.0)
    assert left is not None
    assert left.output_left == 500


def test_the_demand_that_was_forecast_is_kept_ready_by_the_next_core() -> None:
    m = new_machine()
    for replica in REPLICAS:
        m.step(ReplicaUp(replica), 0.0)
    for number in range(10):
        m.step(Arrived(Call(f"c{number}", "m", "fast")), 0.0)
    for tick in range(300):
        m.step(Ticked(), tick / 10)
    doors = m.pools["m"].doors
    m2 = successor(m.learnt(30.0), 0.0)
    without = new_machine()
    for other in (m2, without):
        for replica in REPLICAS:
            other.step(ReplicaKnown(replica), 0.0)
            other.step(ReplicaUp(replica), 0.0)
    assert m2.pools["m"].doors.light_seats == doors.light_seats > 10
    assert without.pools["m"].doors.light_seats == 0


def test_a_tenant_that_was_served_more_still_waits_behind_another() -> None:
    m = new_machine()
    for replica in REPLICAS:
        m.step(ReplicaUp(replica), 0.0)
    m.step(Arrived(Call("c", "m", "standard", "a")), 0.0)
    m.step(Finished("c", 10, 500), 1.0)
    m2 = new_machine()
    m2.step(ReplicaKnown(Replica("r0", "m", 1, CURVE)), 0.0)
    for tenant in "ab":
        m2.step(Adopted(Call(tenant, "m", "standard", tenant)), 0.0)
    assert m2.step(Remembered(m.learnt(1.0)), 0.0) == []
    assert m2.step(ReplicaUp(Replica("r0", "m", 1, CURVE)), 0.0) == [Board("b", "r0", "standard")]


def test_of_many_tenants_the_most_served_are_kept() -> None:
    queue = FairQueue()
    for number in range(10):
        queue.charge(f"t{number}", 100 + number)
    kept = queue.learnt(3)
    assert kept == [LearntTenant("t9", 2.0), LearntTenant("t8", 1.0), LearntTenant("t7", 0.0)]
    assert len(queue.learnt(10)) == 10


def test_of_many_limits_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.rate_limit.MAX_BUCKETS", 3)
    limiter = RateLimiter()
    for number in range(10):
        limiter.spend(f"t{number}", LIMIT, float(number), requests=1)
    assert [one.name for one in limiter.learnt(10.0)] == ["t7", "t8", "t9"]


def test_the_number_of_tenants_is_bounded_over_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.pools.MAX_TENANTS", 30)
    m = new_machine()
    for queue in m.pools["m"].waiting.queues.values():
        for number in range(50):
            queue.charge(f"t{number}", number)
    queues = m.learnt(0.0).pools[0].waiting.queues
    assert [len(one.tenants) for one in queues] == [10, 10, 10]


def test_what_is_not_known_is_ignored() -> None:
    m = new_machine()
    m.step(ReplicaUp(REPLICAS[0]), 0.0)
    handed = m.learnt(serve(m, 100.0, 5, 0.0))
    other = Machine({"q": PoolPolicy()}, {"m": Offer("q", OFFERS["m"].tiers)})
    assert other.step(Remembered(handed), 0.0) == []
    handed.pools[0].waiting.queues[0].tier = "unknown"
    handed.pools[0].caps.replicas[0].name = "unknown"
    m2 = successor(handed, 0.0)
    m2.check(0.0)


@pytest.mark.parametrize(
    ("value", "nearest"), [(0.5, 0.5), (-1.0, 0.0), (inf, 1.0), (-inf, 0.0), (nan, 0.0), (2**64, 1.0)], ids=str
)
def test_a_number_is_brought_into_its_range(value: float, nearest: float) -> None:
    assert within(value, 0.0, 1.0) == nearest


def test_a_core_that_has_seen_nothing_says_only_finite_numbers() -> None:
    [pool] = new_machine().learnt(1e6).pools
    reserve = pool.reserve
    assert (reserve.since_ride_s, reserve.since_step_s, pool.waiting.since_freed_s) == (None, None, None)
    assert isfinite(reserve.since_steered_s)


def test_a_pace_that_was_learnt_in_no_time_is_not_believed() -> None:
    pace = Pace()
    pace.recall(LearntPace(tokens=5.0, seat_s=5e-324, answer_tokens=300.0))
    assert pace.tokens(2.0) == 80
