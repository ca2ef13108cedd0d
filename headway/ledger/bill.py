"""The bill: entries summed by key, tier, model, day, session and agent, with revenue and the owner's cost.

Also exports entries as CloudEvents. An event has the id of its entry, so a billing system that receives it twice counts
it once.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from headway.ledger.entries import BILLED, Entry
from headway.price import MICRO

FIELDS = ("day", "key", "model", "tier", "auto", "session", "agent")
HOUR_US = 3_600 * 1_000_000


class BillRow(msgspec.Struct, kw_only=True):
    """Money is in micro-units. `cost` is seat-time times the hourly cost of a replica; None if that is not known."""

    group: dict[str, str]
    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # part of the prompt tokens
    output_tokens: int = 0
    served: int = 0
    refunded: int = 0
    auto_paid: int = 0  # paid for calls to auto models, on both rungs
    undelivered: int = 0  # the price of what was done for clients that left and got nothing of it; not billed
    repeated: int = 0  # the price of what was read again because streams moved; not billed
    seat_us: int = 0
    cost: int | None = 0
    all_full: int | None = None  # the same calls with the full model alone; None if there are none

    @property
    def saved(self) -> int | None:
        return self.all_full - self.auto_paid if self.all_full is not None else None

    @property
    def total(self) -> int:
        return self.served + self.refunded


def make_bill(entries: Iterable[Entry], by: tuple[str, ...], replica_hour: dict[str, int]) -> list[BillRow]:
    """Sum entries by the fields `by`. `replica_hour` is the hourly cost of a replica of each model, in micro-units."""
    rows: dict[tuple[str, ...], BillRow] = {}
    seat_us: dict[tuple[str, ...], dict[str, int]] = {}
    for entry in entries:
        if entry.kind not in (*BILLED, "seated"):
            continue
        place = tuple(str(getattr(entry, field) or "") for field in by)
        row = rows.get(place)
        if row is None:
            row = rows[place] = BillRow(group=dict(zip(by, place, strict=True)))
            seat_us[place] = {}
        if entry.auto:
            row.auto_paid += entry.amount
            row.all_full = (row.all_full or 0) + entry.all_full
        if entry.kind == "refunded":
            row.refunded += entry.amount
            continue
        row.seat_us += entry.seat_us
        row.undelivered += entry.undelivered or 0
        row.repeated += entry.repeated or 0
        seat_us[place][entry.model] = seat_us[place].get(entry.model, 0) + entry.seat_us
        if entry.kind == "seated":
            continue
        row.calls += 1
        row.prompt_tokens += entry.prompt_tokens
        row.cached_tokens += entry.cached_tokens or 0
        row.output_tokens += entry.output_tokens
        row.served += entry.amount
    for place, row in rows.items():
        known = all(model in replica_hour for model in seat_us[place])
        row.cost = sum(us * replica_hour[m] // HOUR_US for m, us in seat_us[place].items()) if known else None
    return [rows[place] for place in sorted(rows)]


def as_records(rows: list[BillRow]) -> list[dict[str, Any]]:
    """Return rows with money as exact decimal text, in the owner's currency."""
    return [
        {
            **row.group,
            "calls": row.calls,
            "prompt_tokens": row.prompt_tokens,
            "cached_tokens": row.cached_tokens,
            "output_tokens": row.output_tokens,
            "served": money(row.served),
            "refunded": money(row.refunded),
            "total": money(row.total),
            "undelivered": money(row.undelivered),
            "repeated": money(row.repeated),
            "seat_seconds": f"{row.seat_us / 1e6:.6f}",
            "cost": money(row.cost) if row.cost is not None else "",
            "margin": money(row.total - row.cost) if row.cost is not None else "",
            "all_full": money(row.all_full) if row.all_full is not None else "",
            "saved": money(row.saved) if row.saved is not None else "",
        }
        for row in rows
    ]


def as_csv(rows: list[BillRow], by: tuple[str, ...]) -> str:
    records = as_records(rows)
    names = list(records[0]) if records else [*by, "calls"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_cloud_events(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield one line of JSON for each billed entry."""
    for entry in entries:
        if entry.kind in BILLED:
            event = {
                "specversion": "1.0",
                "id": entry.id,
                "source": f"headway/{entry.gateway}",
                "type": f"headway.{entry.kind}",
                "subject": entry.key,
                "time": datetime.fromtimestamp(entry.at_us / 1e6, UTC).isoformat(),
                "datacontenttype": "application/json",
                "data": entry,
            }
            yield msgspec.json.encode(event) + b"\n"


def money(micro: int) -> str:
    sign, size = "-" if micro < 0 else "", abs(micro)
    return f"{sign}{size // MICRO}.{size % MICRO:06d}"
