"""Where calls with the same prompt prefix went, and how long that is remembered."""

from __future__ import annotations

import pytest

from headway.core import prefix_affinity
from headway.core.prefix_affinity import REMEMBERED_S, PrefixAffinity
from headway.core.types import Call


def call(affinity: str) -> Call:
    return Call("c", "m", "standard", affinity=affinity)


def test_a_prefix_is_remembered_for_a_while_after_its_last_use() -> None:
    remembered = PrefixAffinity(set())
    remembered.note(call("a"), "r0", 0.0)
    remembered.note(call("a"), "r1", REMEMBERED_S)
    assert remembered.last(call("a"), 2 * REMEMBERED_S) == "r1"
    assert remembered.last(call("a"), 2 * REMEMBERED_S + 1) is None
    assert remembered.last(call("b"), 0.0) is None


def test_a_call_without_a_prefix_is_not_remembered() -> None:
    remembered = PrefixAffinity(set())
    remembered.note(call(""), "r0", 0.0)
    assert remembered.last(call(""), 0.0) is None
    assert not remembered._used


def test_memory_holds_the_prefixes_of_the_last_minutes_only() -> None:
    """Each new prefix took 330 bytes until there were 65,536 of them: 3 MiB in an hour of a small gateway."""
    remembered = PrefixAffinity(set())
    for second in range(3600):
        remembered.note(call(f"prefix {second}"), "r0", float(second))
        assert len(remembered._used) <= REMEMBERED_S + 1
    remembered.note(call(""), "r0", 10_000.0)
    remembered.note(call(""), "r0", 10_000.0)
    assert len(remembered._used) == REMEMBERED_S + 1 - 4  # forgotten with later calls, a few at once


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_affinity, "MAX_REMEMBERED", 10)
    remembered = PrefixAffinity(set())
    for number in range(100):
        remembered.note(call(str(number)), f"r{number}", 0.0)
    assert len(remembered._used) == 10
    assert remembered.last(call("90"), 0.0) == "r90"


def test_an_adapter_goes_where_it_was_last_if_nothing_is_known_of_the_prefix() -> None:
    remembered = PrefixAffinity({"adapter"})
    remembered.note(Call("c", "adapter", "standard", affinity="a"), "r0", 0.0)
    remembered.note(Call("c", "adapter", "standard"), "r1", 1.0)
    assert remembered.last(Call("c", "adapter", "standard", affinity="a"), 2.0) == "r0"
    assert remembered.last(Call("c", "adapter", "standard", affinity="b"), 2.0) == "r1"
    assert remembered.last(Call("c", "adapter", "standard"), 2.0) == "r1"
    assert remembered.last(Call("c", "m", "standard"), 2.0) is None
