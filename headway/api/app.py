"""The application: a table of routes, and what every one of them has in common.

Decides nothing about calls: a request is authorised by the route it matched, read by its dialect, and handed to
`handle`. Whatever is raised on the way is answered in the dialect of the route.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Literal, cast

import msgspec

from headway.api import anthropic, openai
from headway.api.auth import FindKey, Headers, Keys
from headway.api.server import Connection, HTTPClient, Send
from headway.auto.requests import CallRungs
from headway.auto.risk import CONFIDENCE
from headway.config import Config, ModelTable
from headway.core.rate_limit import TokenLimit
from headway.core.types import Tier
from headway.errors import Forbidden, HeadwayError, InvalidRequest, Refused, TooLarge, UnknownModel
from headway.ledger.keys import Key
from headway.wire import Client, Request, Served

log = logging.getLogger("headway.api")

BODY_TIMEOUT_S = 60.0
FALLBACK_HEADER = b"headway-fallback"
MISSING = "Object missing required field `"
UNKNOWN = "Object contains unknown field `"

Handle = Callable[[Request, Client], Awaitable[None]]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class CallRoute:
    """An endpoint that costs tokens or the engine's time: read by its dialect, then handled by the gateway."""

    dialect: ModuleType
    read: Callable[[bytes, str], Request]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """An endpoint we answer ourselves: () -> (status, content type, body)."""

    page: Callable[[], tuple[int, bytes, bytes]]
    who: Literal["anyone", "caller", "owner"] = "caller"


