"""Where a dispatcher listens: `unix:PATH` on one machine, `tcp://HOST:PORT` between machines."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from headway.errors import SetupError

MAX_UNIX_PATH_BYTES = 107  # of Linux
_TCP = re.compile(r"tcp://(?:(?P<host>[A-Za-z0-9._-]{1,253})|\[(?P<ipv6>[0-9A-Fa-f:.]+)\]):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """Raises SetupError if the text is no address."""
    if text.startswith("unix:"):
        return _unix(text)
    found = _TCP.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 2**16 or not _is_host(found["host"] or found["ipv6"]):
        raise SetupError(
            f"{text!r} is not an address of a dispatcher. Write unix:PATH, tcp://HOST:PORT or tcp://[IPV6]:PORT."
        )
    return TcpAddress(found["host"] or found["ipv6"], int(found["port"]))


def _is_host(host: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(host) if ":" in host else host.encode("idna"))
    except ValueError:
        return False


def _unix(text: str) -> UnixAddress:
    path = text.removeprefix("unix:")
    if not path or path.endswith("/") or "\0" in path:
        raise SetupError(f"{text!r} names no file for the socket. Write unix:PATH.")
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise SetupError(
            f"The path of {text!r} is too long for a socket: at most {MAX_UNIX_PATH_BYTES} bytes. Use a shorter one."
        )
    return UnixAddress(Path(path))
