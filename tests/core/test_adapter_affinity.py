"""Calls to an adapter prefer the replica that used it last."""

from __future__ import annotations

from headway.core.adapter_affinity import REMEMBERED_S, AdapterAffinity


def test_an_adapter_is_remembered_where_it_was_used_last() -> None:
    affinity = AdapterAffinity({"a", "b"})
    affinity.note("a", "r0", 0.0)
    affinity.note("a", "r1", 1.0)
    affinity.note("m", "r1", 1.0)  # the weights themselves are everywhere
    assert [affinity.last(model, 2.0) for model in ("a", "b", "m")] == ["r1", None, None]


def test_it_is_forgotten_after_a_while() -> None:
    affinity = AdapterAffinity({"a"})
    affinity.note("a", "r0", 0.0)
    assert affinity.last("a", REMEMBERED_S) == "r0"
    assert affinity.last("a", REMEMBERED_S + 0.1) is None


def test_an_adapter_that_is_not_served_any_more_is_forgotten() -> None:
    affinity = AdapterAffinity({"a", "b"})
    affinity.note("a", "r0", 0.0)
    affinity.note("b", "r1", 0.0)
    affinity.change({"b"})
    affinity.note("a", "r0", 0.0)
    assert [affinity.last(model, 0.0) for model in "ab"] == [None, "r1"]
