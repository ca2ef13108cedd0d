"""The interface of a dialect, and the table of routes.

A dialect is a module (api/openai.py, api/anthropic.py) that implements the protocol below; mypy checks this
at the list of dialects in api/app.py. docs/explanation/extend.md adds a dialect in a single file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from headway.api.fields import Cleaned, RequestFields
from headway.core.rate_limit import RateLimit
from headway.core.types import Tier
from headway.errors import EngineAnswered, EngineFailed, EngineLost, HeadwayError
from headway.wire import AnswerForm, Grant, Request

Headers = dict[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]
Params = Mapping[str, str]  # the values of a path's parameters
NO_PARAMS: Params = {}
MAX_ERROR_BYTES = 64 * 1024  # of an engine's error body, from which the message is read
MAX_MESSAGE_CHARS = 200  # of its message, in the log

CONTEXT_EXCEEDED = (
    "maximum context length",
    "maximum model length",
    "context length is only",
    "exceeds the max_model_len",
)
TOKENS_OF_PROMPT = re.compile(
    r"context length is (?P<maximum>\d{1,12}) tokens\D{1,200}?(?P<tokens>\d{1,12}) input tokens"
)


class Reader(Protocol):
    """Parses a request body. Raises InvalidRequest or a msgspec error."""

    def __call__(self, body: bytes, call_id: str, params: Params = NO_PARAMS, /) -> Request: ...


@dataclass(frozen=True, slots=True)
class CallRoute:
    """An endpoint that an engine answers. `{name}` in the path is a parameter. Without `fields`, any field that `read`
    does not accept is an error. `embeds` endpoints are for embedding models, all others for models that generate."""

    path: str
    read: Reader
    fields: RequestFields | None = None
    embeds: bool = False

    def parse(self, body: bytes, call_id: str, params: Params, *, refuses_unknown: bool) -> tuple[Request, Cleaned]:
        """Read a body; if `read` rejects it, once more without the fields that are ignored. Raises as `read`."""
        try:
            return self.read(body, call_id, params), Cleaned(body, ())
        except msgspec.ValidationError:
            cleaned = self.fields.clean(body, refuses_unknown=refuses_unknown) if self.fields is not None else None
            if cleaned is None:
                raise
        return self.read(cleaned.body, call_id, params), cleaned


class Dialect(Protocol):
    """One wire format. Names in capitals are module constants."""

    @property
    def TIER_FIELD(self) -> str:
        """The request field that names the tier, for error messages."""

    @property
    def ROUTES(self) -> Sequence[CallRoute]:
        """The endpoints, all for POST."""

    def claims(self, path: str, headers: Headers) -> bool:
        """Whether to answer a request in this dialect although its path is not one of the routes."""

    def answer_headers(self, grant: Grant) -> HeaderList: ...

    def limit_headers(self, tier_asked: Tier, rate_limit: RateLimit | None) -> HeaderList: ...

    def error_status(self, error: HeadwayError) -> int: ...

    def error_body(self, error: HeadwayError, call_id: str) -> bytes: ...

    def error_event(self, error: HeadwayError, call_id: str, form: AnswerForm | None, /) -> bytes:
        """An error in a stream that has begun. `form` is the form of its answer, if it is known."""


def engine_error(body: bytes) -> dict[str, str]:
    """The texts in the `error` object of an engine's error body; {} if there is none. vLLM uses the same keys in both
    dialects."""
    return {key: value for key, value in _error_object(body).items() if isinstance(value, str)}


def is_context_exceeded(error: HeadwayError) -> bool:
    """Whether the engine refused a prompt that is too long for the model. Clients act on this: they shorten the
    conversation. vLLM says it only in words."""
    if not isinstance(error, EngineAnswered) or error.status != 400:
        return False
    message = engine_error(error.body).get("message", "").lower()
    return any(words in message for words in CONTEXT_EXCEEDED)


def prompt_too_long(message: str) -> str:
    """The engine's message, after the words that clients of the Anthropic dialect look for, and with the numbers in
    their form if the engine's message has them."""
    numbers = TOKENS_OF_PROMPT.search(message)
    compared = f"{numbers['tokens']} tokens > {numbers['maximum']} maximum. " if numbers else ""
    return f"prompt is too long: {compared}{message}"


def failure_in_stream(payload: bytes, *, has_begun: bool) -> EngineFailed:
    """What an error event of an engine means. vLLM checks some fields, such as token ids, only after it has begun its
    stream: an error of the client before the first token is no failure of the engine."""
    error = _error_object(payload)
    code, message = error.get("code"), error.get("message")
    if isinstance(code, int) and 400 <= code < 500 and not has_begun:
        return EngineAnswered(code, payload)
    # The engine's words are logged: escaped, so that they cannot look like other lines, and cut.
    words = repr(message[:MAX_MESSAGE_CHARS]) if isinstance(message, str) else "without a message"
    return EngineLost(f"the engine failed during its answer: {words}")


def _error_object(body: bytes) -> dict[str, object]:
    if len(body) > MAX_ERROR_BYTES:
        return {}
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError):
        return {}
    return error if isinstance(error, dict) else {}


Found = TypeVar("Found")
PARAMETER = re.compile(r"\{(\w+)(\*?)\}")


class RouteTable(Generic[Found]):
    """Finds a route by method and path. A parameter `{name}` matches one segment of the path, `{name*}` the rest."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Found] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Found]] = []
        self.names: list[tuple[str, str]] = []  # method and path of every route

    def add(self, method: str, path: str, route: Found) -> None:
        self.names.append((method, path))
        if "{" in path:
            literal = re.escape(path).replace(r"\{", "{").replace(r"\}", "}").replace(r"\*", "*")
            self._patterns.append((method, re.compile(PARAMETER.sub(_parameter_pattern, literal)), route))
        else:
            self._exact[method, path] = route

    def find(self, method: str, path: str) -> tuple[Found | None, Params]:
        if (route := self._exact.get((method, path))) is not None:
            return route, NO_PARAMS
        for route_method, pattern, route in self._patterns:
            if route_method == method and (match := pattern.fullmatch(path)):
                return route, match.groupdict()
        return None, NO_PARAMS

    def methods(self, path: str) -> list[str]:
        """The methods that a path has routes for."""
        exact = [method for method, route_path in self._exact if route_path == path]
        return exact + [method for method, pattern, _ in self._patterns if pattern.fullmatch(path)]


def _parameter_pattern(parameter: re.Match[str]) -> str:
    return f"(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'})"
