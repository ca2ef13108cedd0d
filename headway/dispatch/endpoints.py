"""Make links: the dispatcher listens, relays connect. Every attempt is bounded in time, and so is the number of
connections that are not trusted yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path

from headway.dispatch.address import Address, TcpAddress, UnixAddress
from headway.dispatch.codec import decode_from_dispatcher, decode_from_relay
from headway.dispatch.frames import FromDispatcher, FromRelay
from headway.dispatch.handshake import DispatcherHandshake, RelayHandshake
from headway.dispatch.link import Link, Receiver
from headway.dispatch.security import MutualTls, RenewedContext, Security, SharedSecret, check_same_user, check_security
from headway.errors import ConnectionFailed, SetupError

log = logging.getLogger("headway.dispatch")

OPEN_S = 5.0  # to connect, and for TLS or the handshake
MAX_UNOPENED = 64
BACKLOG = 128
ACCEPT_RETRY_S = 0.5
LOG_INTERVAL_S = 1.0


async def connect(
    address: Address, make_receiver: Callable[[Link], Receiver[FromDispatcher]], security: Security
) -> Link:
    """Raises ConnectionFailed if there is no link within OPEN_S, and SetupError if `security` does not allow one."""
    check_security(address, security)
    tcp = isinstance(address, TcpAddress)
    handshake = RelayHandshake(security) if tcp and isinstance(security, SharedSecret) else None
    tls = security.client_context() if tcp and isinstance(security, MutualTls) else None
    link = Link(str(address), decode_from_dispatcher, make_receiver, handshake)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(link.abort, "connecting was given up")
        try:
            async with asyncio.timeout(OPEN_S):
                await _open(link, address, tls)
                reason = await link.opened
        except (OSError, ConnectionFailed) as error:  # a TimeoutError is an OSError
            reason = str(error) or "timed out"
        if reason:
            raise ConnectionFailed(f"cannot connect to {address}: {reason}", reached=False)
        on_failure.pop_all()
    return link


async def _open(link: Link, address: Address, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(address, TcpAddress):
        await loop.create_connection(link.as_protocol, address.host, address.port, ssl=tls)
        return
    connected = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(connected.close)
        connected.settimeout(0)
        await loop.sock_connect(connected, str(address.path))
        check_same_user(connected)
        on_failure.pop_all()
    await loop.create_unix_connection(link.as_protocol, sock=connected)


async def listen(
    address: Address, make_receiver: Callable[[Link], Receiver[FromRelay]], security: Security
) -> Listener:
    """Raises SetupError if this is not possible, or not with this `security`."""
    check_security(address, security)
    if isinstance(address, UnixAddress):
        return Listener(address, [_bind_unix(address.path)], make_receiver, None)
    tls = RenewedContext(security) if isinstance(security, MutualTls) else None
    bound = await _bind_tcp(address)
    port = bound[0].getsockname()[1]
    return Listener(TcpAddress(address.host, port), bound, make_receiver, security, tls)


class Listener:
    """Accepts connections until it is closed. The links that it made stay open after that."""

    def __init__(
        self,
        address: Address,
        bound: list[socket.socket],
        make_receiver: Callable[[Link], Receiver[FromRelay]],
        security: Security,
        tls: RenewedContext | None = None,
    ) -> None:
        self.address = address
        self._make_receiver = make_receiver
        self._security = security
        self._tls = tls
        self._bound = bound
        self._inode = _inode(address)
        self._unopened: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._logged_at = float("-inf")
        self._left_out = 0
        for one in bound:
            self._watch(one)

    async def close(self) -> None:
        # Before the socket is closed: after that, another process's socket may get the same inode.
        if isinstance(self.address, UnixAddress) and self._inode == _inode(self.address):
            self.address.path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        for one in self._bound:
            loop.remove_reader(one)
            one.close()
        self._bound = []
        await asyncio.sleep(0)  # a task that is cancelled before it has begun does not close its socket
        unopened = list(self._unopened)
        for task in unopened:
            task.cancel()
        await asyncio.gather(*unopened, return_exceptions=True)

    def _watch(self, bound: socket.socket) -> None:
        if bound in self._bound:  # else the listener was closed meanwhile
            asyncio.get_running_loop().add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> None:
        try:
            accepted, _ = bound.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it is gone again
            return
        except OSError as error:  # no file descriptors are left, for example
            self._log_refusal("a connection", str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(bound)
            loop.call_later(ACCEPT_RETRY_S, self._watch, bound)
            return
        accepted.settimeout(0)
        try:
            if isinstance(self.address, UnixAddress):
                check_same_user(accepted)
        except ConnectionFailed as error:
            accepted.close()
            self._log_refusal("a connection", error.message)
            return
        if len(self._unopened) >= MAX_UNOPENED:
            # An honest relay needs milliseconds, so the one that has waited longest is the least likely to be one.
            oldest = next(iter(self._unopened))
            del self._unopened[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._admit(accepted))
        self._unopened[task] = None
        task.add_done_callback(lambda done: self._unopened.pop(done, None))

    async def _admit(self, accepted: socket.socket) -> None:
        name = _name_of(accepted)
        handshake = DispatcherHandshake(self._security) if isinstance(self._security, SharedSecret) else None
        link = Link(name, decode_from_relay, self._make_receiver, handshake)
        reason = "it was given up"
        try:
            async with asyncio.timeout(OPEN_S):
                loop = asyncio.get_running_loop()
                tls = self._tls.current() if self._tls is not None else None
                await loop.connect_accepted_socket(link.as_protocol, accepted, ssl=tls)
                reason = await link.opened
        except (OSError, ConnectionFailed) as error:
            reason = str(error) or "timed out"
        finally:
            if reason:
                link.abort(reason)
                self._log_refusal(name, reason)

    def _log_refusal(self, name: str, reason: str) -> None:
        """At most one line per second, because anyone who can reach the port can cause them."""
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL_S:
            self._left_out += 1
            return
        left_out = f" ({self._left_out} earlier ones left out)" if self._left_out else ""
        log.warning("%s refuses %s: %s.%s", self.address, name, reason, left_out)
        self._logged_at, self._left_out = now, 0


def _name_of(accepted: socket.socket) -> str:
    try:
        where = accepted.getpeername()
    except OSError:  # it is gone already
        where = ()
    return f"a connection from {where[0]}" if where and isinstance(where, tuple) else "a connection"


async def _bind_tcp(address: TcpAddress) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as on_failure:
        try:
            async with asyncio.timeout(OPEN_S):
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            bound = []
            for family, _, _, _, where in dict.fromkeys(found):
                one = socket.create_server((str(where[0]), address.port), family=family, backlog=BACKLOG)
                on_failure.callback(one.close)
                one.settimeout(0)
                bound.append(one)
        except OSError as error:
            raise SetupError(f"Cannot listen on {address}: {error.strerror or 'its name does not resolve'}.") from error
        on_failure.pop_all()
    return bound


def _bind_unix(path: Path) -> socket.socket:
    _check_directory(path.parent)
    _remove_left_over(path)
    bound = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(bound.close)
        try:
            bound.bind(str(path))
            path.chmod(0o600)
            bound.listen(BACKLOG)
        except OSError as error:
            raise SetupError(f"Cannot listen on {path}: {error.strerror}.") from error
        bound.settimeout(0)
        on_failure.pop_all()
    return bound


def _check_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise SetupError(f"Cannot make the directory {directory}: {error.strerror}.") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise SetupError(
            f"Other users can use {directory}, so the dispatcher's socket cannot be there. Give it a directory of its "
            f"own, or `chmod 700 {directory}` if nobody else needs it."
        )


def _remove_left_over(path: Path) -> None:
    """Remove the socket of a process that has ended."""
    if not path.exists():
        return
    if not path.is_socket():
        raise SetupError(f"{path} exists and is not a socket. Remove it, or give the dispatcher another path.")
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:  # somebody listens and does not accept
            pass
    raise SetupError(f"Another process listens on {path}. Stop it, or give this dispatcher another path.")


def _inode(address: Address) -> int:
    """Tells the own socket from one that another process has put in its place."""
    if isinstance(address, UnixAddress):
        with contextlib.suppress(OSError):
            return address.path.stat().st_ino
    return 0
