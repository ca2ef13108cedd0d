"""Several models on one pool: they share its seats exactly, and each keeps its own floors, limits and patience."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.core.machine import Machine
from headway.core.rate_limit import RateLimit, TokenLimit
from headway.core.types import (
    Action,
    Arrived,
    Board,
    Call,
    Cut,
    Finished,
    Hold,
    Left,
    Offer,
    PoolPolicy,
    Refuse,
    Replica,
    ReplicaDown,
    ReplicaUp,
    Settled,
    Ticked,
    Tier,
    TierPolicy,
)
from tests.core.test_express import CURVE, TIERS

POLICY = PoolPolicy(margin=0.0, express_wait_s=inf)
# A floor of 66.6 allows 2 streams on CURVE, one of 50 allows 3.
STRICT: dict[Tier, TierPolicy] = {**TIERS, "fast": replace(TIERS["fast"], floor_tps=66.6)}


def machine(seats: int = 10, replicas: int = 1, **tiers: dict[Tier, TierPolicy]) -> Machine:
    """Models `a` and `b`, or those given, on one pool."""
    offers = {model: Offer("base", of) for model, of in (tiers or {"a": TIERS, "b": TIERS}).items()}
    made = Machine({"base": POLICY}, offers)
    for number in range(replicas):
        made.step(ReplicaUp(Replica(f"r{number}", "base", seats, CURVE)), 0.0)
    return made


def arrive(to: Machine, name: str, model: str, tier: Tier = "standard", now: float = 0.0, **more: str) -> list[Action]:
    return to.step(Arrived(Call(name, model, tier, **more)), now)  # type: ignore[arg-type]


def test_models_on_one_pool_share_its_seats_and_its_fate() -> None:
    m = machine(seats=4)
    boarded = [arrive(m, f"{model}{number}", model) for number in range(2) for model in "ab"]
    assert all(isinstance(actions[0], Board) for actions in boarded)
    assert arrive(m, "a2", "a") == [Hold("a2", for_s=30.0)]
    assert arrive(m, "b2", "b") == [Hold("b2", for_s=30.0)]
    assert m.step(Finished("b0", 1, 1), 1.0) == [Settled("b0", 250_000), Board("a2", "r0", "standard")]
    assert m.step(ReplicaDown("r0"), 2.0) == [Cut("a0"), Cut("a1"), Cut("b1"), Cut("a2")]


def test_the_strictest_floor_aboard_holds_for_all_models() -> None:
    m = machine(strict=STRICT, loose=TIERS)
    assert arrive(m, "s0", "strict", "fast") == [Board("s0", "r0", "fast", floor_tps=66.6)]
    assert arrive(m, "l0", "loose", "fast") == [Board("l0", "r0", "fast", floor_tps=50.0)]
    assert arrive(m, "l1", "loose", "fast", 1.0) == [Hold("l1", for_s=2.0)]
    assert m.step(Left("s0"), 1.0) == [Settled("s0", 500_000), Board("l1", "r0", "fast", floor_tps=50.0)]
    assert arrive(m, "s1", "strict", "fast", 1.0) == [Hold("s1", for_s=2.0)]
    assert arrive(m, "l2", "loose", "fast", 1.0) == [Board("l2", "r0", "fast", floor_tps=50.0)]


def test_who_was_served_least_comes_first_whatever_model_it_asks_for() -> None:
    m = machine(seats=1)
    arrive(m, "a0", "a", tenant="greedy")
    arrive(m, "a1", "a", tenant="greedy")
    arrive(m, "b0", "b", tenant="poor")
    assert m.step(Finished("a0", 100, 500), 1.0)[1:] == [Board("b0", "r0", "standard")]


def test_how_many_may_wait_and_for_how_long_is_up_to_the_offer() -> None:
    hasty: dict[Tier, TierPolicy] = {"standard": TierPolicy(max_held=1, max_hold_s=5.0)}
    m = machine(seats=1, patient=TIERS, hasty=hasty)
    arrive(m, "p0", "patient")
    assert arrive(m, "p1", "patient", now=1.0) == [Hold("p1", for_s=30.0)]
    assert arrive(m, "h0", "hasty", now=2.0) == [Hold("h0", for_s=5.0)]
    assert arrive(m, "h1", "hasty", now=2.0) == [Refuse("h1", "full", retry_after_s=3)]
    assert arrive(m, "p2", "patient", now=2.0) == [Hold("p2", for_s=30.0)]
    assert m.step(Ticked(), 7.0) == [Refuse("h0", "hold_timeout", retry_after_s=3)]
    assert arrive(m, "h2", "hasty", now=7.0) == [Hold("h2", for_s=5.0)]
    assert m.step(Ticked(), 31.0) == [
        Refuse("h2", "hold_timeout", retry_after_s=2),
        Refuse("p1", "hold_timeout", retry_after_s=2),
    ]


def test_deadlines_of_calls_that_boarded_are_forgotten() -> None:
    m = machine(seats=1)
    arrive(m, "c0", "a")
    for number in range(1, 1_000):
        arrive(m, f"c{number}", "a")
        m.step(Finished(f"c{number - 1}", 1, 1), 0.0)
    [queue] = [queue for tier, queue in m.pools["base"].waiting.queues.items() if tier == "standard"]
    assert len(queue) == 0
    assert len(queue._deadlines) < 100
    assert m.step(Ticked(), 1_000.0) == []


def test_limits_per_minute_are_of_each_model() -> None:
    limit = TokenLimit(requests_pm=1)
    tiers: dict[Tier, TierPolicy] = {"standard": replace(TIERS["standard"], limit=limit)}
    m = machine(a=tiers, b=tiers)
    left = RateLimit(limit, 0, 0, 0, input_full_in_s=0.0, output_full_in_s=0.0, requests_full_in_s=60.0)
    assert arrive(m, "a0", "a", tenant="t") == [Board("a0", "r0", "standard", rate_limit=left)]
    assert arrive(m, "b0", "b", tenant="t") == [Board("b0", "r0", "standard", rate_limit=left)]
    [refusal] = arrive(m, "a1", "a", tenant="t")
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "over_limit"


def test_an_adapter_is_used_where_it_is_loaded() -> None:
    m = machine(replicas=2)
    assert arrive(m, "a0", "a") == [Board("a0", "r0", "standard")]
    assert arrive(m, "b0", "b") == [Board("b0", "r1", "standard")]
    assert arrive(m, "b1", "b") == [Board("b1", "r1", "standard")]
    assert arrive(m, "a1", "a") == [Board("a1", "r0", "standard")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "end", "tick"]),
            st.sampled_from(["ultrafast", "fast", "standard", "flex"]),
            st.sampled_from("ab"),
            st.sampled_from("tu"),
            st.floats(0.0, 2.0),
            st.integers(0, 99),
        ),
        max_size=80,
    )
)
def test_two_models_alike_are_decided_as_one(steps: list[tuple[str, Tier, str, str, float, int]]) -> None:
    """Which of two equal models a call asks for changes no decision, but where its adapter may be loaded."""
    alike: dict[Tier, TierPolicy] = {tier: replace(policy, max_held=1_000) for tier, policy in TIERS.items()}
    one, two = (machine(seats=4, replicas=3, a=alike, b=alike) for _ in range(2))
    for pool in (*one.pools.values(), *two.pools.values()):
        pool._adapters.change(set())
    now, calls = 0.0, list[str]()
    for number, (what, tier, model, tenant, seconds, which) in enumerate(steps):
        now += seconds
        if what == "arrive":
            calls.append(f"c{number}")
            actions = arrive(one, calls[-1], "a", tier, now, tenant=tenant)
            assert actions == arrive(two, calls[-1], model, tier, now, tenant=tenant)
        else:
            event = Finished(calls[which % len(calls)], 3, which) if what == "end" and calls else Ticked()
            assert one.step(event, now) == two.step(event, now)
