"""What an answer says of its tier when it begins; the measured speed follows at its end, in its usage."""

from __future__ import annotations

from headway.wire import Served

HeaderList = list[tuple[bytes, bytes]]


def proof_headers(served: Served) -> HeaderList:
    said: list[tuple[str, str]] = [("headway-tier-asked", served.asked), ("headway-tier-served", served.tier)]
    if served.reason is not None:
        said.append(("headway-reason", served.reason))
    if served.floor_tps:
        said.append(("headway-floor-tps", f"{served.floor_tps:g}"))
    if served.rung is not None:
        said.append(("headway-rung", served.rung.name))
    return [(name.encode(), value.encode()) for name, value in said]
