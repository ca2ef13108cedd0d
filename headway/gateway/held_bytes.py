"""Limits the memory of calls that wait for a seat, for each tenant and in all."""

from __future__ import annotations

from headway.gateway.trip import Trip

MIB = 2**20


class HeldBytes:
    def __init__(self, per_tenant: int = 128 * MIB, in_all: int = 512 * MIB) -> None:
        self._per_tenant = per_tenant
        self._in_all = in_all
        self._held: dict[str, int] = {}  # by tenant; no zeros
        self.held = 0

    def take(self, trip: Trip) -> bool:
        """Whether the trip's request may be kept. That of a call which an engine failed is kept in any case."""
        size, tenant = len(trip.request.body), trip.call.tenant
        has_room = self.held + size <= self._in_all and self._held.get(tenant, 0) + size <= self._per_tenant
        if has_room or trip.boardings:
            trip.held_bytes = size
            self._change(tenant, size)
            return True
        return False

    def end_hold(self, trip: Trip) -> None:
        trip.stop_deadline()
        if trip.held_bytes:
            self._change(trip.call.tenant, -trip.held_bytes)
            trip.held_bytes = 0

    def _change(self, tenant: str, by: int) -> None:
        self.held += by
        self._held[tenant] = held = self._held.get(tenant, 0) + by
        if not held:
            del self._held[tenant]
