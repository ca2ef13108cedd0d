"""Headway as several processes on one box: `headway serve --relays N`.

parent (dispatch/parent.py) ─┬─ headway dispatch    deciding.py: core, for all relays
                             ├─ headway relay       run.py: a gateway that does not decide
                             └─ headway relay ...
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headway.config import Config, LedgerTable, as_text
from headway.config_file import ConfigFile
from headway.deciding import DISPATCHER, check_can_be_shared, members_of
from headway.dispatch.address import parse_address
from headway.dispatch.pages import SUFFIX
from headway.dispatch.parent import Child, Parent, bind
from headway.dispatch.record import record_of
from headway.engines.kinds import check_kind
from headway.errors import SetupError
from headway.ledger.identity import lock_spool, shared_name
from headway.ledger.keys import read_secret
from headway.ledger.segments import NAMES
from headway.observe.opening import STDOUT

log = logging.getLogger("headway.processes")

CLOSE_BOOKS_S = 30.0  # that a relay has to close its books, after its streams have ended


def serve_processes(
    config: Config, source: Path, relays: int, record_to: Path | None, on_listening: Callable[[int], None]
) -> int:
    """Serve with so many relays until SIGTERM or SIGINT. Returns the exit code. `source` is the file that the
    configuration is from, which is read again when it has changed."""
    check_can_be_shared(config)
    names = [f"relay-{number}" for number in range(1, relays + 1)]
    if config.ledger is not None:
        prepare_ledger(config.ledger, names)
        lock_spool(Path(config.ledger.spool))  # until this process ends
    sockets = bind(config.gateway.host, config.gateway.port, relays)
    port: int = sockets[0][0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="headway-") as directory, tempfile.TemporaryFile() as written:
        # Children that are started later read it too. It may have a password, so it is in a file without a name.
        parse_address(f"unix:{directory}/{DISPATCHER}{SUFFIX}")  # the longest path in it: raises if it is too long
        pipe, _held = os.pipe()
        stdout = os.dup(sys.stdout.fileno()) if config.gateway.access_log == STDOUT else None
        common = _Common(f"unix:{directory}/{DISPATCHER}", written.fileno(), pipe, stdout)
        dispatcher = common.dispatcher(names, record_to)
        served = _BoxConfig(config, written, dispatcher)
        parent = Parent(
            dispatcher,
            [common.relay(name, own) for name, own in zip(names, sockets, strict=True)],
            [one for own in sockets for one in own],
            config.gateway.drain_timeout_s + CLOSE_BOOKS_S,
            lambda: ConfigFile(source, served).run(),
        )
        log.info("`headway status --dispatcher %s` shows the state, to this user", common.address)
        return asyncio.run(parent.run(lambda: on_listening(port)))


class _BoxConfig:
    """The configuration that the processes of this box serve: in a file that all of them have open."""

    def __init__(self, config: Config, file: IO[bytes], dispatcher: Child) -> None:
        self.config = config
        self._file = file
        self._dispatcher = dispatcher
        self._write()

    def check(self, wanted: Config) -> None:
        check_can_be_shared(wanted)
        for member in members_of(wanted):
            check_kind(member.name, member.kind)

    def apply(self, served: Config) -> None:
        self.config = served
        self._write()
        self._dispatcher.tell_to_read_again()

    def _write(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(as_text(self.config).encode())
        self._file.flush()


@dataclass(frozen=True, slots=True)
class _Common:
    """What all children are given: the dispatcher's address, the open file of the configuration, and the pipe whose
    other end closes with the parent. Relays whose access log goes to standard output get this process's: their own only
    says that they listen."""

    address: str
    config: int
    pipe: int
    stdout: int | None

    def dispatcher(self, relays: Sequence[str], record_to: Path | None) -> Child:
        listed = [word for name in relays for word in ("--relay", name)]

        def command(number: int) -> Sequence[str]:
            record = ["--record", str(record_of(record_to, number))] if record_to is not None else []
            return ["dispatch", "--listen", self.address, "--epoch", str(number), *listed, *record, *self._options()]

        return Child(DISPATCHER, command, [self.config, self.pipe])

    def relay(self, name: str, sockets: Sequence[socket.socket]) -> Child:
        own = [one.fileno() for one in sockets]
        listening = [word for fd in own for word in ("--socket", str(fd))]
        logging_to = [self.stdout] if self.stdout is not None else []
        for fd in logging_to:
            listening += ["--stdout", str(fd)]
        command = ["relay", "--dispatcher", self.address, "--name", name, *listening, *self._options()]
        return Child(name, lambda _: command, [self.config, self.pipe, *logging_to, *own])

    def _options(self) -> list[str]:
        return ["--config", f"/dev/fd/{self.config}", "--parent-pipe", str(self.pipe)]


def prepare_ledger(ledger: LedgerTable, relays: Sequence[str]) -> None:
    """Create the secret and the name that all relays share, and warn of spools that no relay will empty."""
    spool = Path(ledger.spool)
    try:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        read_secret(ledger.secret_file)
        shared_name(spool)
    except OSError as error:
        raise SetupError(f"Cannot use the spool in {spool}: {error.strerror}.") from error
    unused = [
        path for path in (spool, *sorted(spool.glob("relay-*"))) if path.name not in relays and any(path.glob(NAMES))
    ]
    for path in unused:
        log.warning(
            "%s is the spool of another number of relays. If those were killed, or the store was away when they ended, "
            "serve with that number again, so that its entries get to the store.",
            path,
        )
