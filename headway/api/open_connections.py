"""The open connections of a server, and who gives way when there are too many."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from headway.api.sparse_log import SparseLog

# Connections beyond `max_connections`, on which only these pages are served. A health check must not fail because the
# gateway is busy.
SPARE_CONNECTIONS = 16
SPARE_PAGES = (b"/health", b"/ready")
# A new connection has this long to send a request before it may have to give way: many may come at once.
UNHEARD_S = 1.0


class OneConnection(Protocol):
    """A connection, as this module sees it."""

    def close(self) -> None: ...


class OpenConnections:
    """The open connections of a server. If there are too many, one without a request in progress gives way to a new
    one: the one that has been idle longest, else the oldest that never sent a request. If there is none, the new one
    gets a spare place, for SPARE_PAGES only."""

    def __init__(self, max_connections: int, keep_alive_s: float) -> None:
        self.keep_alive_s = keep_alive_s
        self.log = SparseLog(logging.WARNING)
        self._max = max_connections
        self._regular: set[OneConnection] = set()
        self._idle: dict[OneConnection, None] = {}  # regular, between two requests; the longest first
        self._unheard: dict[OneConnection, float] = {}  # regular, since when; the longest first
        self._spare: dict[OneConnection, None] = {}  # oldest first

    def add(self, connection: OneConnection) -> None:
        if len(self._regular) >= self._max:
            self._make_room()
        if len(self._regular) < self._max:
            self._regular.add(connection)
            self._unheard[connection] = time.monotonic()
            return
        if len(self._spare) >= SPARE_CONNECTIONS:
            self._close(next(iter(self._spare)))
        self._spare[connection] = None

    def remove(self, connection: OneConnection) -> None:
        self._regular.discard(connection)
        self.end_waiting(connection)
        self._spare.pop(connection, None)

    def begin_waiting(self, connection: OneConnection) -> None:
        if connection in self._regular:
            self._idle[connection] = None

    def end_waiting(self, connection: OneConnection) -> None:
        self._idle.pop(connection, None)
        self._unheard.pop(connection, None)

    def may_serve(self, connection: OneConnection, path: bytes) -> bool:
        if connection in self._spare and len(self._regular) < self._max:
            del self._spare[connection]
            self._regular.add(connection)
        return connection in self._regular or path in SPARE_PAGES

    def _make_room(self) -> None:
        if self._idle:
            self._close(next(iter(self._idle)))
        elif self._unheard:
            connection, since = next(iter(self._unheard.items()))
            if time.monotonic() - since >= UNHEARD_S:
                self._close(connection)

    def _close(self, connection: OneConnection) -> None:
        self.remove(connection)
        connection.close()
