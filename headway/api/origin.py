"""Which hosts and web pages may call: a gateway without keys serves its own machine only."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Any

from headway.errors import Forbidden, InvalidRequest

Scope = dict[str, Any]


def check_origin(scope: Scope, *, anyone_may_call: bool) -> None:
    """Require one Host header. If anyone may call, a web page in a browser on this machine could call too. So the Host
    must be this machine, which it is not for a page whose name was rebound to it by DNS, and so must be the Origin."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 and not (not hosts and scope["http_version"] == "1.0"):
        raise InvalidRequest("A request must have exactly one Host header.")
    if not anyone_may_call:
        return
    origins = [value.partition(b"://")[2] for name, value in scope["headers"] if name == b"origin"]
    if not all(_is_this_machine(host) for host in hosts + origins):
        raise Forbidden(
            "This gateway has no keys, so it only takes requests to localhost or a loopback address, and none from web "
            "pages of other hosts. Configure keys to lift this."
        )


def _is_this_machine(host: bytes) -> bool:
    name = re.sub(rb":\d*$", b"", host.lower())
    try:
        return name == b"localhost" or ip_address(name.strip(b"[]").decode("ascii")).is_loopback
    except ValueError:
        return False
