"""Endpoints that Headway answers itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from headway.api.dialect import HeaderList, Params
from headway.ledger.keys import Key

Page = tuple[int, bytes, bytes]  # status, content type, body
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class PageRoute:
    """`page` is called with the parameters of the path, the query as `query`, and the request's body as `body` if it
    may have one; and with the caller's key, if a caller's is required and there are any."""

    page: Callable[[Params, Key | None], Page | Awaitable[Page]]
    who: Literal["anyone", "caller", "owner", "admin"] = "caller"
    max_body_bytes: int = 0
    headers: HeaderList = field(default_factory=list)  # of its answer
