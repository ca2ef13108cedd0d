"""Calls board where their prompts are expected to be in the cache, as far as that costs nobody more than it saves."""

from __future__ import annotations

from math import inf

import pytest

from headway.core.machine import Machine
from headway.core.replicas import ReplicaState
from headway.core.types import (
    Action,
    Adopted,
    Arrived,
    Board,
    Call,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Replica,
    ReplicaCacheLost,
    ReplicaDown,
    ReplicaUp,
    Tier,
    own_pools,
)
from tests.core.test_express import CURVE, TIERS, fast, loads


def fleet(replicas: int = 2, seats: int = 16, prompt_tps: float = 1_000.0, share: float = 1.0) -> Machine:
    policy = ModelPolicy(TIERS, standard_share=share, margin=0.0, express_wait_s=inf)
    made = Machine(*own_pools({"m": policy}))
    for number in range(replicas):
        made.step(ReplicaUp(Replica(f"r{number}", "m", seats, CURVE, prompt_tps)), 0.0)
    return made


def ask(
    m: Machine, name: str, *keys: int, tier: Tier = "standard", now: float = 0.0, each: int = 2_000
) -> list[Action]:
    """A prompt with so many tokens from one key to the next."""
    lengths = tuple(each * (place + 1) for place in range(len(keys)))
    tokens = lengths[-1] if lengths else 0
    return m.step(Arrived(Call(name, "m", tier, prefix_keys=keys, prefix_tokens=lengths, prompt_tokens=tokens)), now)


def state_of(m: Machine, name: str) -> ReplicaState:
    state = m.pools["m"].replica_state(name)
    assert state is not None
    return state


def test_the_next_turn_boards_where_the_last_one_was_read() -> None:
    m = fleet()
    assert ask(m, "other") == [Board("other", "r0", "standard")]
    assert ask(m, "a1", 1) == [Board("a1", "r1", "standard")]
    m.step(Finished("a1", 2_000, 100), 10.0)
    ask(m, "more", now=10.0)
    ask(m, "another", now=10.0)
    assert loads(m) == [2, 1]
    assert ask(m, "a2", 1, 2, now=10.0) == [Board("a2", "r1", "standard")]
    assert ask(m, "a3", 1, 2, 3, now=20.0) == [Board("a3", "r1", "standard")]  # one stream more than on the other
    m.check(20.0)


def test_a_fuller_replica_is_left_if_steps_get_longer_by_more_than_the_prompt_counts() -> None:
    """With an answer of 200 tokens, three streams more cost 3 s; 400 tokens, read in 0.4 s, count as 2.4 s."""
    for each, replica in ((400, "r1"), (20_000, "r0")):
        m = fleet(seats=64)
        ask(m, "a1", 1, each=each)
        for number in range(6):
            ask(m, f"s{number}", now=100.0)
        for number in (1, 3, 5):
            m.step(Left(f"s{number}" if m.replica_of(f"s{number}") == "r1" else f"s{number - 1}"), 100.0)
        assert loads(m) == [4, 0]
        assert ask(m, "a2", 1, now=100.0, each=each) == [Board("a2", replica, "standard")]


def test_nobody_boards_a_replica_that_is_much_fuller_than_the_emptiest() -> None:
    m = fleet(seats=32)
    boarded = [ask(m, f"a{number}", 1, now=100.0 * number, each=10**6)[0] for number in range(12)]
    assert max(abs(first - second) for first, second in [loads(m)]) <= 5, boarded
    m.check(1_100.0)


def test_without_a_speed_of_reading_a_prefix_is_worth_two_streams() -> None:
    m = fleet(prompt_tps=0.0, seats=64)
    for number in range(3):
        assert ask(m, f"a{number}", 1) == [Board(f"a{number}", "r0", "standard")]
    assert ask(m, "a3", 1) == [Board("a3", "r1", "standard")]


def test_prompts_that_are_being_read_are_waited_for() -> None:
    m = fleet()
    ask(m, "a1", 1)
    m.step(Left("a1"), 0.1)
    ask(m, "long", each=0, now=50.0)
    m.step(Arrived(Call("long2", "m", "standard", prompt_tokens=50)), 50.0)
    first = m.replica_of("long")
    m.step(Left("long"), 50.0)
    m.step(Left("long2"), 50.0)
    m.step(Arrived(Call("huge", "m", "standard", prompt_tokens=10**6)), 50.0)
    assert first == "r1"
    holder, other = "r0", "r1"
    assert m.replica_of("huge") in (holder, other)
    expected = other if m.replica_of("huge") == holder else holder
    assert ask(m, "a2", 1, 2, now=50.0) == [Board("a2", expected, "standard")]


