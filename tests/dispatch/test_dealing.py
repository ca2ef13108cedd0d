from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.dispatch.dealing import Dealing


def dealing_of(names: list[str]) -> Dealing:
    dealing = Dealing()
    for name in names:
        dealing.add(name)
    return dealing


@given(replicas=st.integers(0, 40), steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"))))
def test_each_replica_is_with_one_relay_and_hands_are_even(replicas: int, steps: list[tuple[bool, str]]) -> None:
    names = [f"r{number}" for number in range(replicas)]
    dealing = dealing_of(names)
    for is_join, relay in steps:
        before = {one: hand.copy() for one, hand in dealing.hands.items()}
        changed = dealing.join(relay) if is_join else dealing.leave(relay)
        assert {one for one, hand in dealing.hands.items() if before.get(one, set()) != hand} == changed
        assert sorted(name for hand in dealing.hands.values() for name in hand) == (
            sorted(names) if dealing.hands else []
        )
        for name in names:
            holder = dealing.holder(name)
            assert (name in dealing.hands[holder]) if holder is not None else not dealing.hands


def test_few_change_hands() -> None:
    dealing = dealing_of([f"r{number}" for number in range(12)])
    dealing.join("a")
    assert dealing.join("b") == {"a", "b"}
    assert sorted(map(len, dealing.hands.values())) == [6, 6]
    dealing.join("c")
    assert sorted(map(len, dealing.hands.values())) == [4, 4, 4]
    kept = dealing.hands["a"].copy()
    dealing.leave("c")
    assert kept < dealing.hands["a"]
    assert sorted(map(len, dealing.hands.values())) == [6, 6]


def test_replicas_come_and_go() -> None:
    dealing = dealing_of(["r0"])
    dealing.join("a")
    dealing.join("b")
    assert dealing.add("r1") == {"b"}, "it has the fewest"
    assert (dealing.holder("r0"), dealing.holder("r1")) == ("a", "b")
    dealing.remove("r0")
    assert (dealing.holder("r0"), dealing.hands) == (None, {"a": set(), "b": {"r1"}})
    dealing.leave("a")
    dealing.leave("b")
    dealing.remove("r1")
    assert dealing.join("c") == set()
