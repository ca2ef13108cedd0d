"""Bills and verification on hand-made entries: correct books pass, and every error is found."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import msgspec
import pytest

from headway.ledger.bill import as_cloud_events, as_csv, make_bill, money
from headway.ledger.entries import Entry
from headway.ledger.keys import Key
from headway.ledger.verify import EngineCount, verify, verify_budgets, verify_engines
from headway.price import Bill
from tests.ledger.test_store import whole_call

GOOD = [*whole_call("c1"), *whole_call("c2", due=Bill(900))]


def test_a_bill_adds_up_what_was_served_less_what_was_refunded() -> None:
    [row] = make_bill(GOOD, ("key", "tier"), {"m": 3_600_000_000})  # an hour of a replica costs 3600
    assert row.group == {"key": "k", "tier": "fast"}
    assert (row.calls, row.prompt_tokens, row.output_tokens) == (2, 200, 200)
    assert (row.served, row.refunded, row.total) == (1_800, -600, 1_200)
    assert (row.seat_us, row.cost) == (10_000, 10_000)  # a micro-unit for each microsecond
    [read] = csv.DictReader(io.StringIO(as_csv([row], ("key", "tier"))))
    assert (read["total"], read["margin"]) == ("0.001200", "-0.008800")
    [unknown] = make_bill(GOOD, ("key",), {})
    assert unknown.cost is None


def test_a_bill_by_session_and_agent_adds_up_refunds_too_and_names_no_session_by_an_empty_text() -> None:
    mine = [msgspec.structs.replace(entry, session="s1", agent="a1") for entry in whole_call("c3")]
    rows = make_bill([*GOOD, *mine], ("session", "agent"), {})
    assert [row.group for row in rows] == [{"session": "", "agent": ""}, {"session": "s1", "agent": "a1"}]
    assert [(row.calls, row.total) for row in rows] == [(2, 1_200), (1, 300)]


def test_events_carry_the_ids_of_the_entries() -> None:
    events = [msgspec.json.decode(line) for line in as_cloud_events(GOOD)]
    assert [event["id"] for event in events] == ["c1:2:served", "c1:2:refunded", "c2:2:served"]
    assert events[0]["specversion"] == "1.0"
    assert events[1]["data"]["amount"] == -600


def test_correct_books_have_no_problems() -> None:
    verdict = verify(GOOD)
    assert (verdict.problems, verdict.calls, verdict.open_calls, verdict.billed) == ([], 2, 0, 1_200)
    open_call = verify(GOOD[:1])
    assert (open_call.problems, open_call.open_calls, open_call.held) == ([], 1, 900)


def without(kind: str) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [entry for entry in entries if entry.kind != kind]


def changed(kind: str, **values: object) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [msgspec.structs.replace(e, **values) if e.kind == kind else e for e in entries]


def twice(kind: str) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [
        *entries,
        *[msgspec.structs.replace(e, attempt=e.attempt + 1) for e in entries if e.kind == kind],
    ]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (without("reserved"), "no reservation"),
        (without("served"), "but not served"),
        (without("released"), "not released"),
        (twice("served"), "2 entries of kind served"),
        (twice("refunded"), "2 entries of kind refunded"),
        (changed("served", amount=901), "is not the price of"),
        (changed("served", output_tokens=101), "is not the price of"),
        (changed("served", tier="standard", multiple_milli=1_000), "is not the price of"),
        (changed("refunded", amount=-601), "not the standard price"),
        (changed("released", amount=-1), "released"),
        (changed("reserved", amount=899), "only 0.000899 reserved"),
        (changed("served", prompt_tokens=-100, output_tokens=-100, amount=-900), "negative figure"),
        (changed("reserved", amount=-900), "wrong sign"),
        (changed("refunded", amount=600), "wrong sign"),
        (changed("released", amount=900), "wrong sign"),
        (changed("served", seat_us=-1), "negative figure"),
    ],
)
def test_every_error_is_found(break_it: Callable[[list[Entry]], list[Entry]], said: str) -> None:
    assert any(said in problem for problem in verify(break_it(whole_call())).problems)


def test_budgets_and_engines_are_compared_with_what_was_billed() -> None:
    verdict = verify(GOOD)
    keys = [Key(id="k", hash="h", budget_day=1_200)]
    verify_budgets(verdict, [("k", "2026-11-15", "gw/1", 1_200), ("k", "2026-11", "gw/1", 9_000)], keys)
    assert verify_engines(verdict, {"r1": EngineCount(0, 200, 250)}) == [("r1", 200, 200, 200, 250)]
    assert verdict.problems == []
    verify_budgets(verdict, [("k", "2026-11-15", "gw/1", 1_199)], keys)
    verify_budgets(verdict, [("k", "2026-11-15", "gw/1", 1_201)], keys)
    verify_engines(verdict, {"r1": EngineCount(0, 199, 250)})
    assert len(verdict.problems) == 3


def test_money_is_shown_exactly() -> None:
    assert [money(micro) for micro in (0, 1, -1, 1_234_567_890)] == ["0.000000", "0.000001", "-0.000001", "1234.567890"]
