"""URLs of servers in headway.toml."""

from __future__ import annotations

from urllib.parse import urlsplit


def http_url(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError if it is not the base URL of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError('must look like "http://127.0.0.1:8001"')
    return url.rstrip("/")
