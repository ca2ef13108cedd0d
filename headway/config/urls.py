"""URLs of servers in headway.toml."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

TCP_ADDRESS = re.compile(r"tcp://(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([1-9]\d{0,4})")


def http_url(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError if it is not the base URL of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError('must look like "http://127.0.0.1:8001"')
    return url.rstrip("/")


def tcp_address(address: str) -> str:
    """Raises ValueError if it is no address of ZeroMQ with a host and a port."""
    found = TCP_ADDRESS.fullmatch(address)
    if found is None or int(found[1]) > 65_535:
        raise ValueError('must look like "tcp://10.0.0.5:5557"')
    return address
