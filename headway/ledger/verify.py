"""Are the books right? Every total is derived again from the entries, and every entry from what is in it.

What is checked, call by call: one reservation; one `served` at most, at the price that is in it; a refund only down to
standard; the reservation released in full. For budgets: no gateway spent more than its slices, and no more slices are
out than there is budget. For engines: no replica is billed for more tokens than it says it made.
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
    problems: list[str] = field(default_factory=list)
    tokens: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    spent: dict[tuple[str, str, str], int] = field(default_factory=lambda: defaultdict(int))  # key, period, gateway

    def say(self, problem: str) -> None:
        self.problems.append(problem)


def verify(entries: Iterable[Entry]) -> Verdict:
    """Entries in the order of their calls."""
    verdict = Verdict()
    for call_id, of_call in groupby(entries, key=lambda entry: entry.call_id):
        verdict.calls += 1
        _check_call(call_id, list(of_call), verdict)
    return verdict


def _check_call(call_id: str, entries: list[Entry], verdict: Verdict) -> None:
    verdict.entries += len(entries)
    kinds = {kind: [entry for entry in entries if entry.kind == kind] for kind in {entry.kind for entry in entries}}
    for kind, some in kinds.items():
        if len(some) > 1:
            verdict.say(f"{call_id}: {kind} {len(some)} times")
    reserved, served, refunded, released = (
        kinds.get(kind, [None])[0] for kind in ("reserved", "served", "refunded", "released")
    )
    if reserved is None:
        verdict.say(f"{call_id}: was never reserved")
    if served is None:
        verdict.open_calls += 1
        verdict.held += reserved.amount if reserved else 0
        if refunded or released:
            verdict.say(f"{call_id}: {'refunded' if refunded else 'released'} and never served")
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
    usage = (served.prompt_tokens, served.output_tokens)
    if served.amount != served.price.amount(*usage):
        verdict.say(f"{served.id}: {money(served.amount)} is not the price of {usage[0]} + {usage[1]} tokens")
    if refunded and served.amount + refunded.amount != served.price.as_standard().amount(*usage):
        verdict.say(f"{refunded.id}: what is left is not the standard price")
    if released is None:
        verdict.say(f"{served.call_id}: its reservation was not released")
    elif reserved and released.amount != -reserved.amount:
        verdict.say(f"{released.id}: {money(-released.amount)} released, {money(reserved.amount)} reserved")
    if reserved and served.amount > reserved.amount:
        verdict.say(f"{served.id}: cost {money(served.amount)}, more than the {money(reserved.amount)} reserved for it")


def verify_budgets(verdict: Verdict, slices: list[tuple[str, str, str, int]], keys: Iterable[Key]) -> None:
    """`slices`: (key, period, gateway, amount out)."""
    budgets = {key.id: (key.budget_day, key.budget_month) for key in keys}
    out: dict[tuple[str, str], int] = defaultdict(int)
    leased = {(key, period, gateway): amount for key, period, gateway, amount in slices}
    for (key, period, _), amount in leased.items():
        out[key, period] += amount
    for (key, period), amount in out.items():
        day, month = budgets.get(key, (None, None))
        budget = month if len(period) == len("2026-11") else day
        if budget is not None and amount > budget:
            verdict.say(f"{key} {period}: slices of {money(amount)} are out, the budget is {money(budget)}")
    for place, spent in verdict.spent.items():
        if place in leased and spent > leased[place]:
            key, period, gateway = place
            verdict.say(f"{key} {period}: {gateway} spent {money(spent)} of a slice of {money(leased[place])}")


@dataclass(frozen=True, slots=True)
class EngineCount:
    """What a replica says it has read and made since it was started."""

    since_us: int
    prompt_tokens: int
    output_tokens: int


def verify_engines(verdict: Verdict, counts: dict[str, EngineCount]) -> list[tuple[str, int, int, int, int]]:
    """(replica, prompt tokens billed, its own count, output tokens billed, its own count) for each."""
    rows = []
    for replica, count in counts.items():
        since = [row for row in verdict.tokens.get(replica, []) if row[0] >= count.since_us]
        prompt_tokens, output_tokens = sum(row[1] for row in since), sum(row[2] for row in since)
        rows.append((replica, prompt_tokens, count.prompt_tokens, output_tokens, count.output_tokens))
        if prompt_tokens > count.prompt_tokens or output_tokens > count.output_tokens:
            verdict.say(f"{replica}: more tokens are billed than it made since it was started")
    return rows
