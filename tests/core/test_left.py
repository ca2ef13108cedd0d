"""A call that is left counts as served: by its tokens, or by its time aboard where nobody could count them."""

from __future__ import annotations

from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.pace import UNKNOWN_TPS
from headway.core.rate_limit import TokenLimit
from headway.core.types import (
    Action,
    Arrived,
    Board,
    Call,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Refuse,
    Replica,
    ReplicaUp,
    Settled,
    TierPolicy,
    own_pools,
)

CURVE = Curve(0.005, 0.005, 0.0)  # 100 tokens/s for one stream, 66.7 for each of two


def machine(seats: int = 4, curve: Curve | None = CURVE, output_tpm: int = 0) -> Machine:
    tier = TierPolicy(10, 30.0, limit=TokenLimit(output_tpm=output_tpm))
    made = Machine(*own_pools({"m": ModelPolicy({"standard": tier})}))
    made.step(ReplicaUp(Replica("r0", "m", seats, curve)), 0.0)
    return made


def arrive(to: Machine, name: str, tenant: str = "t", now: float = 0.0, choices: int = 1) -> list[Action]:
    return to.step(Arrived(Call(name, "m", "standard", tenant, choices=choices)), now)


def judged(m: Machine, left: Left, now: float) -> int:
    [settled] = [action for action in m.step(left, now) if isinstance(action, Settled)]
    return settled.estimated_tokens


def test_tokens_that_nobody_counted_are_judged_by_the_time_aboard_and_the_load() -> None:
    m = machine()
    arrive(m, "a")
    arrive(m, "b", now=1.0)
    assert judged(m, Left("a", 5, None), 2.0) == 166  # a second alone, and one beside another
    assert judged(m, Left("b", 5, None), 3.0) == 166


def test_they_are_never_more_than_the_call_asked_for() -> None:
    m = machine()
    arrive(m, "a")
    assert judged(m, Left("a", 5, None, max_output_tokens=30), 2.0) == 30


def test_each_choice_is_judged() -> None:
    m = machine()
    arrive(m, "a", choices=2)
    assert judged(m, Left("a", 5, None), 3.0) == 400  # three seconds of two streams


def test_a_replica_without_a_curve_is_taken_to_give_a_common_speed() -> None:
    m = machine(curve=None)
    arrive(m, "a")
    assert judged(m, Left("a", 5, None), 2.0) == 2 * UNKNOWN_TPS


def test_a_replica_without_a_curve_gives_what_it_gave_before() -> None:
    m = machine(curve=None)
    arrive(m, "a", choices=2)
    m.step(Finished("a", 5, 1_000), 2.0)  # 250 tokens a second on each of two seats
    arrive(m, "b", now=2.0)
    assert judged(m, Left("b", 5, None), 5.0) == 750


def test_a_call_that_had_no_seat_is_charged_nothing() -> None:
    m = machine(seats=1, output_tpm=100)
    arrive(m, "a", "other")
    arrive(m, "held")
    assert judged(m, Left("held", 0, None), 9.0) == 0
    assert isinstance(arrive(m, "next", now=9.0)[0], Hold)


def test_tokens_that_were_counted_are_not_judged() -> None:
    m = machine()
    arrive(m, "a")
    assert m.step(Left("a", 5, 7), 2.0) == [Settled("a", 2_000_000)]


def test_what_was_judged_is_taken_from_the_limit() -> None:
    m = machine(output_tpm=100)
    arrive(m, "a")
    m.step(Left("a", 5, None), 2.0)
    [refused] = arrive(m, "b", now=2.0)
    assert isinstance(refused, Refuse)
    assert refused.reason == "over_limit"


def test_who_leaves_each_time_comes_after_who_was_served_less() -> None:
    m = machine(seats=1)
    arrive(m, "first", "leaver")
    arrive(m, "again", "leaver")
    arrive(m, "of other", "other")
    assert m.step(Left("first", 5, None), 2.0)[1] == Board("of other", "r0", "standard")
    assert m.step(Finished("of other", 1, 1), 3.0)[1] == Board("again", "r0", "standard")


def test_who_leaves_pays_for_the_time_that_gave_no_tokens() -> None:
    m = machine(seats=1)
    arrive(m, "before")
    m.step(Finished("before", 0, 100), 1.0)
    arrive(m, "first", "leaver", now=1.0)
    arrive(m, "again", "leaver", now=1.0)
    arrive(m, "of other", "other", now=1.0)
    arrive(m, "of other too", "other", now=1.0)
    assert m.step(Left("first", 5, 10), 3.0)[1] == Board("of other", "r0", "standard")
    # Two seconds are 200 tokens. By its 15 tokens alone the leaver would come before one that was served 100.
    assert m.step(Finished("of other", 0, 100), 4.0)[1] == Board("of other too", "r0", "standard")
