"""Verify the ledger: recompute every total from the entries, and every amount from the tokens and prices of its entry.

Checks of each call: one reservation; at most one `served`, at the price in the entry; a refund only down to the
standard price; the reservation released in full; no negative figures. Of budgets: no gateway spent more than its
slices, and the slices do not exceed the budget. Of engines: no replica is billed for more tokens than it reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from headway.ledger.bill import money
from headway.ledger.entries import BILLED, Entry, month_of
from headway.ledger.keys import Key

MAX_SHOWN = 20


@dataclass(slots=True)
class Verdict:
    calls: int = 0
    open_calls: int = 0
    entries: int = 0
    billed: int = 0
    held: int = 0
    undelivered: int = 0  # not billed
    problems: list[str] = field(default_factory=list)
    tokens: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    spent: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))  # key, period, gateway

    def report(self, problem: str) -> None:
        self.problems.append(problem)


def verify(entries: Iterable[Entry]) -> Verdict:
    """Check entries that are ordered by call."""
    verdict = Verdict()
    for call_id, of_call in groupby(entries, key=lambda entry: entry.call_id):
        verdict.calls += 1
        _check_call(call_id, list(of_call), verdict)
    return verdict


def _check_call(call_id: str, entries: list[Entry], verdict: Verdict) -> None:
    verdict.entries += len(entries)
    for entry in entries:
        if entry.has_wrong_sign:
            verdict.report(f"{entry.id}: a negative figure, or an amount with the wrong sign: {money(entry.amount)}")
    verdict.undelivered += sum(entry.undelivered or 0 for entry in entries)
    kinds = {kind: [entry for entry in entries if entry.kind == kind] for kind in {entry.kind for entry in entries}}
    for kind, some in kinds.items():
        if len(some) > 1:
            verdict.report(f"{call_id}: {len(some)} entries of kind {kind}")
    reserved, served, refunded, released = (
        kinds.get(kind, [None])[0] for kind in ("reserved", "served", "refunded", "released")
    )
    if reserved is None:
        verdict.report(f"{call_id}: no reservation")
    if served is None:
        verdict.open_calls += 1
        verdict.held += reserved.amount if reserved else 0
        if refunded or released:
            verdict.report(f"{call_id}: {'refunded' if refunded else 'released'} but not served")
        return
    _check_amounts(served, refunded, reserved, released, verdict)
    verdict.billed += served.amount + (refunded.amount if refunded else 0)
    verdict.tokens[served.replica].append((served.at_us, served.prompt_tokens, served.output_tokens))
    for entry in entries:
        if entry.kind in BILLED:
            for period in (entry.day, month_of(entry.day)):
                verdict.spent[entry.key, period, entry.gateway] += entry.amount


def _check_amounts(
    served: Entry, refunded: Entry | None, reserved: Entry | None, released: Entry | None, verdict: Verdict
) -> None:
    usage = (served.prompt_tokens, served.output_tokens, served.cached_tokens or 0)
    if served.amount != served.price.amount(*usage):
        verdict.report(
            f"{served.id}: {money(served.amount)} is not the price of {usage[0]} + {usage[1]} tokens, {usage[2]} cached"
        )
    if refunded and served.amount + refunded.amount != served.price.as_standard().amount(*usage):
        verdict.report(f"{refunded.id}: the amount after the refund is not the standard price")
    if released is None:
        verdict.report(f"{served.call_id}: the reservation is not released")
    elif reserved and released.amount != -reserved.amount:
        verdict.report(f"{released.id}: {money(-released.amount)} released, {money(reserved.amount)} reserved")
    if reserved and reserved.amount and served.amount > reserved.amount:  # 0: it has no maximum (entries.py)
        verdict.report(f"{served.id}: {money(served.amount)} billed, only {money(reserved.amount)} reserved")


def verify_budgets(verdict: Verdict, slices: list[tuple[str, str, str, int]], keys: Iterable[Key]) -> None:
    """Check budgets against `slices`: (key, period, gateway, amount leased)."""
    budgets = {key.id: (key.budget_day, key.budget_month) for key in keys}
    out: dict[tuple[str, str], int] = defaultdict(int)
    leased = {(key, period, gateway): amount for key, period, gateway, amount in slices}
    for (key, period, _), amount in leased.items():
        out[key, period] += amount
    for (key, period), amount in out.items():
        day, month = budgets.get(key, (None, None))
        budget = month if len(period) == len("2026-11") else day
        if budget is not None and amount > budget:
            verdict.report(f"{key} {period}: {money(amount)} leased, the budget is {money(budget)}")
    for place, spent in verdict.spent.items():
        if place in leased and spent > leased[place]:
            key, period, gateway = place
            verdict.report(f"{key} {period}: {gateway} spent {money(spent)}, only {money(leased[place])} leased")


@dataclass(frozen=True, slots=True)
class EngineCount:
    """The tokens that a replica reports since its start."""

    since_us: int
    prompt_tokens: int
    output_tokens: int


def verify_engines(verdict: Verdict, counts: dict[str, EngineCount]) -> list[tuple[str, int, int, int, int]]:
    """Return (replica, prompt tokens billed, prompt tokens reported, output tokens billed, output tokens reported)."""
    rows = []
    for replica, count in counts.items():
        since = [row for row in verdict.tokens.get(replica, []) if row[0] >= count.since_us]
        prompt_tokens, output_tokens = sum(row[1] for row in since), sum(row[2] for row in since)
        rows.append((replica, prompt_tokens, count.prompt_tokens, output_tokens, count.output_tokens))
        if prompt_tokens > count.prompt_tokens or output_tokens > count.output_tokens:
            verdict.report(f"{replica}: more tokens billed than it reports since its start")
    return rows
