"""Fetches small pages from processes of a run, without an event loop."""

from __future__ import annotations

import urllib.request

# Not through the proxy that the environment may name: all URLs are on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, body: bytes | None = None, timeout_s: float = 30.0, key: str = "") -> bytes:
    """GET the page, or POST `body`. Raises OSError if there is no answer or its status is an error."""
    request = urllib.request.Request(url, data=body, headers={"x-api-key": key} if key else {})
    with _opener.open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content
