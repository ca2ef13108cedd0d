"""The responses that open WebSockets remember, so that they can be continued although they are not stored.

A socket remembers the newest response of each of its streams, in memory only. All of them are bounded in bytes. A
client whose response was forgotten gets `previous_response_not_found` and sends the whole conversation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headway.api.responses_store import Continued


@dataclass(frozen=True, slots=True)
class RememberedResponse:
    id: str
    items: Continued
    bytes: int


class SocketMemory:
    """The memory of all sockets. If it is full, the key that uses most of it loses its oldest response."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = Counter[str]()  # by tenant
        self._total = 0
        self._oldest_first: dict[str, dict[tuple[SocketResponses, str], int]] = {}  # by tenant

    def add(self, responses: SocketResponses, stream: str, size: int) -> None:
        self._oldest_first.setdefault(responses.tenant, {})[responses, stream] = size
        self._bytes[responses.tenant] += size
        self._total += size
        while self._total > self._max_bytes:
            [(largest, _)] = self._bytes.most_common(1)
            owner, its_stream = next(iter(self._oldest_first[largest]))
            owner.forget(its_stream)

    def remove(self, responses: SocketResponses, stream: str) -> None:
        of_tenant = self._oldest_first[responses.tenant]
        size = of_tenant.pop((responses, stream))
        self._bytes[responses.tenant] -= size
        self._total -= size
        if not of_tenant:
            del self._oldest_first[responses.tenant], self._bytes[responses.tenant]


class SocketResponses:
    """What one socket remembers: `max_bytes` at most, by stream."""

    def __init__(self, memory: SocketMemory, tenant: str, max_bytes: int) -> None:
        self.tenant = tenant
        self._memory = memory
        self._max_bytes = max_bytes
        self._newest: dict[str, RememberedResponse] = {}  # by stream; the oldest first

    def keep(self, stream: str, response_id: str, items: Continued) -> None:
        self.forget(stream)
        size = len(items.earlier.encoded) + sum(map(len, items.others))
        if size > self._max_bytes:
            return
        while self._newest and size + sum(one.bytes for one in self._newest.values()) > self._max_bytes:
            self.forget(next(iter(self._newest)))
        self._newest[stream] = RememberedResponse(response_id, items, size)
        self._memory.add(self, stream, size)

    def find(self, response_id: str) -> RememberedResponse | None:
        """The newest response of any stream: a stream may continue what another one began."""
        return next((one for one in self._newest.values() if one.id == response_id), None)

    def newest(self, stream: str) -> str | None:
        return self._newest[stream].id if stream in self._newest else None

    def forget(self, stream: str) -> None:
        if self._newest.pop(stream, None) is not None:
            self._memory.remove(self, stream)

    def forget_all(self) -> None:
        for stream in list(self._newest):
            self.forget(stream)
