"""A name server that lies about one name: it names nobody, the dead, strangers, or does not answer."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from runs.fleet.discovery import NameServer

NOBODY = [f"127.0.9.{number}" for number in range(200, 204)]  # nothing listens there


class LyingNames:
    """The addresses of one name (`runs.fleet.discovery.NAME`), and the lies. `mend` tells the truth again."""

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._server = NameServer(folder)

    def start(self) -> None:
        self._server.start()
        self._server.name(self.addresses)

    def stop(self) -> None:
        self._server.stop()

    def name_nobody(self) -> None:
        self._server.name([])

    def name_the_dead(self) -> None:
        """Beside the true addresses, some that do not answer."""
        self._server.name([*self.addresses, *NOBODY])

    def name_only(self, addresses: Sequence[str]) -> None:
        """Such as the address of another model's engine."""
        self._server.name(addresses)

    def be_silent(self) -> None:
        """Take questions and answer none."""
        self._server.signal(signal.SIGSTOP)

    def mend(self) -> None:
        """Also after a kill: the server is started again."""
        self._server.stop()
        self.start()
