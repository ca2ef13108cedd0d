"""Every error Headway raises on purpose, with the HTTP status it becomes.

    HeadwayError
    ├── SetupError          the owner must change something before Headway can run: shown by the CLI, never over HTTP
    ├── ConnectionFailed    a server we called cannot be reached or broke off; of an engine, it becomes EngineLost
    ├── InvalidRequest      400, the client must change the request
    │   ├── TooLarge        413
    │   └── UnknownModel    404
    ├── Unauthorized        401, no key or a wrong one; never raised because something of ours is down
    ├── Forbidden           403, the key is good and not for this
    ├── Refused             no seat within the call's patience: 429 or 503, always with a retry-after
    └── EngineFailed        what the engine did to us
        ├── EngineAnswered  it answered with an error of its own: its status goes to the client
        └── EngineLost      the connection to it is gone: 502, or retried where nothing was delivered yet

The dialects (api/openai.py, api/anthropic.py) give these their wire form; no other module writes an error body.
"""

from __future__ import annotations

from typing import Literal

RefusalReason = Literal[
    "full",
    "hold_timeout",
    "over_limit",
    "over_budget",
    "no_replica",
    "draining",
    "engine_failed",
    "books_full",
    "books_away",
    "too_many_choices",
]

# What the client is told: 429 says "ask again", 402 "not before there is money", 503 "we are not able to", 400 "change
# the request".
REFUSALS: dict[RefusalReason, tuple[int, str]] = {
    "full": (429, "All seats for this model are taken and too many calls are already waiting."),
    "hold_timeout": (429, "No seat for this model became free in time."),
    "over_limit": (429, "Your limit per minute for this tier is used up."),
    "over_budget": (
        402,
        "The budget of this key has less left than this call may cost; a lower `max_tokens` helps.",
    ),
    "no_replica": (503, "No replica of this model is available at the moment."),
    "draining": (503, "This gateway is shutting down and takes no new calls."),
    "engine_failed": (503, "The engines that were tried for this call failed before they answered."),
    "books_full": (503, "What this call costs could not be recorded at the moment."),
    "books_away": (503, "The store of keys and budgets cannot be reached at the moment."),
    "too_many_choices": (
        400,
        "No replica of this model can serve so many choices at once at this tier; lower `n`.",
    ),
}


class HeadwayError(Exception):
    """Base of all errors raised on purpose."""

    status: int = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SetupError(HeadwayError):
    """Something the owner must change; the message says what."""


class ConnectionFailed(HeadwayError):
    """The connection to a server is gone, or could not be made (http1.py).

    `reached` is False only when it is certain that the server never saw the request.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class InvalidRequest(HeadwayError):
    """The request cannot be served as it is. `param` names the field where one is to blame."""

    status = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TooLarge(InvalidRequest):
    status = 413


class UnknownModel(InvalidRequest):
    status = 404


class Unauthorized(HeadwayError):
    status = 401


class Forbidden(HeadwayError):
    status = 403


class Refused(HeadwayError):
    """The call was turned away by boarding; asking again after `retry_after_s` is reasonable."""

    def __init__(self, reason: RefusalReason, retry_after_s: int) -> None:
        self.status, message = REFUSALS[reason]
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineFailed(HeadwayError):
    status = 502


class EngineAnswered(EngineFailed):
    """The engine answered with an HTTP error of its own; the client's dialect reads the message out of `body`."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine answered with status {status}")
        self.status = status
        self.body = body


class EngineLost(EngineFailed):
    """The connection to the engine failed, or it ended its answer early. `reached` as in ConnectionFailed."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached
