"""Judges the ledger of runs/ledger/upgrade.py by its tables, read with SQL, and its spools, read line by line, against
the engines' and the clients' records. Uses nothing of headway.ledger: amounts are computed again here."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from runs.ledger.torture_judge import Sent
from runs.ledger.upgrade_callers import Told

INPUT, OUTPUT = 1_000_000, 10_000_000  # micro-units per million tokens
MULTIPLES = {"standard": 1_000, "fast": 2_100, "flex": 500}  # in thousandths
ROW = "id, call_id, attempt, kind, at_us, day, gateway, key, model, replica, tier_asked, tier, input_price, \
output_price, multiple_milli, amount, outcome, prompt_tokens, output_tokens, seat_us, auto, all_full"  # of version 0.1
ENTRIES = f"SELECT {ROW} FROM entries ORDER BY call_id, at_us, id"
SLICES = "SELECT key, period, gateway, SUM(amount) FROM slices GROUP BY key, period, gateway"

Row = dict[str, Any]


def as_rows(found: Iterable[tuple[Any, ...]]) -> list[Row]:
    names = [name.strip() for name in ROW.split(",")]
    return [dict(zip(names, row, strict=True)) for row in found]


@dataclass
class SpoolLines:
    """What a spool holds: entries by id, and the running calls with their last progress."""

    entries: dict[str, Row] = field(default_factory=dict)
    running: dict[str, tuple[int, int]] = field(default_factory=dict)  # (prompt tokens, output tokens)


def read_spool(spool: Path) -> SpoolLines:
    found = SpoolLines()
    for segment in sorted(spool.glob("*.jsonl")):
        for line in segment.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                _take_line(found, *json.loads(line))
    return found


def _take_line(found: SpoolLines, kind: str, value: Any) -> None:
    if kind == "open":
        found.running = {entry["call_id"]: (prompt, output) for entry, _, _, prompt, output in value}
    elif kind == "seen":
        found.running |= {name: (prompt, out) for name, _, _, prompt, out in value if name in found.running}
    else:
        call_id = value["call_id"]
        found.entries[f"{call_id}:{value['attempt']}:{value['kind']}"] = value
        if value["kind"] == "reserved":
            found.running[call_id] = (0, 0)
        elif value["kind"] == "served":
            found.running.pop(call_id, None)


@dataclass
class Findings:
    """What is wrong with the ledger of one episode, in words, and counts of what was judged."""

    calls: int = 0
    complete: int = 0  # calls whose client had all of the answer
    refunded: int = 0  # calls
    killed: int = 0  # calls that were running when their gateway was killed
    killed_low: int = 0  # most tokens of these that arrived and are not billed
    from_spools: int = 0  # entries that a gateway left in its spool, and that the store did not have
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    over_billed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    bills: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, theirs) if each.name == "killed_low" else mine + theirs)

    @property
    def problems(self) -> list[str]:
        return [
            *(self.lost + self.doubled + self.inexact + self.over_billed),
            *(self.changed + self.budgets + self.bills + self.keys),
        ]


def amount(prompt_tokens: int, output_tokens: int, multiple_milli: int) -> int:
    """In micro-units; half a micro-unit is rounded up."""
    thousandths = (prompt_tokens * INPUT + output_tokens * OUTPUT) * multiple_milli
    return (2 * thousandths + 10**9) // (2 * 10**9)


def judge_calls(found: Findings, rows: list[Row], sent: Mapping[str, Sent], told: list[Told]) -> None:
    by_call: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_call[row["call_id"]].append(row)
    found.calls += len(by_call)
    found.lost += [f"{call}: an engine served it" for call in sent if call not in by_call]
    found.lost += [f"{one.call_id}: a client was answered" for one in told if one.call_id not in by_call]
    pieces = {one.call_id: one.pieces for one in told}
    for call_id, of_call in by_call.items():
        _judge_call(found, call_id, of_call, sent.get(call_id), pieces.get(call_id, 0))
    for one in told:
        if one.is_complete and one.call_id in by_call:
            _judge_complete(found, one, by_call[one.call_id], sent.get(one.call_id))


def _judge_call(found: Findings, call_id: str, rows: list[Row], sent: Sent | None, pieces: int) -> None:
    kinds = {row["kind"]: row for row in rows}
    if len(kinds) != len(rows):
        found.doubled.append(f"{call_id}: {sorted(row['id'] for row in rows)}")
    if not {"reserved", "served", "released"} <= kinds.keys():
        found.lost.append(f"{call_id}: has only {sorted(kinds)}")
        return
    served, refunded = kinds["served"], kinds.get("refunded")
    if kinds["reserved"]["amount"] + kinds["released"]["amount"] != 0:
        found.inexact.append(f"{call_id}: the reservation is not released")
    tokens = served["prompt_tokens"], served["output_tokens"]
    prices = served["input_price"], served["output_price"], served["multiple_milli"]
    if prices != (INPUT, OUTPUT, MULTIPLES[served["tier"]]) or served["amount"] != amount(*tokens, prices[2]):
        found.inexact.append(f"{call_id}: {served['amount']} for {tokens} at {served['tier']}, {prices}")
    if refunded is not None and served["amount"] + refunded["amount"] != amount(*tokens, 1_000):
        found.inexact.append(f"{call_id}: {refunded['amount']} refunded of {served['amount']}")
    found.refunded += refunded is not None
    if sent is not None and (tokens[0] > sent.prompt_tokens or sum(tokens) > sent.prompt_tokens + sent.tokens_sent):
        found.over_billed.append(f"{call_id} {served['outcome']}: {tokens} billed, {sent}")
    if served["outcome"] == "gateway_lost":
        found.killed += 1
        found.killed_low = max(found.killed_low, pieces - tokens[1])
    elif pieces > tokens[1]:
        found.inexact.append(f"{call_id} {served['outcome']}: {tokens[1]} tokens billed, {pieces} arrived")


def _judge_complete(found: Findings, told: Told, rows: list[Row], sent: Sent | None) -> None:
    found.complete += 1
    served = next((row for row in rows if row["kind"] == "served"), None)
    if served is None:
        return  # judged as lost
    net = served["amount"] + sum(row["amount"] for row in rows if row["kind"] == "refunded")
    ledger = served["prompt_tokens"], served["output_tokens"]
    client = told.usage.get("prompt_tokens"), told.usage.get("completion_tokens")
    # A flex stream that made way went on later, with what was delivered at the end of its prompt.
    is_as_sent = sent is not None and sum(ledger) == sent.prompt_tokens + sent.tokens_sent
    if ledger != client or not is_as_sent or (told.streamed and ledger[1] != told.pieces):
        found.inexact.append(f"{told.call_id} by {told.by}: {ledger} billed, its client was told {client}, {sent}")
    if net != told.proof.get("billed_micro") or served["tier"] != told.proof.get("tier_served"):
        found.inexact.append(
            f"{told.call_id} by {told.by}: {net} at {served['tier']}, its client was told {told.proof}"
        )


def judge_spool(found: Findings, left: SpoolLines, before: list[Row], rows: list[Row]) -> None:
    """Everything that a gateway left in its spool must be in the store as it was written, and its running calls closed
    at their last progress."""
    by_id = {row["id"]: row for row in rows}
    found.from_spools += len(left.entries.keys() - {row["id"] for row in before})
    for name, entry in left.entries.items():
        row = by_id.get(name)
        if row is None:
            found.lost.append(f"{name}: it was in a spool")
        elif wrong := [key for key, value in entry.items() if key in row and row[key] != value]:
            found.changed.append(f"{name}: {wrong} differ from the spool")
    ends = {row["call_id"]: row for row in rows if row["kind"] == "served"}
    for call_id, tokens in left.running.items():
        end = ends.get(call_id)
        closed = (end["prompt_tokens"], end["output_tokens"], end["outcome"]) if end is not None else None
        if closed != (*tokens, "gateway_lost"):
            found.inexact.append(f"{call_id}: was running at {tokens} when its gateway was killed, closed as {closed}")


def judge_unchanged(found: Findings, before: list[Row], after: list[Row]) -> None:
    by_id = {row["id"]: row for row in after}
    found.changed += [
        f"{row['id']}: was {row}, is {by_id.get(row['id'])}" for row in before if by_id.get(row["id"]) != row
    ]


def judge_budgets(
    found: Findings, slices: Iterable[tuple[str, str, str, int]], rows: list[Row], budgets: Mapping[str, int]
) -> None:
    """When every run of a gateway is followed by another one, each has leased what it spent."""
    spent: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in rows:
        if row["kind"] in ("served", "refunded") and row["key"] in budgets:
            for period in (row["day"], row["day"][:7]):
                spent[row["key"], period, row["gateway"]] += row["amount"]
    leased = {(key, period, gateway): int(amount) for key, period, gateway, amount in slices}
    out: dict[tuple[str, str], int] = defaultdict(int)
    for place in leased.keys() | spent.keys():
        out[place[:2]] += leased.get(place, 0)
        if leased.get(place) != spent[place]:
            found.budgets.append(f"{' '.join(place)}: {spent[place]} spent, {leased.get(place)} leased")
    for (key, period), total in out.items():
        if total > budgets[key]:
            found.budgets.append(f"{key} {period}: {total} leased, the budget is {budgets[key]}")


def bill_of(rows: list[Row]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The bill by day, key, model and tier, in the words of `headway bill`."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * 5)
    for row in rows:
        place = tuple(row[name] for name in ("day", "key", "model", "tier"))
        if row["kind"] == "served":
            values = (1, row["prompt_tokens"], row["output_tokens"], row["amount"], 0)
        elif row["kind"] == "refunded":
            values = (0, 0, 0, 0, row["amount"])
        else:
            continue
        sums[place] = [total + value for total, value in zip(sums[place], values, strict=True)]
    return {place: _words(*total) for place, total in sums.items()}


def bill_as_printed(records: list[dict[str, Any]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {
        tuple(record[name] for name in ("day", "key", "model", "tier")): tuple(
            str(record[name]) for name in ("calls", "prompt_tokens", "output_tokens", "served", "refunded")
        )
        for record in records
    }


def judge_bill(found: Findings, whose: str, records: list[dict[str, Any]], rows: list[Row]) -> None:
    printed, summed = bill_as_printed(records), bill_of(rows)
    wrong = [place for place in printed.keys() | summed.keys() if printed.get(place) != summed.get(place)]
    found.bills += [f"{whose}: {place}: {printed.get(place)}, by SQL {summed.get(place)}" for place in sorted(wrong)]


def _words(calls: int, prompt_tokens: int, output_tokens: int, served: int, refunded: int) -> tuple[str, ...]:
    return (str(calls), str(prompt_tokens), str(output_tokens), _money(served), _money(refunded))


def _money(micro: int) -> str:
    sign = "-" if micro < 0 else ""
    return f"{sign}{abs(micro) // 10**6}.{abs(micro) % 10**6:06d}"
