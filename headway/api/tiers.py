"""Which tier a call asks for, what happens if that tier has no seat, and what the client is told then.

A tier can be asked for in four places, because several SDKs drop the field: a field of the request wins over the header
`Headway-Tier`, the header over the suffix of the model's name, the suffix over the default of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headway.api.dialect import HeaderList, Headers
from headway.api.models import FoundModel
from headway.api.websocket import TooManySockets
from headway.core.rate_limit import RateLimit
from headway.core.types import EXPRESS, TIERS, Call, Tier
from headway.errors import HeadwayError, InvalidRequest, Refused
from headway.ledger.keys import Key
from headway.wire import NoSeat, Request, at_tier

LimitHeaders = Callable[[Tier, RateLimit | None], HeaderList]  # of a dialect
TIER_HEADER, FALLBACK_HEADER = b"headway-tier", b"headway-fallback"
WANT_OF_SEATS = ("full", "hold_timeout", "over_limit", "too_many_choices", "held_bytes")


def choose_tier(request: Request, found: FoundModel, headers: Headers, key: Key | None, field: str) -> Request:
    """The request at the tier that it asks for. `field` is the dialect's field for it, for error messages. The default
    of a key is a wish: a model that is not offered at that tier serves as standard."""
    tier, asked_by = request.call.tier, field
    in_header = _tier_in(headers)
    if request.is_tier_open:
        if in_header is not None:
            tier, asked_by = in_header, "Headway-Tier"
        elif found.tier is not None:
            tier, asked_by = found.tier, "model"
        elif key is not None:
            tier = next((one for one in found.tiers if one == key.default_tier), tier)
    if tier not in found.tiers:
        offered = ", ".join(found.tiers)
        raise InvalidRequest(f"This model is not offered at `{tier}`. Offered: {offered}.", asked_by)
    return at_tier(request, tier)


def _tier_in(headers: Headers) -> Tier | None:
    if (value := headers.get(TIER_HEADER)) is None:
        return None
    for tier in TIERS:
        if value == tier.encode():
            return tier
    raise InvalidRequest(f"`Headway-Tier` must be one of: {', '.join(TIERS)}.", "Headway-Tier")


def choose_fallback(request: Request, headers: Headers) -> Request:
    """Whether a call that gets no express seat is served as standard or refused. The header overrides the dialect."""
    fallback = headers.get(FALLBACK_HEADER)
    if fallback is None:
        return request
    if fallback not in (b"none", b"standard"):
        raise InvalidRequest("`Headway-Fallback` must be `none` or `standard`.", "Headway-Fallback")
    falls_back = fallback == b"standard"
    if falls_back == request.call.falls_back:
        return request
    return replace(request, call=replace(request.call, falls_back=falls_back))


def explain_no_seat(error: NoSeat, call: Call) -> None:
    """Add to the message which tier had no seat, and how the call could be served."""
    if error.reason in WANT_OF_SEATS:
        error.message += f" The call asked for the tier `{call.tier}`{_way_out(call)}."


def retry_headers(error: HeadwayError, call: Call | None, limit_headers: LimitHeaders) -> HeaderList:
    """When to retry, and what the caller has left of its limit, in the headers of its dialect."""
    headers: HeaderList = []
    if isinstance(error, Refused | TooManySockets):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, NoSeat) and call is not None:
        headers += limit_headers(call.tier, error.rate_limit)
    return headers


def _way_out(call: Call) -> str:
    if call.tier in EXPRESS and call.falls_back:
        return ", and could not be served as standard either"
    if call.tier in EXPRESS:
        return "; send the header `Headway-Fallback: standard` to be served as standard if that tier has no seat"
    if call.tier == "flex":
        return ", which gets the seats that no other tier needs; ask for `standard`"
    return ""