class App:
    """`handle` is the gateway's; `is_ready` and `metrics_page` tell of its state. Where there is a ledger, `find_key`
    looks a key up by its hash and `salt` keeps tenants apart in the engines' caches."""

    def __init__(
        self,
        config: Config,
        *,
        handle: Handle,
        is_ready: Callable[[], bool],
        metrics_page: Callable[[], bytes],
        find_key: FindKey | None = None,
        salt: Callable[[str], str] | None = None,
    ) -> None:
        self._handle = handle
        self._is_ready = is_ready
        self._metrics_page = metrics_page
        self._keys = Keys(tuple(config.gateway.key_hashes), find_key)
        self._salt = salt
        self._autos = {model.auto_name: model for model in config.models if model.auto is not None}
        self._models = {model.name: model for model in config.models} | self._autos
        self._max_body_bytes = config.gateway.max_body_bytes
        self._models_page = _models_page(config.models)
        self.routes: dict[tuple[str, str], CallRoute | PageRoute] = {
            ("POST", "/v1/chat/completions"): CallRoute(openai, openai.read_chat),
            ("POST", "/v1/completions"): CallRoute(openai, openai.read_completion),
            ("POST", "/v1/messages"): CallRoute(anthropic, anthropic.read_messages),
            ("POST", "/v1/messages/count_tokens"): CallRoute(anthropic, anthropic.read_count_tokens),
            ("GET", "/v1/models"): PageRoute(lambda: (200, b"application/json", self._models_page)),
            ("GET", "/metrics"): PageRoute(lambda: (200, b"text/plain; version=0.0.4", self._metrics_page()), "owner"),
            ("GET", "/health"): PageRoute(lambda: (200, b"text/plain", b"ok\n"), "anyone"),
            ("GET", "/ready"): PageRoute(self._ready_page, "anyone"),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get((scope["method"], scope["path"]))
        headers: Headers = dict(scope["headers"])
        dialect = route.dialect if isinstance(route, CallRoute) else _dialect_of(scope["path"], headers)
        call_id = new_call_id()
        # Both names: the OpenAI SDK reads the first, the Anthropic SDK the second.
        headers_of_ours = [(b"x-request-id", call_id.encode()), (b"request-id", call_id.encode())]
        connection = cast(Connection, scope["state"]["connection"])
        client = HTTPClient(connection, send, headers_of_ours, dialect.answer_headers)
        connection.task = asyncio.current_task()
        served: Served | None = None  # as far as the gateway came with it
        try:
            if route is None:
                raise InvalidPath(scope["method"], scope["path"])
            if isinstance(route, PageRoute):
                self._authorise_page(route, headers)
                await client.send_page(*route.page(), headers=[])
            else:
                key = self._keys.check(headers)
                body = await read_body(receive, headers, self._max_body_bytes)
                request = self._read(route, body, call_id, headers)
                self._is_allowed(request, key)
                if request.call.model in self._autos:
                    request.rungs = self._rungs(route, body, request, key)
                try:
                    await self._handle(request, client)
                finally:
                    served = request.meter.served
        except HeadwayError as error:
            await _answer_error(client, dialect, error, call_id, served)
        except asyncio.CancelledError:
            if not connection.transport.is_closing():
                # The drain's time is up. The client is told; uvicorn closes the connection.
                await _answer_error(client, dialect, Refused("draining", 1), call_id)
        finally:
            connection.task = None

    def _authorise_page(self, route: PageRoute, headers: Headers) -> None:
        if route.who == "caller":
            self._keys.check(headers)
        elif route.who == "owner":
            self._keys.check_owner(headers)

    def _rungs(self, route: CallRoute, body: bytes, request: Request, key: Key | None) -> CallRungs:
        """The same call to the student, and to the full model; the key was asked about neither."""
        full = self._autos[request.call.model]
        student = self._models[full.student_name]
        audit_tier: Tier = "flex" if any(tier.name == "flex" for tier in full.tiers) else "standard"
        falls_back = request.call.falls_back

        def prepare(of_rung: Request) -> None:
            of_rung.call.falls_back = falls_back
            if key is not None:
                self._belongs_to(of_rung, key)

        names, tiers = (student.name, full.name), [tier.name for tier in student.tiers]
        return CallRungs(body, request, route.read, prepare, names, audit_tier, tiers)

    def _is_allowed(self, request: Request, key: Key | None) -> None:
        """Whether its key is for this call. Raises Forbidden."""
        if key is None:
            return
        call = request.call
        if key.models is not None and call.model not in key.models:
            raise Forbidden(f"This key is not for the model `{call.model}`, but for: {', '.join(key.models)}.")
        if key.tiers is not None and call.tier not in key.tiers:
            raise Forbidden(f"This key is not for the tier `{call.tier}`, but for: {', '.join(key.tiers)}.")
        self._belongs_to(request, key)

    def _belongs_to(self, request: Request, key: Key) -> None:
        """Whose call it is, and what that limits."""
        call = request.call
        call.tenant = key.id
        call.express_limit = _limit(key.fast_input_tpm, key.fast_output_tpm, key.fast_requests_pm)
        call.other_limit = _limit(key.input_tpm, key.output_tpm, key.requests_pm)
        if self._salt is not None and request.max_output_tokens != 0:
            # Prompts of one tenant are found in an engine's cache by that tenant's calls only.
            call.affinity = f"{key.id} {call.affinity}" if call.affinity else ""
            _add(request, "cache_salt", self._salt(key.id))
        has_budget = key.budget_day is not None or key.budget_month is not None
        if has_budget and request.max_output_tokens is None:
            request.max_output_tokens = self._models[call.model].max_output_tokens
            _add(request, "max_tokens", request.max_output_tokens)

    def _read(self, route: CallRoute, body: bytes, call_id: str, headers: Headers) -> Request:
        try:
            request = route.read(body, call_id)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise _invalid(error) from None
        model = self._models.get(request.call.model)
        if model is None:
            known = ", ".join(self._models)
            raise UnknownModel(f"The model `{request.call.model}` does not exist here. Models: {known}.", "model")
        if request.call.tier not in (offered := [tier.name for tier in model.tiers]):
            field = route.dialect.TIER_FIELD
            raise InvalidRequest(
                f"This model is not offered at `{request.call.tier}`. Offered: {', '.join(offered)}.", field
            )
        _choose_fallback(request, headers)
        return request

    def _ready_page(self) -> tuple[int, bytes, bytes]:
        return (200, b"text/plain", b"ready\n") if self._is_ready() else (503, b"text/plain", b"not ready\n")


class InvalidPath(InvalidRequest):
    status = 404

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is no {method} {path[:200]} here.")


def new_call_id() -> str:
    """Unique, and ordered by time: milliseconds, then 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


async def read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    if int(headers.get(b"content-length", b"0") or b"0") > max_bytes:
        raise TooLarge(f"The request is larger than {max_bytes} bytes.")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise asyncio.CancelledError
                parts.append(message["body"])
                size += len(message["body"])
                if size > max_bytes:
                    raise TooLarge(f"The request is larger than {max_bytes} bytes.")
                if not message["more_body"]:
                    return b"".join(parts)
    except TimeoutError:
        raise InvalidRequest(f"The request's body did not arrive within {BODY_TIMEOUT_S:g} s.") from None


def _invalid(error: Exception) -> InvalidRequest:
    """msgspec's words, with the field's name where a client looks for it."""
    text = str(error)
    if isinstance(error, RecursionError):
        return InvalidRequest("The request is nested too deeply.")
    if text.startswith(UNKNOWN):
        where, _, at = text.removeprefix(UNKNOWN).partition("`")
        return InvalidRequest(f"Unknown field `{where}`{_place(at)}: it is not accepted here.", where)
    if text.startswith(MISSING):
        where, _, at = text.removeprefix(MISSING).partition("`")
        return InvalidRequest(f"Missing field `{where}`{_place(at)}.", where)
    what, _, at = text.partition(" - at `$")
    param = at.strip("`").lstrip(".") or None
    return InvalidRequest(f"{what}{f' (in `{param}`)' if param else ''}.", param)


def _place(at: str) -> str:
    path = at.partition("`$")[2].strip("`").lstrip(".")
    return f" in `{path}`" if path else ""


def _choose_fallback(request: Request, headers: Headers) -> None:
    """Without an express seat: refuse, or serve as standard? The dialect decides, unless the client does."""
    wish = headers.get(FALLBACK_HEADER)
    if wish is None:
        return
    if wish not in (b"none", b"standard"):
        raise InvalidRequest("`Headway-Fallback` is `none` or `standard`.", "Headway-Fallback")
    request.call.falls_back = wish == b"standard"


def _add(request: Request, field: str, value: str | int) -> None:
    """One more field in what the engine is sent."""
    request.body = request.body[:-1] + b',"%b":%b}' % (field.encode(), msgspec.json.encode(value))


def _limit(*said: int | None) -> TokenLimit | None:
    return TokenLimit(*[part or 0 for part in said]) if any(part is not None for part in said) else None


def _dialect_of(path: str, headers: Headers) -> ModuleType:
    is_anthropic = path.startswith("/v1/messages") or b"anthropic-version" in headers
    return anthropic if is_anthropic else openai


async def _answer_error(
    client: HTTPClient, dialect: ModuleType, error: HeadwayError, call_id: str, served: Served | None = None
) -> None:
    if client.started:
        client.write(dialect.error_event(error, call_id))
        await client.end_stream()
        return
    headers = []
    if isinstance(error, Refused):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
        headers += dialect.limit_headers(served) if served is not None else []
    if isinstance(error, TooLarge):
        headers.append((b"connection", b"close"))  # what is left of the body shall not be read
    body = dialect.error_body(error, call_id)
    await client.send_page(dialect.error_status(error), b"application/json", body, headers)


def _models_page(models: list[ModelTable]) -> bytes:
    """One page for both dialects: each SDK finds its own keys and passes over the other's. `service_tiers` says at
    which speeds a model is offered, what each promises, and what it costs beside standard; `mistake_budget` of an auto
    model how many excess mistakes it may make."""
    created = int(time.time())
    data = [_model_row(model.name, model, created) for model in models]
    for model in models:
        if model.auto is not None:
            budget = {"share": model.auto.budget, "confidence": CONFIDENCE, "student": model.student_name}
            data.append(_model_row(model.auto_name, model, created) | {"mistake_budget": budget})
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})


def _model_row(name: str, model: ModelTable, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "headway",
        "type": "model",
        "display_name": name,
        "service_tiers": [
            {"name": tier.name, "floor_tokens_per_second": tier.floor_tps, "price_multiple": tier.price_multiple}
            for tier in model.tiers
        ],
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
