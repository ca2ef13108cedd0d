"""headway.toml, which is read again while it is served: when it has changed, and on SIGHUP.

It is checked first; if anything is wrong, nothing changes. Otherwise its differences are applied and reported.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from headway.config import Config, load
from headway.config.differences import differences, without_restart
from headway.errors import SetupError

log = logging.getLogger("headway.config")

LOOK_S = 1.0  # between two looks at the file


class Served(Protocol):
    """Whoever serves a configuration."""

    config: Config

    def check(self, wanted: Config) -> None:
        """Raises SetupError if it cannot be served."""

    def apply(self, served: Config) -> None:
        """Serve it. It differs from the one before only in what needs no restart."""


class ConfigFile:
    def __init__(
        self, path: Path, served: Served, count: Callable[[Literal["applied", "refused"]], None] = lambda _: None
    ) -> None:
        """`count` is told how each reading ended."""
        self._path = path
        self._served = served
        self._count = count
        self._is_asked = asyncio.Event()
        self._seen = self._stamp()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._is_asked.set)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_asked.wait()
            stamp = self._stamp()
            if self._is_asked.is_set() or stamp != self._seen:
                self._is_asked.clear()
                self._seen = stamp
                await self._read()

    async def _read(self) -> None:
        before = self._served.config
        try:
            wanted = await asyncio.to_thread(load, self._path)  # with thousands of replicas it lasts for a while
            self._served.check(wanted)
            served = await asyncio.to_thread(without_restart, before, wanted)
        except SetupError as error:
            log.error("%s was read again and is refused, so nothing has changed:\n%s", self._path, error.message)
            self._count("refused")
            return
        self._served.apply(served)
        found = differences(before, wanted)
        log.info("%s was read again: %s", self._path, f"{len(found)} differences" if found else "nothing has changed")
        for one in found:
            log.info("%s", one)
        self._count("applied")

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes with the file, also if another one is put in its place."""
        try:
            found = self._path.stat()
        except OSError:  # it is being replaced, or gone: then what is served stays
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