def test_an_express_call_prefers_a_light_replica_that_holds_its_prompt() -> None:
    m = fleet(share=0.0, prompt_tps=0.0)
    for name, key, replica in (("a", 1, "r0"), ("b", 9, "r0"), ("c", 9, "r0"), ("d", 5, "r1"), ("e", 6, "r1")):
        assert ask(m, name, key, tier="fast") == [fast(name, replica)]
    m.step(Left("b"), 0.0)
    assert loads(m) == [2, 2]
    assert ask(m, "f", 5, 7, tier="fast") == [fast("f", "r1")]
    assert ask(m, "g", 5, 8, tier="fast") == [fast("g", "r0")]  # its floor allows three streams


def test_the_replica_that_becomes_light_is_one_that_holds_the_prompt() -> None:
    m = fleet(replicas=4, share=0.0, prompt_tps=0.0)
    for number in range(4):
        ask(m, f"s{number}", number + 1)
    assert loads(m) == [1, 1, 1, 1]
    assert ask(m, "a", 3, tier="fast") == [fast("a", "r2")]


def test_a_standard_call_rides_on_a_retiring_replica_that_holds_its_prompt() -> None:
    m = fleet(replicas=2, share=0.0)
    assert ask(m, "a", 1, tier="fast") == [fast("a", "r0")]
    state = state_of(m, "r0")
    state.retiring = True
    m.pools["m"].doors.place(state, 0.0)
    assert ask(m, "b", 1, now=10.0) == [Board("b", "r0", "standard")]
    assert ask(m, "c", 2, now=10.0) == [Board("c", "r1", "standard")]
    m.check(10.0)


def test_what_is_cached_takes_no_time_from_the_streams_aboard() -> None:
    m = fleet(replicas=1, share=0.0)
    ask(m, "before", 1, each=5_000)
    m.step(Left("before"), 10.0)
    assert ask(m, "a", tier="fast", now=20.0) == [fast("a", "r0")]
    assert ask(m, "b", 7, tier="fast", now=21.0, each=5_000) == [Hold("b", for_s=2.0)]
    assert ask(m, "c", 1, tier="fast", now=21.0, each=5_000) == [fast("c", "r0")]


@pytest.mark.parametrize("lost", [[1], None])
def test_an_engine_that_has_lost_its_cache_reads_again(lost: list[int] | None) -> None:
    m = fleet(replicas=1, share=0.0)
    ask(m, "before", 1, each=5_000)
    m.step(Left("before"), 10.0)
    ask(m, "a", tier="fast", now=20.0)
    m.step(ReplicaCacheLost("r0", lost), 20.0)
    assert ask(m, "b", 1, tier="fast", now=21.0, each=5_000) == [Hold("b", for_s=2.0)]
    m.check(21.0)


def test_a_replica_that_was_down_begins_with_an_empty_cache() -> None:
    m = fleet(replicas=2)
    ask(m, "a1", 1)
    m.step(ReplicaDown("r0"), 1.0)
    m.step(ReplicaUp(Replica("r0", "m", 16, CURVE, 1_000.0)), 2.0)
    assert m.pools["m"].prefixes.parts["r0"].keys == 0
    m.check(2.0)


def test_what_is_unknown_of_a_lost_cache_changes_nothing() -> None:
    m = fleet()
    for event in (ReplicaCacheLost("unknown"), ReplicaCacheLost("unknown", [1]), ReplicaCacheLost("r0", [5, -1])):
        assert m.step(event, 0.0) == []
    m.check(0.0)


def test_a_slow_stream_is_explained_by_prompts_that_may_have_been_read() -> None:
    """Whatever was expected of the cache: what was not cached after all is no slowness of the replica."""
    slowness = []
    for expected in (1, 2):
        m = fleet(replicas=1, share=0.0)
        ask(m, "before", expected, each=5_000)
        m.step(Left("before"), 10.0)
        ask(m, "a", tier="fast", now=20.0)
        ask(m, "b", 1, tier="fast", now=30.0, each=5_000)
        state = state_of(m, "r0")
        assert state.read_s == pytest.approx(5.0 if expected == 1 else 10.0)
        slowness.append(state.slowness_of(state.aboard["a"], 35.0, 40.0))
    assert slowness[0] == pytest.approx(slowness[1])


def test_a_new_leader_begins_with_what_is_adopted() -> None:
    m = fleet()
    call = Call("a", "m", "standard", prefix_keys=(1, 2), prefix_tokens=(1_000, 2_000), prompt_tokens=2_000)
    m.step(Adopted(call, "r1", is_delivering=True), 0.0)
    ask(m, "other")
    assert ask(m, "b", 1, 2, 3, now=1.0, each=1_000) == [Board("b", "r1", "standard")]
