"""Which hosts and web pages may call, and what a browser is told about it (CORS).

A gateway without keys serves its own machine only. Pages of other origins can call from a browser if the owner lists
them; then the browser shows them the answers. Keys are never cookies, so credentials in the sense of CORS are not
allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from headway.api.dialect import HeaderList, Headers
from headway.errors import Forbidden, InvalidRequest

Scope = dict[str, Any]

ANY_ORIGIN = b"*"
PREFLIGHT_MAX_AGE_S = 600  # for which a browser may keep the answer to OPTIONS
HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")


class Origins:
    """`allowed` are the origins whose pages may call, as in the setting `cors_origins`."""

    def __init__(self, allowed: Sequence[str], *, anyone_may_call: bool) -> None:
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._anyone_may_call = anyone_may_call

    def check(self, scope: Scope) -> None:
        """Require one Host header. If anyone may call, a web page in a browser on this machine could call too. So the
        Host must be this machine, which it is not for a page whose name was rebound to it by DNS, and the Origin must
        be this machine or allowed."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 and not (not hosts and scope["http_version"] == "1.0"):
            raise InvalidRequest("A request must have exactly one Host header.")
        if not self._anyone_may_call:
            return
        origins = [value for name, value in scope["headers"] if name == b"origin" and value not in self._allowed]
        if not all(_is_this_machine(host) for host in hosts + [origin.partition(b"://")[2] for origin in origins]):
            raise Forbidden(
                "This gateway has no keys, so it only takes requests to localhost or a loopback address, and from web "
                "pages only of this machine or of `cors_origins`. Configure keys to lift this."
            )

    def headers(self, headers: Headers) -> HeaderList:
        """The headers of every answer, by which a browser decides whether its page may read it."""
        if not self._allowed:
            return []
        if ANY_ORIGIN in self._allowed:
            allowed = [(b"access-control-allow-origin", ANY_ORIGIN)]
        elif (origin := headers.get(b"origin")) in self._allowed and origin is not None:
            allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        else:
            return [(b"vary", b"origin")]
        return [*allowed, (b"access-control-expose-headers", b"*")]

    def preflight_headers(self, headers: Headers, methods: bytes) -> HeaderList:
        """What a browser asks for before it sends a request: methods, and any header that it names."""
        asked = headers.get(b"access-control-request-headers", b"")
        if not self._allowed or b"access-control-request-method" not in headers:
            return []
        answer = [
            (b"access-control-allow-methods", methods),
            (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_S),
        ]
        if HEADER_NAMES.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked))
        return answer


def _is_this_machine(host: bytes) -> bool:
    name = re.sub(rb":\d*$", b"", host.lower())
    try:
        return name == b"localhost" or ip_address(name.strip(b"[]").decode("ascii")).is_loopback
    except ValueError:
        return False
