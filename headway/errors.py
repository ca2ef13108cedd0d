"""Every error that Headway raises on purpose, with its HTTP status.

    HeadwayError
    ├── SetupError          the owner must fix something before Headway can run; shown by the CLI, never over HTTP
    ├── ConnectionFailed    a server cannot be reached or closed the connection; if it is an engine: EngineLost
    │   └── ResponseTooLarge
    ├── InvalidRequest      400, the client must change the request
    │   ├── TooLarge        413
    │   ├── UnknownModel    404
    │   ├── UnknownPath     404
    │   ├── UnknownEncoding 415
    │   └── WrongMethod     405
    ├── Unauthorized        401, missing or unknown key; never raised because the key store is down
    ├── Forbidden           403, the key is valid but does not allow this
    ├── Refused             the call is not served; REFUSALS has the status of each reason; always with a retry-after
    ├── InternalError       500, a fault in Headway itself
    └── EngineFailed        the engine failed
        ├── EngineAnswered  it returned an HTTP error, whose status goes to the client
        ├── EngineLost      the connection to it is lost: retried if nothing was delivered yet, else 502
        │   └── AnswerTooLarge  not the engine's fault if the client set no limit
        └── CannotContinue  another engine decodes the answer so far to another text

Only the dialects (api/openai.py, api/anthropic.py) turn errors into response bodies.
"""

from __future__ import annotations

import re
from typing import Literal

RefusalReason = Literal[
    "full",
    "hold_timeout",
    "over_limit",
    "over_budget",
    "no_replica",
    "no_dispatcher",
    "draining",
    "engine_failed",
    "engine_full",
    "books_full",
    "books_away",
    "too_many_choices",
    "held_bytes",
    "check_time",
    "not_offered",
]

# HTTP status and message. 429: retry later; 402: retry once there is budget; 503: Headway cannot serve now; 400: change
# the request.
REFUSALS: dict[RefusalReason, tuple[int, str]] = {
    "full": (429, "All seats for this model are taken and too many calls are already waiting."),
    "hold_timeout": (429, "No seat for this model became free in time."),
    "over_limit": (429, "Your limit per minute for this tier is used up."),
    "over_budget": (
        402,
        "This call may cost more than this key's remaining budget; a lower `max_tokens` reduces its cost.",
    ),
    "no_replica": (503, "No replica of this model is available at the moment."),
    "no_dispatcher": (503, "The process that assigns seats cannot be reached at the moment."),
    "draining": (503, "This gateway is shutting down and takes no new calls."),
    "engine_failed": (503, "Every engine that was tried for this call failed before it answered."),
    "engine_full": (
        503,
        "The engines of this model are overloaded: each that was tried refused this call by itself. Retry later.",
    ),
    "books_full": (503, "The cost of this call cannot be recorded at the moment."),
    "books_away": (503, "The store of keys and budgets cannot be reached at the moment."),
    "too_many_choices": (
        400,
        "No replica of this model can serve so many choices at once at this tier; lower `n`.",
    ),
    "not_offered": (503, "The configuration of this model is being changed. Retry in a moment."),
    "held_bytes": (
        429,
        "All seats for this model are taken, and the requests that wait, of this key or of all, are too large in sum "
        "to keep another one waiting.",
    ),
    "check_time": (429, "Reading this key's requests has taken too much time: send smaller or fewer requests."),
}


class HeadwayError(Exception):
    """Base of all errors raised on purpose."""

    status: int = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def kind_of(error: BaseException) -> str:
    """A short name for logs and metrics, of which there are few: the reason of a refusal, the engine's status, or the
    class."""
    if isinstance(error, Refused):
        return error.reason
    if isinstance(error, EngineAnswered):
        return f"engine_{error.status}"
    name = type(error).__name__ if isinstance(error, HeadwayError) else InternalError.__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class SetupError(HeadwayError):
    """The owner must fix something; the message says what."""


class ConnectionFailed(HeadwayError):
    """The connection to a server is lost or could not be made (http1.py).

    `reached` is False only if it is certain that the server never received the request.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class ResponseTooLarge(ConnectionFailed):
    """The server sent more than is kept in memory."""


class InvalidRequest(HeadwayError):
    """The client must change the request. `param` names the field at fault, if there is one; `code` is a code that an
    SDK acts on."""

    status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class TooLarge(InvalidRequest):
    status = 413


class UnknownModel(InvalidRequest):
    status = 404


class UnknownPath(InvalidRequest):
    status = 404

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"No such endpoint: {method} {path[:200]}.")


class UnknownEncoding(InvalidRequest):
    status = 415


class WrongMethod(InvalidRequest):
    """The endpoint exists, and takes the methods in `allow`."""

    status = 405

    def __init__(self, method: str, path: str, allow: str) -> None:
        super().__init__(f"{path[:200]} does not take {method}. It takes: {allow}.")
        self.allow = allow


class Unauthorized(HeadwayError):
    status = 401


class Forbidden(HeadwayError):
    status = 403


class Refused(HeadwayError):
    """The call is not served now. The client may retry after `retry_after_s`."""

    def __init__(self, reason: RefusalReason, retry_after_s: int) -> None:
        self.status, message = REFUSALS[reason]
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class LookupFailed(Exception):
    """A name cannot be looked up in DNS."""


class InternalError(HeadwayError):
    """What a client is told of an error that nobody expected."""

    def __init__(self) -> None:
        super().__init__("Headway failed to serve this call, by a fault of its own.")


class EngineFailed(HeadwayError):
    status = 502


class EngineAnswered(EngineFailed):
    """The engine returned an HTTP error. The dialect extracts the message from `body`."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine answered with status {status}")
        self.status = status
        self.body = body


class CannotContinue(EngineFailed):
    """The stream that another engine would go on with is not the one that was delivered."""


class EngineLost(EngineFailed):
    """The connection to the engine failed, or the engine ended its answer early. `reached` as in ConnectionFailed."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class AnswerTooLarge(EngineLost):
    """The answer, or one event of it, is larger than is kept in memory."""
