"""Who may use a link. Between machines: mutual TLS, or a secret that both sides have. On one machine: the same user.

TLS also encrypts. The shared secret proves who connects and protects nothing that follows, so it is for networks that
nobody else can write to.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
from dataclasses import dataclass, field
from pathlib import Path

from headway.dispatch.address import Address, TcpAddress
from headway.errors import ConnectionFailed, SetupError

log = logging.getLogger("headway.dispatch")

SECRET_BYTES = 32
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


@dataclass(frozen=True, slots=True)
class MutualTls:
    """Files in PEM. Whoever has a certificate of this CA is trusted, so it should be a CA for this purpose only."""

    certificate: Path
    key: Path
    ca: Path

    def server_context(self) -> ssl.SSLContext:
        context = self._fill(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        return self._fill(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # verifies the certificate and its host name

    def _fill(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for path in (self.certificate, self.key, self.ca):
            try:
                path.read_bytes()  # because the errors of ssl do not say which file is at fault
            except OSError as error:
                raise SetupError(f"Cannot read {path} for the link: {error.strerror}.") from error
        try:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=b"")
        except (ssl.SSLError, ValueError) as error:
            raise SetupError(
                f"{self.certificate} and {self.key} are not a certificate and its key without a password: {error}"
            ) from error
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise SetupError(f"{self.ca} holds no certificate: {error}") from error
        return context


class RenewedContext:
    """A server's context that follows its files, because certificates are renewed while the server runs."""

    def __init__(self, files: MutualTls) -> None:
        """Raises SetupError if the files are not usable now."""
        self._files = files
        self._context = files.server_context()
        self._changed_ns = self._read_changed_ns()

    def current(self) -> ssl.SSLContext:
        """While a renewal is half done, and if it is wrong, the certificate before it goes on."""
        changed_ns = self._read_changed_ns()
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            try:
                self._context = self._files.server_context()
            except SetupError as error:
                log.warning("the renewed certificate of the link is not used: %s", error.message)
        return self._context

    def _read_changed_ns(self) -> list[int]:
        files = (self._files.certificate, self._files.key, self._files.ca)
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in files]


@dataclass(frozen=True, slots=True)
class SharedSecret:
    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise SetupError(
                f"The shared secret of the link has {len(self.value)} bytes, at least {SECRET_BYTES} are needed. "
                f"Make one with `openssl rand -hex {SECRET_BYTES}`."
            )


Security = MutualTls | SharedSecret | None


def check_security(address: Address, security: Security) -> None:
    """Raises SetupError for TCP without security. A UNIX socket needs none, and uses none that is given."""
    if isinstance(address, TcpAddress) and security is None:
        raise SetupError(
            f"{address} would be open to anyone who can reach it. Give both sides a certificate, its key and the CA of "
            f"the other side's certificate, or the same secret (`openssl rand -hex {SECRET_BYTES}`); or use unix:PATH "
            "if both are on one machine."
        )


def check_same_user(connected: socket.socket) -> None:
    """Raises ConnectionFailed unless the process at the other end of a UNIX socket runs as this user."""
    uid, own = peer_uid(connected), os.getuid()
    if uid != own:
        raise ConnectionFailed(f"the process at the other end runs as user {uid}, this one as {own}")


def peer_uid(connected: socket.socket) -> int:
    """The user of the process that connected, or that listens."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(uid)
