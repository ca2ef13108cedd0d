"""What an answer says about its service: headers at its beginning, and the proof in its usage at its end."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.api.dialect import HeaderList
from headway.core.types import Tier
from headway.wire import Grant, Receipt

_encode = msgspec.json.Encoder().encode


def proof_headers(grant: Grant) -> HeaderList:
    headers: list[tuple[str, str]] = [("headway-tier-asked", _tier_asked(grant)), ("headway-tier-served", grant.tier)]
    if grant.reason is not None:
        headers.append(("headway-reason", grant.reason))
    if grant.floor_tps:
        headers.append(("headway-floor-tps", f"{grant.floor_tps:g}"))
    if grant.rung is not None:
        headers.append(("headway-rung", grant.rung.name))
    if grant.served_by:
        headers.append(("headway-served-by", grant.served_by))
    return [(name.encode(), value.encode()) for name, value in headers]


def proof_of(receipt: Receipt) -> dict[str, Any]:
    """The `usage.headway` object of every answer."""
    grant, rung = receipt.grant, receipt.grant.rung
    proof: dict[str, Any] = {
        "tier_asked": _tier_asked(grant),
        "tier_served": grant.tier,
        "reason": grant.reason,
        "tokens_per_second": round(receipt.speed_tps, 2) if receipt.speed_tps is not None else None,
        "floor_tokens_per_second": grant.floor_tps or None,
        "kept": receipt.kept,
        "seat_seconds": receipt.seat_us / 1e6 if receipt.seat_us is not None else None,
        "answer_seconds": round(receipt.answer_s + (rung.earlier_s if rung is not None else 0.0), 4),
    }
    if grant.price is not None:
        earlier = rung.student.paid_micro if rung is not None and rung.student is not None else 0
        proof |= {"billed_micro": earlier + receipt.paid_micro, "refunded_micro": receipt.bill.refund}
        proof["cached_tokens"] = receipt.usage.cached_tokens
    if rung is not None:
        proof |= {"rung": rung.name, "escalated": rung.escalated or None}
    if grant.served_by:
        proof["served_by"] = grant.served_by
    if receipt.reader_was_slow:
        proof["reader_was_slow"] = True
    if receipt.moves:
        proof["moves"] = receipt.moves
    return proof


def proof_header(receipt: Receipt) -> tuple[bytes, bytes]:
    """The proof of an answer in one piece, for clients that show headers but drop fields of the usage."""
    return b"headway-proof", _encode(proof_of(receipt))


def _tier_asked(grant: Grant) -> Tier:
    """What the client asked for: of an auto model, even if the rung that served does not offer that tier."""
    return grant.rung.tier_asked if grant.rung is not None else grant.tier_asked
