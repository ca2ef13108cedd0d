"""Calls with several choices take as many seats; and what does not fit keeps nobody else waiting."""

from __future__ import annotations

from math import inf

from headway.core.boarding import SET_ASIDE, TRIED_AGAIN
from headway.core.machine import Machine
from headway.core.types import (
    Board,
    Downgrade,
    Failed,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Preempt,
    Refuse,
    Replica,
    ReplicaChanged,
    ReplicaDraining,
    ReplicaUp,
    Settled,
    Ticked,
    own_pools,
)
from tests.core.test_express import CURVE, TIERS, arrive, board_many, fast, loads, machine


def mixed(*seats: int) -> Machine:
    m = Machine(*own_pools({"m": ModelPolicy(TIERS, margin=0.0, express_wait_s=inf)}))
    for number, count in enumerate(seats):
        m.step(ReplicaUp(Replica(f"r{number}", "m", count, CURVE)), 0.0)
    return m


# --- seats -----------------------------------------------------------------------------------------------------------


def test_a_call_takes_as_many_seats_as_choices_and_frees_them() -> None:
    m = machine(replicas=1, seats=4)
    assert arrive(m, "three", "standard", choices=3) == [Board("three", "r0", "standard")]
    assert loads(m) == [3]
    assert arrive(m, "two", "standard", choices=2) == [Hold("two", for_s=30.0)]
    assert m.step(Finished("three", 1, 1), 1.0) == [Settled("three", 1_000_000), Board("two", "r0", "standard")]
    assert loads(m) == [2]


def test_it_pays_for_each_of_its_seats() -> None:
    m = machine(replicas=1, seats=4)
    arrive(m, "three", "standard", choices=3)
    arrive(m, "one", "standard")
    assert m.step(Finished("three", 1, 1), 1.0) == [Settled("three", 750_000)]
    assert m.step(Finished("one", 1, 1), 2.0) == [Settled("one", 1_250_000)]


def test_its_streams_count_against_floors() -> None:
    m = machine(replicas=1)
    assert arrive(m, "two", "fast", choices=2) == [fast("two", "r0")]  # a floor of 50 allows 3 streams
    assert arrive(m, "also", "fast", 1.0, choices=2) == [Hold("also", for_s=2.0)]
    assert arrive(m, "one", "fast", 1.0) == [fast("one", "r0")]
    assert m.step(Left("two"), 1.0) == [Settled("two", 1_000_000), fast("also", "r0")]


def test_feedback_foresees_the_speed_of_a_batch_by_its_streams() -> None:
    m = machine(replicas=1)
    arrive(m, "three", "fast", choices=3)
    m.step(Finished("three", 1, 50, CURVE.speed_tps(3)), 1.0)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert abs(state.feedback.slowness - 1.0) < 1e-9


def test_the_reserve_follows_its_streams() -> None:
    m = machine(replicas=4, share=0.25, express_wait_s=0.4)
    arrive(m, "three", "fast", choices=3)
    m.step(Finished("three", 1, 1), 1.0)
    board_many(m, 60, now=1.0)
    assert [isinstance(arrive(m, f"f{number}", "fast", 2.0)[0], Board) for number in range(3)] == [True] * 3


def test_the_emptiest_replica_is_not_always_the_one_with_the_most_free_seats() -> None:
    m = mixed(2, 10)
    arrive(m, "a", "standard")
    board_many(m, 3)
    assert loads(m) == [2, 2]
    m.step(Left("a"), 0.0)
    assert loads(m) == [1, 2]
    assert arrive(m, "five", "standard", choices=5) == [Board("five", "r1", "standard")]


def test_a_flex_call_with_several_choices_makes_way_with_all_of_them() -> None:
    m = machine(replicas=1, seats=4)
    arrive(m, "x", "flex")
    arrive(m, "three", "flex", choices=3)
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0), Preempt("three")]
    assert m.step(Failed("three", "preempted"), 1.1) == [Hold("three", for_s=300.0), fast("f", "r0")]


def test_no_flex_call_makes_way_for_seats_that_would_still_be_too_few() -> None:
    m = machine(replicas=1, seats=3)
    board_many(m, 2)
    arrive(m, "x", "flex")
    assert arrive(m, "two", "fast", 1.0, choices=2) == [Hold("two", for_s=2.0)]
    assert arrive(m, "one", "fast", 1.0) == [Hold("one", for_s=2.0), Preempt("x")]


# --- more choices than seats -----------------------------------------------------------------------------------------


def test_more_choices_than_any_replica_can_ever_seat_are_refused_at_once() -> None:
    m = mixed(2, 5)
    refused = Refuse("six", "too_many_choices", retry_after_s=1)
    assert arrive(m, "six", "standard", choices=6) == [refused]
    assert arrive(m, "four", "fast", choices=4) == [Refuse("four", "too_many_choices", retry_after_s=1)]
    board_many(m, 7)
    assert arrive(m, "five", "standard", choices=5) == [Hold("five", for_s=30.0)]  # but those that fit may wait


def test_where_the_call_falls_back_and_standard_could_seat_it_it_is_downgraded() -> None:
    m = mixed(5)
    assert arrive(m, "four", "fast", choices=4, falls_back=True) == [
        Downgrade("four", "too_many_choices"),
        Board("four", "r0", "standard", reason="too_many_choices"),
    ]
    assert arrive(m, "six", "fast", choices=6, falls_back=True) == [Refuse("six", "too_many_choices", retry_after_s=1)]


