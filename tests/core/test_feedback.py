"""What streams really got corrects what is promised next; and the other things around the rule, each by an example."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from headway.core.caps import FEEDBACK_STEP, RETRY_S
from headway.core.curve import Curve
from headway.core.feedback import Feedback, Spread
from headway.core.machine import Machine
from headway.core.progress import StreamProgress
from headway.core.rate_limit import RateLimit, RateLimiter, TokenLimit
from headway.core.replicas import ReplicaState
from headway.core.types import (
    TICK_S,
    Action,
    Arrived,
    Board,
    Call,
    Delivering,
    Downgrade,
    Failed,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Preempt,
    Refuse,
    Replica,
    ReplicaBehind,
    ReplicaChanged,
    ReplicaRecovered,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
    Tier,
    own_pools,
)
from tests.core.test_express import CURVE, TIERS, arrive, board_many, fast, loads, machine


def serve_one(m: Machine, name: str, now: float, slowness: float, seconds: float = 1.0) -> str:
    """A fast call alone on its replica that is given tokens so much more slowly than the curve says."""
    [board] = [action for action in arrive(m, name, "fast", now) if isinstance(action, Board)]
    m.step(Finished(name, 1, 50, CURVE.speed_tps(1) / slowness), now + seconds)
    return board.replica


def after_fifty(slowness: float) -> ReplicaState:
    """A replica of a pool that has served fifty such streams."""
    m = machine()
    for number in range(50):
        serve_one(m, f"f{number}", 2.0 * number, slowness)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    return state


def test_streams_as_fast_as_foreseen_change_nothing() -> None:
    state = after_fifty(slowness=1.0)
    assert state.feedback.slowness == pytest.approx(1.0)
    assert state.caps == {100.0: 1, 50.0: 3}


def test_a_replica_that_has_become_slower_carries_fewer() -> None:
    m = machine()
    for number in range(20):
        serve_one(m, f"f{number}", 2.0 * number, slowness=1.3)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert state.feedback.slowness > 1.3  # slower streams may follow
    assert state.caps == {100.0: 0, 50.0: 1}
    for number in range(20, 3000):
        serve_one(m, f"f{number}", 2.0 * number, slowness=1.3)
    assert state.feedback.slowness == pytest.approx(1.3, rel=0.02)
    assert state.caps == {100.0: 0, 50.0: 2}  # 38 tok/s among 3, 51 among 2
    for number in range(100):
        serve_one(m, f"g{number}", 6000.0 + 2.0 * number, slowness=0.9)
    assert state.caps_slowness == pytest.approx(1.0, rel=FEEDBACK_STEP + 1e-9)


def test_a_replica_that_seems_faster_than_its_curve_carries_no_more() -> None:
    state = after_fifty(slowness=0.5)
    assert state.feedback.mean < 0.6
    assert state.caps == {100.0: 1, 50.0: 3}


def test_the_company_a_stream_had_is_not_held_against_the_replica() -> None:
    m = machine(replicas=1)
    for number in range(3):
        arrive(m, f"f{number}", "fast")
    for number in range(3):
        m.step(Finished(f"f{number}", 1, 50, CURVE.speed_tps(3)), 1.0)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert state.feedback.slowness == pytest.approx(1.0)


def test_the_effect_of_one_stream_is_bounded() -> None:
    feedback = Feedback(Spread(0.995))
    feedback.observe(20.0, is_missed=True)
    assert feedback.slowness < 1.25


@pytest.mark.parametrize("kept_target", [0.9, 0.995])
@pytest.mark.parametrize("tail", ["normal", "heavy"])
def test_half_as_many_streams_are_slower_than_the_estimate_as_the_owner_allows(kept_target: float, tail: str) -> None:
    dice = random.Random(7)
    spread = Spread(kept_target)
    replicas = [Feedback(spread) for _ in range(4)]
    slower = 0
    for number in range(60_000):
        feedback = dice.choice(replicas)
        slowness = 1.1 + 0.05 * dice.gauss(0.0, 1.0) if tail == "normal" else 1.0 + 0.03 * dice.paretovariate(3.0)
        if number >= 20_000:
            slower += slowness > feedback.slowness
        feedback.observe(slowness, is_missed=False)
    assert slower / 40_000 == pytest.approx(0.5 * (1.0 - kept_target), rel=0.1)


def test_without_noise_the_estimate_is_the_mean() -> None:
    feedback = Feedback(Spread(0.995))
    for _ in range(5000):
        feedback.observe(1.2, is_missed=False)
    assert feedback.slowness == pytest.approx(1.2, rel=0.01)


def test_floors_that_are_missed_raise_the_estimate_even_if_the_streams_were_no_slower_than_others() -> None:
    def learnt(missed_in: int) -> float:
        feedback = Feedback(Spread(0.995))
        for number in range(2000):
            feedback.observe(1.0 + 0.02 * (number % 2), is_missed=number % missed_in == 0)
        return feedback.slowness

    assert learnt(missed_in=100) > learnt(missed_in=1000) > 1.02


def test_a_replica_that_is_too_slow_for_every_floor_is_tried_again() -> None:
    m = machine(replicas=1)
    number = 0
    while not isinstance(arrive(m, f"f{number}", "fast", 2.0 * number)[0], Hold):
        m.step(Finished(f"f{number}", 1, 50, CURVE.speed_tps(1) / 3.0), 2.0 * number + 1.0)
        number += 1
    closed_at = 2.0 * (number - 1) + 1.0
    m.step(Left(f"f{number}"), 2.0 * number)
    assert m.step(Ticked(), closed_at + RETRY_S - 0.1) == []
    assert isinstance(arrive(m, "early", "fast", closed_at + RETRY_S - 0.05)[0], Hold)
    assert m.step(Ticked(), closed_at + RETRY_S + 0.1) == [fast("early", "r0")]


def test_a_replica_that_is_behind_when_it_should_be_tried_again_waits_and_nothing_learnt_is_forgotten() -> None:
    m = machine(replicas=1)
    flat = Curve(a=0.01, c=1e-6, d=0.0)  # as fast with two streams as with one: once it is too slow, it is for both
    m.step(ReplicaChanged(Replica("r0", "m", 10, flat)), 0.0)
    arrive(m, "aboard", "fast")
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    now = 0.0
    while state.light_seats:
        now += 1.0
        arrive(m, f"f{now}", "fast", now)
        m.step(Finished(f"f{now}", 1, 50, flat.speed_tps(2) / 3.0), now + 0.5)
    closed_at = now + 0.5
    learnt = state.feedback.slowness
    m.step(ReplicaBehind("r0"), closed_at + 1.0)
    m.step(Ticked(), closed_at + RETRY_S + 0.1)
    assert state.feedback.slowness == learnt
    m.step(ReplicaRecovered("r0"), closed_at + RETRY_S + 0.2)
    assert isinstance(arrive(m, "early", "fast", closed_at + RETRY_S + 0.3)[0], Hold)
    m.step(Left("early"), closed_at + RETRY_S + 0.4)
    m.step(Ticked(), closed_at + 2 * RETRY_S + 0.2)
    assert isinstance(arrive(m, "late", "fast", closed_at + 2 * RETRY_S + 0.3)[0], Board)
    m.check(closed_at + 2 * RETRY_S + 0.3)


def test_a_fleet_whose_streams_differ_too_much_for_any_floor_is_tried_again() -> None:
    m = machine(replicas=1)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    now = 0.0
    for number in range(400):
        actions = arrive(m, f"f{number}", "fast", now)
        slowness = 3.0 if number % 2 else 0.5
        if isinstance(actions[0], Board):
            m.step(Finished(f"f{number}", 1, 50, CURVE.speed_tps(1) / slowness), now + 1.0)
        else:
            m.step(Left(f"f{number}"), now + 1.0)
        now += 2.0
    boarded_after = now
    while not isinstance(arrive(m, f"late{now}", "fast", now)[0], Board):
        m.step(Left(f"late{now}"), now)
        now += 1.0
        m.step(Ticked(), now)
        assert now < boarded_after + 10 * RETRY_S


# --- streams that fall behind ----------------------------------------------------------------------------------------


def test_a_replica_on_which_a_stream_falls_behind_takes_no_calls_until_it_recovers() -> None:
    m = machine(replicas=1)
    arrive(m, "a", "fast")
    assert m.step(ReplicaBehind("r0"), 1.0) == []
    assert arrive(m, "b", "fast", 1.1) == [Hold("b", for_s=2.0)]
    assert arrive(m, "s", "standard", 1.2) == [Hold("s", for_s=30.0)]  # nor does it ride
    m.check(1.2)
    assert m.step(ReplicaRecovered("r0"), 1.5) == [fast("b", "r0"), Board("s", "r0", "standard")]
    m.check(1.5)


def test_another_replica_takes_the_express_calls_meanwhile() -> None:
    m = machine(replicas=4)
    arrive(m, "a", "fast")
    m.step(ReplicaBehind("r0"), 1.0)
    assert arrive(m, "b", "fast", 1.1) == [fast("b", "r1")]


def test_flex_calls_are_preempted_for_a_stream_that_falls_behind() -> None:
    m = machine(replicas=1, seats=3)
    arrive(m, "a", "fast")
    assert arrive(m, "x", "flex") == [Board("x", "r0", "flex")]
    assert m.step(ReplicaBehind("r0"), 1.0) == [Preempt("x")]
    assert m.step(Failed("x", "preempted"), 1.1) == [Hold("x", for_s=300.0)]
    assert m.step(ReplicaRecovered("r0"), 1.5) == [Board("x", "r0", "flex")]
    assert m.step(ReplicaBehind("r0"), 2.0) == []  # once is enough
    m.check(2.0)


def test_a_replica_whose_slow_stream_has_left_carries_standard_calls_and_is_tried_again_later() -> None:
    m = machine(replicas=1)
    arrive(m, "a", "fast")
    m.step(ReplicaBehind("r0"), 1.0)
    assert arrive(m, "s", "standard", 1.5) == [Hold("s", for_s=30.0)]
    assert m.step(Left("a"), 2.0) == [Settled("a", 2_000_000), Board("s", "r0", "standard")]
    m.step(ReplicaRecovered("r0"), 2.1)
    assert arrive(m, "b", "fast", 2.2) == [Hold("b", for_s=2.0)]
    m.step(Left("b"), 3.0)
    assert isinstance(arrive(m, "c", "fast", 2.0 + RETRY_S)[0], Hold)
    assert m.step(Ticked(), 2.1 + RETRY_S) == [fast("c", "r0")]
    m.check(2.1 + RETRY_S)


def test_a_replica_that_is_not_known_or_carries_no_floor_is_not_behind() -> None:
    m = machine(replicas=1)
    m.step(ReplicaBehind("r0"), 1.0)
    m.step(ReplicaRecovered("r0"), 1.0)
    m.step(ReplicaBehind("other"), 1.0)
    m.step(ReplicaRecovered("other"), 1.0)
    assert arrive(m, "a", "fast", 1.1) == [fast("a", "r0")]


def look(progress: StreamProgress, tokens: float, now: float, *, last_at: float | None = None) -> bool:
    return progress.falls_behind(tokens, first_at=0.0, last_at=now if last_at is None else last_at, now=now)


def test_a_stream_falls_behind_if_it_is_late_and_slower_than_its_floor() -> None:
    progress = StreamProgress(20.0)
    assert not look(progress, 4, 0.25)  # late by two tokens at the most
    assert look(progress, 7, 0.5)
    assert look(progress, 11, 0.75)
    assert not look(progress, 17, 1.0)  # it has got six in a quarter of a second: catching up
    assert look(progress, 17, 2.0, last_at=1.0)  # silent for a second


def test_tokens_that_come_together_are_not_late_before_they_come() -> None:
    progress = StreamProgress(20.0)
    assert not look(progress, 9, 0.4)
    assert not look(progress, 9, 0.6, last_at=0.4)
    assert not look(progress, 17, 0.8)


def test_a_replica_without_a_curve_does_not_stand_in_the_way_of_one_with() -> None:
    m = Machine(*own_pools({"m": ModelPolicy(TIERS, margin=0.0)}))
    m.step(ReplicaUp(Replica("bare", "m", 10)), 0.0)
    m.step(ReplicaUp(Replica("measured", "m", 10, CURVE)), 0.0)
    arrive(m, "s0", "standard")
    arrive(m, "s1", "standard")
    assert arrive(m, "f", "fast") == [fast("f", "measured")]


# --- flex calls make way ---------------------------------------------------------------------------------------------


def test_a_flex_call_makes_way_for_a_fast_one_and_goes_on_later() -> None:
    m = machine(replicas=1, seats=3)
    board_many(m, 3, "flex")
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0), Preempt("flex2")]
    # Its seat is its own until the engine has let go of it.
    assert m.step(Ticked(), 1.05) == []
    assert m.step(Failed("flex2", "preempted"), 1.1) == [Hold("flex2", for_s=300.0), fast("f", "r0")]
    # Two others ride with it, each for a third of the time: one seat of three.
    assert m.step(Finished("f", 1, 1), 2.0) == [Settled("f", 300_000), Board("flex2", "r0", "flex")]
    assert m.step(Finished("flex1", 1, 1), 2.0) == [Settled("flex1", 666_667)]


def test_a_call_is_preempted_once_and_never_when_its_answer_has_begun() -> None:
    m = machine(replicas=1, seats=2)
    board_many(m, 2, "flex")
    m.step(Delivering("flex1"), 0.5)
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0), Preempt("flex0")]
    m.step(Failed("flex0", "preempted"), 1.1)
    m.step(Left("f"), 1.2)
    m.step(Ticked(), 8.0)
    assert loads(m) == [2]
    assert arrive(m, "g", "fast", 9.0) == [Hold("g", for_s=2.0)]


def test_a_call_whose_replica_fails_while_it_makes_way_is_not_preempted_again() -> None:
    m = machine(replicas=1, seats=2)
    board_many(m, 2, "flex")
    m.step(Delivering("flex1"), 0.5)
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0), Preempt("flex0")]
    m.step(ReplicaSuspect("r0"), 1.1)
    m.step(Failed("flex0", "connect"), 1.1)
    m.step(Left("f"), 1.2)
    assert m.step(ReplicaUp(Replica("r0", "m", 2, CURVE)), 8.0) == [Board("flex0", "r0", "flex")]
    assert arrive(m, "g", "fast", 9.0) == [Hold("g", for_s=2.0)]


def test_nobody_is_preempted_where_that_makes_no_seat() -> None:
    m = machine(replicas=1)
    board_many(m, 5)
    arrive(m, "x", "flex")
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0)]


# --- long prompts ----------------------------------------------------------------------------------------------------


def reading(*prompt_tps: float) -> Machine:
    m = Machine(*own_pools({"m": ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)}))
    for number, tps in enumerate(prompt_tps):
        m.step(ReplicaUp(Replica(f"r{number}", "m", 10, CURVE, tps)), 0.0)
    return m


def test_a_long_prompt_does_not_board_where_it_would_cost_a_floor() -> None:
    m = reading(1000.0, 1000.0)
    assert arrive(m, "a", "fast", prompt_tokens=5000) == [fast("a", "r0")]  # nobody is aboard
    # For one second, the first call has got tokens twice as fast as promised: it is ahead by a second.
    assert arrive(m, "b", "fast", 6.0, prompt_tokens=900) == [fast("b", "r0")]
    assert arrive(m, "c", "fast", 6.0, prompt_tokens=900) == [fast("c", "r1")]
    assert arrive(m, "d", "fast", 6.0, prompt_tokens=900) == [Hold("d", for_s=2.0)]
    assert m.step(Finished("c", 1, 1), 6.5) == [Settled("c", 500_000), fast("d", "r1")]


def test_prompts_may_take_what_the_slowest_stream_is_ahead_of_its_floor() -> None:
    m = reading(1000.0)
    arrive(m, "a", "fast")
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert state.slack_s(0.0) == 0.0
    assert state.slack_s(0.4) == pytest.approx(0.4)  # 40 tokens, for which the floor allows 0.8 s
    assert arrive(m, "b", "fast", 0.4, prompt_tokens=300) == [fast("b", "r0")]
    assert state.slack_s(0.4) == pytest.approx(0.0)  # of the second call; the first is still ahead by 0.1 s
    assert arrive(m, "c", "fast", 0.4, prompt_tokens=100) == [Hold("c", for_s=2.0)]
    assert m.step(Ticked(), 0.7) == []  # now the second prompt has been read
    assert m.step(Ticked(), 0.9) == []
    assert m.step(Ticked(), 1.1) == [fast("c", "r0")]  # two streams are a third faster than promised


def test_a_stream_slower_than_its_curve_has_less_time_for_prompts() -> None:
    m = reading(1000.0)
    for number in range(60):
        serve_one(m, f"f{number}", 2.0 * number, slowness=1.2)
    arrive(m, "a", "fast", 200.0)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert state.slack_s(201.0) == pytest.approx(2.0 / state.feedback.slowness - 1.0)


def test_a_standard_call_with_a_long_prompt_does_not_ride() -> None:
    m = reading(1000.0)
    arrive(m, "f", "fast")
    assert arrive(m, "short", "standard", 1.0, prompt_tokens=50) == [Board("short", "r0", "standard")]
    assert arrive(m, "long", "standard", 1.0, prompt_tokens=2000) == [Hold("long", for_s=30.0)]


def test_where_nothing_is_known_of_prompts_they_count_for_nothing() -> None:
    m = reading(0.0)
    arrive(m, "a", "fast", prompt_tokens=10**6)
    assert arrive(m, "b", "fast", prompt_tokens=10**6) == [fast("b", "r0")]


# --- limits of tokens per minute -------------------------------------------------------------------------------------


LIMIT = TokenLimit(output_tpm=60)


def limited() -> Machine:
    tiers = {**TIERS, "fast": replace(TIERS["fast"], limit=LIMIT)}
    m = Machine(*own_pools({"m": ModelPolicy(tiers, margin=0.0)}))
    m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 0.0)
    return m


def test_who_has_used_up_a_tiers_limit_is_refused_or_downgraded_until_it_has_filled() -> None:
    m = limited()
    arrive(m, "a", "fast", tenant="t")
    m.step(Finished("a", 1000, 70), 0.0)  # overdrawn by ten: a token is back after 11 s
    used_up = RateLimit(LIMIT, -1000, -10, -1, input_full_in_s=0.0, output_full_in_s=70.0)
    assert arrive(m, "b", "fast", tenant="t") == [Refuse("b", "over_limit", retry_after_s=11, rate_limit=used_up)]
    assert arrive(m, "c", "fast", tenant="t", falls_back=True)[0] == Downgrade("c", "over_limit")
    untouched = RateLimit(LIMIT, 0, 60, -1, input_full_in_s=0.0, output_full_in_s=0.0)
    assert arrive(m, "d", "fast", tenant="another")[0] == fast("d", "r0", untouched)
    filling = RateLimit(LIMIT, -1000, 1, -2, input_full_in_s=0.0, output_full_in_s=58.5)
    assert arrive(m, "e", "fast", 11.5, tenant="t")[0] == fast("e", "r0", filling)


def test_a_stream_that_is_cut_counts_for_what_it_was_given() -> None:
    m = limited()
    arrive(m, "a", "fast", tenant="t")
    m.step(Left("a", 10, 60), 0.0)
    assert isinstance(arrive(m, "b", "fast", tenant="t")[0], Refuse)


def test_a_bucket_fills_over_a_minute_and_no_further() -> None:
    limiter, limit = RateLimiter(), TokenLimit(100, 0)
    limiter.spend("t", limit, 0.0, input=50, output=1_000_000)
    soon, later = limiter.of("t", limit, 15.0), limiter.of("t", limit, 300.0)
    assert soon is not None
    assert later is not None
    assert (soon.input_left, later.input_left) == (75, 100)
    assert soon.input_full_in_s == pytest.approx(15.0)
    assert not soon.is_used_up


def test_without_a_limit_nothing_is_kept() -> None:
    limiter = RateLimiter()
    limiter.spend("t", TokenLimit(), 0.0, input=50, output=50)
    assert limiter.of("t", TokenLimit(), 1.0) is None


def test_a_key_has_limits_of_its_own_and_one_that_is_downgraded_draws_on_the_others() -> None:
    m = machine(replicas=1)
    express, other = TokenLimit(requests_pm=1), TokenLimit(requests_pm=2)

    def call(name: str, tier: Tier) -> Call:
        return Call(name, "m", tier, "t", falls_back=True, express_limit=express, other_limit=other)

    def ask(name: str, tier: Tier, now: float) -> list[Action]:
        return m.step(Arrived(call(name, tier)), now)

    used_express = RateLimit(express, 0, 0, 0, input_full_in_s=0.0, output_full_in_s=0.0, requests_full_in_s=60.0)
    assert ask("f0", "fast", 0.0)[0] == fast("f0", "r0", used_express)
    assert ask("f1", "fast", 0.1)[0] == Downgrade("f1", "over_limit")
    m.step(Finished("f1", 5, 5), 0.2)

    def rate_limit(requests_left: int) -> RateLimit:
        """Of the others' bucket, in which the tokens of the downgraded call are."""
        return RateLimit(other, -5, -5, requests_left, 0.0, 0.0, requests_full_in_s=30.0 * (2 - requests_left))

    assert ask("s0", "standard", 0.3)[0] == Board("s0", "r0", "standard", rate_limit=rate_limit(1))
    assert ask("s1", "standard", 0.3)[0] == Board("s1", "r0", "standard", rate_limit=rate_limit(0))
    assert ask("s2", "standard", 0.3) == [Refuse("s2", "over_limit", 30, rate_limit(0))]


def test_idle_replicas_of_a_large_pool_follow_the_spread_soon() -> None:
    """A few in each step, and not anew for every stream that changes the spread."""
    m, now = machine(replicas=100, share=0.98), 0.0
    arrive(m, "stays", "fast", now)  # so that two replicas get all fast calls
    for number in range(200):
        now = 0.05 * number
        serve_one(m, f"f{number}", now, slowness=1.0 if number % 2 else 1.4, seconds=0.04)
    for _ in range(60):  # two replicas in each step
        now += TICK_S
        m.step(Ticked(), now)
    for state in m.pools["m"].doors.replicas.values():
        assert state.caps_slowness == pytest.approx(state.feedback.slowness, rel=0.02)
