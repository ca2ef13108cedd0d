"""What a dialect must provide, and how its routes are found.

A dialect is a module (api/openai.py, api/anthropic.py) that implements the Protocol below; mypy checks it where
api/app.py lists it. docs/explanation/extend.md adds one in a single file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headway.core.rate_limit import RateLimit
from headway.core.types import Tier
from headway.errors import HeadwayError
from headway.wire import Grant, Request

Headers = dict[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]
Params = Mapping[str, str]  # the values of a path's parameters
NO_PARAMS: Params = {}


class Reader(Protocol):
    """Reads a body into a request. Raises InvalidRequest, or what msgspec raises."""

    def __call__(self, body: bytes, call_id: str, params: Params = NO_PARAMS, /) -> Request: ...


@dataclass(frozen=True, slots=True)
class CallRoute:
    """An endpoint that costs tokens or the engine's time. `{name}` in the path is a parameter."""

    path: str
    read: Reader


class Dialect(Protocol):
    """One wire format. Names in capitals are constants of the module."""

    @property
    def TIER_FIELD(self) -> str:
        """The request field that names the tier, for error messages."""

    @property
    def ROUTES(self) -> Sequence[CallRoute]:
        """Its endpoints; all take POST."""

    def claims(self, path: str, headers: Headers) -> bool:
        """Does a client that sent this speak the dialect? Asked for paths that are no route of it."""

    def answer_headers(self, grant: Grant) -> HeaderList: ...

    def limit_headers(self, tier_asked: Tier, rate_limit: RateLimit | None) -> HeaderList: ...

    def error_status(self, error: HeadwayError) -> int: ...

    def error_body(self, error: HeadwayError, call_id: str) -> bytes: ...

    def error_event(self, error: HeadwayError, call_id: str) -> bytes:
        """For a stream that has begun."""


def engine_error(body: bytes) -> dict[str, Any]:
    """What the engine said in its error body; vLLM uses the same keys in both dialects."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


Found = TypeVar("Found")
PARAMETER = re.compile(r"\{(\w+)\}")


class RouteTable(Generic[Found]):
    """Finds a route by method and path. A parameter matches one segment of the path."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Found] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Found]] = []
        self.names: list[tuple[str, str]] = []  # method and path of every route

    def add(self, method: str, path: str, route: Found) -> None:
        self.names.append((method, path))
        if "{" in path:
            literal = re.escape(path).replace(r"\{", "{").replace(r"\}", "}")
            self._patterns.append((method, re.compile(PARAMETER.sub(r"(?P<\1>[^/]+)", literal)), route))
        else:
            self._exact[method, path] = route

    def find(self, method: str, path: str) -> tuple[Found | None, Params]:
        if (route := self._exact.get((method, path))) is not None:
            return route, NO_PARAMS
        for of_method, pattern, route in self._patterns:
            if of_method == method and (match := pattern.fullmatch(path)):
                return route, match.groupdict()
        return None, NO_PARAMS