def test_what_can_be_seated_follows_the_fleet() -> None:
    m = mixed(2, 5)
    m.step(ReplicaDraining("r1"), 0.0)
    assert arrive(m, "a", "standard", choices=3) == [Refuse("a", "too_many_choices", retry_after_s=1)]
    m.step(ReplicaChanged(Replica("r0", "m", 3, CURVE)), 0.0)
    assert arrive(m, "b", "standard", choices=3) == [Board("b", "r0", "standard")]


def test_where_no_replica_keeps_the_floor_for_one_fewer_choices_would_not_help() -> None:
    m = mixed()
    m.step(ReplicaUp(Replica("bare", "m", 10)), 0.0)
    assert arrive(m, "two", "fast", choices=2) == [Hold("two", for_s=2.0)]


# --- what does not fit keeps nobody waiting --------------------------------------------------------------------------


def test_a_call_that_waits_for_several_seats_holds_no_other_up() -> None:
    m = machine(replicas=1, seats=4)
    board_many(m, 4)
    arrive(m, "large", "standard", 1.0, tenant="a", choices=3)
    arrive(m, "own", "standard", 1.0, tenant="a")
    arrive(m, "small", "standard", 1.0, tenant="b")
    assert m.step(Left("standard0"), 2.0)[1:] == [Board("own", "r0", "standard")]
    assert m.step(Left("standard1"), 2.0)[1:] == [Board("small", "r0", "standard")]
    m.step(Left("standard2"), 2.0)
    m.step(Left("standard3"), 2.0)
    assert m.step(Left("small"), 2.0)[1:] == [Board("large", "r0", "standard")]


def test_it_is_tried_before_the_others_as_soon_as_it_fits() -> None:
    m = machine(replicas=1, seats=4)
    arrive(m, "four", "standard", choices=4)
    arrive(m, "large", "standard", 1.0, tenant="a", choices=3)
    for number in range(4):
        arrive(m, f"small{number}", "standard", 1.0, tenant="b")
    assert m.step(Left("four"), 2.0)[1:] == [Board("large", "r0", "standard"), Board("small0", "r0", "standard")]


def test_a_long_prompt_that_waits_holds_no_other_up() -> None:
    """A held fast call with a prompt of two million tokens kept another tenant's held while seats were free."""
    m = mixed()
    m.step(ReplicaUp(Replica("r0", "m", 10, CURVE, prompt_tps=1_000.0)), 0.0)
    for number in range(3):
        arrive(m, f"f{number}", "fast")
    assert arrive(m, "long", "fast", 1.0, tenant="a", prompt_tokens=2_000_000) == [Hold("long", for_s=2.0)]
    assert arrive(m, "short", "fast", 1.0, tenant="b") == [Hold("short", for_s=2.0)]
    assert m.step(Left("f0"), 1.5)[1:] == [fast("short", "r0")]
    assert m.step(Ticked(), 3.0) == [Refuse("long", "hold_timeout", retry_after_s=1)]


def test_a_stricter_floor_that_waits_holds_no_other_tier_or_tenant_up() -> None:
    m = machine(replicas=1)
    board_many(m, 3)
    arrive(m, "u", "ultrafast", 1.0, tenant="a")
    arrive(m, "f", "fast", 1.0, tenant="b")
    assert m.step(Left("standard0"), 1.0)[1:] == [fast("f", "r0")]


def test_each_step_tries_a_bounded_number_of_calls_that_do_not_fit() -> None:
    m = machine(replicas=1, seats=4)
    board_many(m, 4)
    for number in range(TRIED_AGAIN + 3 * SET_ASIDE):
        arrive(m, f"large{number}", "standard", 1.0, tenant=f"a{number}", choices=2 + number % 2)
    arrive(m, "small", "standard", 1.0, tenant="b")
    tries: list[str] = []
    find = m.pools["m"]._find
    m.pools["m"]._find = lambda call, *more: tries.append(call.id) or find(call, *more)  # type: ignore[method-assign, func-returns-value]
    assert m.step(Left("standard0"), 2.0) == [Settled("standard0", 500_000), Board("small", "r0", "standard")]
    assert len(tries) <= TRIED_AGAIN + SET_ASIDE


def test_a_tenant_with_many_calls_that_do_not_fit_holds_no_other_up() -> None:
    """Held fast calls with long prompts kept another tenant's held for as many steps as it took to try them all."""
    m = mixed()
    m.step(ReplicaUp(Replica("r0", "m", 10, CURVE, prompt_tps=1_000.0)), 0.0)
    for number in range(3):
        arrive(m, f"f{number}", "fast", tenant="b")
    for number in range(9):
        arrive(m, f"long{number}", "fast", 1.0, tenant="a", prompt_tokens=2_000_000 - number)
    arrive(m, "short", "fast", 1.0, tenant="b")
    assert m.step(Finished("f0", 10, 10), 1.5)[1:] == [fast("short", "r0")]


def test_a_tenant_with_many_calls_that_do_not_fit_does_not_change_the_order_of_others() -> None:
    """Not even if all others have been served more, and one of them has a shorter prompt."""
    m = machine(replicas=1, seats=4)
    board_many(m, 4)
    for number in range(90):
        arrive(m, f"large{number}", "standard", 1.0, tenant="a", choices=3)
    for tenant, tokens in (("b", 10), ("c", 20)):
        m.pools["m"].waiting.queues["standard"].charge(tenant, tokens)
    arrive(m, "second", "standard", 1.0, tenant="c", prompt_tokens=10)
    arrive(m, "first", "standard", 1.0, tenant="b", prompt_tokens=1_000)
    assert m.step(Left("standard0"), 2.0)[1:] == [Board("first", "r0", "standard")]
    assert m.step(Left("standard1"), 2.0)[1:] == [Board("second", "r0", "standard")]
