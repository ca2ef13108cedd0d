"""The ASGI application: finds the route, authorizes the caller, parses the body and passes the request to `handle`.

It makes no decisions about calls. Errors are returned in the dialect of the route.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from headway.api import anthropic, openai
from headway.api.auth import FindKey, Keys
from headway.api.body import Receive, read_body
from headway.api.check_time import CheckTime
from headway.api.connection import Connection
from headway.api.dialect import Dialect, Headers, Params, Reader, RouteTable
from headway.api.origin import Scope, check_origin
from headway.api.server import HTTPClient, Send
from headway.api.sparse_log import SparseLog
from headway.api.utf8 import is_utf8
from headway.auto.requests import CallRungs
from headway.config import Config, ModelTable
from headway.core.rate_limit import TokenLimit
from headway.core.types import Tier
from headway.core.watch import CONFIDENCE
from headway.errors import Forbidden, HeadwayError, InternalError, InvalidRequest, Refused, UnknownModel
from headway.ledger.keys import Key
from headway.wire import Client, NoSeat, Receipt, Request, with_fields

FALLBACK_HEADER = b"headway-fallback"
MISSING = "Object missing required field `"
UNKNOWN = "Object contains unknown field `"

METRICS_TYPE = b"text/plain; version=0.0.4"
DIALECTS: tuple[Dialect, ...] = (anthropic, openai)  # the first that claims an unknown path answers it

Handle = Callable[[Request, Client], Awaitable[Receipt]]
HandleAuto = Callable[[CallRungs, Client], Awaitable[Receipt]]
Page = tuple[int, bytes, bytes]  # status, content type, body


@dataclass(frozen=True, slots=True)
class PageRoute:
    """An endpoint that Headway answers itself."""

    page: Callable[[Params, Key | None], Page]
    who: Literal["anyone", "caller", "owner"] = "caller"


@dataclass(frozen=True, slots=True)
class DialectRoute:
    """An endpoint that a dialect reads and an engine answers."""

    dialect: Dialect
    read: Reader


class App:
    """`handle` serves calls to ordinary models, `handle_auto` calls to auto models. With a ledger, `find_key` looks up
    a key by its hash, and `salt` returns the cache salt that keeps a tenant's prompts apart in the engines' caches."""

    def __init__(
        self,
        config: Config,
        *,
        handle: Handle,
        handle_auto: HandleAuto,
        is_ready: Callable[[], bool],
        metrics_page: Callable[[], bytes],
        find_key: FindKey | None = None,
        salt: Callable[[str], str] | None = None,
    ) -> None:
        self._handle = handle
        self._handle_auto = handle_auto
        self._is_ready = is_ready
        self._metrics_page = metrics_page
        self._keys = Keys(tuple(config.gateway.key_hashes), find_key)
        self._salt = salt
        self._autos = {model.auto_name: model for model in config.models if model.auto is not None}
        self._models = {model.name: model for model in config.models} | self._autos
        self._max_body_bytes = config.gateway.max_body_bytes
        self._faults = SparseLog(logging.ERROR)
        self._model_rows = _model_rows(config.models)
        self._check_time = CheckTime()
        self.routes = RouteTable[DialectRoute | PageRoute]()
        for dialect in DIALECTS:
            for route in dialect.ROUTES:
                self.routes.add("POST", route.path, DialectRoute(dialect, route.read))
        self.routes.add("GET", "/v1/models", PageRoute(self._models_page))
        self.routes.add("GET", "/v1/models/{model}", PageRoute(self._model_page))
        self.routes.add("GET", "/metrics", PageRoute(lambda *_: (200, METRICS_TYPE, self._metrics_page()), "owner"))
        self.routes.add("GET", "/health", PageRoute(lambda *_: (200, b"text/plain", b"ok\n"), "anyone"))
        self.routes.add("GET", "/ready", PageRoute(self._ready_page, "anyone"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, params = self.routes.find(scope["method"], scope["path"])
        headers: Headers = dict(scope["headers"])
        dialect = route.dialect if isinstance(route, DialectRoute) else _dialect_of(scope["path"], headers)
        call_id = new_call_id()
        # The OpenAI SDK reads the first name, the Anthropic SDK the second.
        id_headers = [(b"x-request-id", call_id.encode()), (b"request-id", call_id.encode())]
        connection = cast(Connection, scope["state"]["connection"])
        client = HTTPClient(connection, send, id_headers, dialect.answer_headers)
        connection.task = asyncio.current_task()
        tier_asked: Tier = "standard"
        try:
            check_origin(scope, anyone_may_call=self._keys.anyone_may_call)
            if route is None:
                raise InvalidPath(scope["method"], scope["path"])
            if isinstance(route, PageRoute):
                key = self._authorize_page(route, headers)
                await client.send_page(*route.page(params, key), headers=[])
            else:
                request = await self._receive(route, receive, headers, params, call_id)
                if not connection.pipeline:
                    connection.flow.resume_reading()  # paused after a large body, it would not see the client leave
                tier_asked = request.call.tier
                if isinstance(request, CallRungs):
                    await self._handle_auto(request, client)
                else:
                    await self._handle(request, client)
        except HeadwayError as error:
            await _answer_error(client, dialect, error, call_id, tier_asked)
        except Exception as error:  # noqa: BLE001 (it is logged below)
            # A fault in Headway. The client is told in its dialect, as of any other error.
            self._faults.write(f"call {call_id} failed", error)
            await _answer_error(client, dialect, InternalError(), call_id, tier_asked)
        except asyncio.CancelledError:
            if not connection.transport.is_closing():
                # The drain timeout is over. Tell the client; uvicorn closes the connection.
                await _answer_error(client, dialect, Refused("draining", 1), call_id, tier_asked)
        finally:
            if connection.task is asyncio.current_task():  # else it is the next request's
                connection.task = None

    def _authorize_page(self, route: PageRoute, headers: Headers) -> Key | None:
        if route.who == "owner":
            self._keys.check_owner(headers)
        return self._keys.check(headers) if route.who == "caller" else None

    async def _receive(
        self, route: DialectRoute, receive: Receive, headers: Headers, params: Params, call_id: str
    ) -> Request | CallRungs:
        """Read the request. The body as it came is not kept: a call that waits has its request for the engine."""
        key = self._keys.check(headers)
        tenant = key.id if key is not None else ""
        self._check_time.admit(tenant)
        body = await read_body(receive, headers, self._max_body_bytes)
        began = time.thread_time()
        try:
            request = self._authorize(self._read(route, body, call_id, params, headers, key), key)
            return self._rungs(route, body, request, key) if request.call.model in self._autos else request
        finally:
            self._check_time.charge(tenant, time.thread_time() - began)

    def _rungs(self, route: DialectRoute, body: bytes, request: Request, key: Key | None) -> CallRungs:
        """The same call for the student and for the full model. A key needs permission for the auto model only."""
        full = self._autos[request.call.model]
        student = self._models[full.student_name]
        falls_back = request.call.falls_back

        def prepare(rung_request: Request) -> Request:
            rung_request = replace(rung_request, call=replace(rung_request.call, falls_back=falls_back))
            return self._for_tenant(rung_request, key) if key is not None else rung_request

        names, tiers = (student.name, full.name), [tier.name for tier in student.tiers]
        return CallRungs(body, request, route.read, openai.read_chat, prepare, names, tiers)

    def _authorize(self, request: Request, key: Key | None) -> Request:
        """Returns the request with its tenant. Raises Forbidden if the key does not allow the model or the tier."""
        if key is None:
            return request
        call = request.call
        if key.models is not None and call.model not in key.models:
            raise Forbidden(f"This key does not allow the model `{call.model}`. Allowed: {', '.join(key.models)}.")
        if key.tiers is not None and call.tier not in key.tiers:
            raise Forbidden(f"This key does not allow the tier `{call.tier}`. Allowed: {', '.join(key.tiers)}.")
        return self._for_tenant(request, key)

    def _for_tenant(self, request: Request, key: Key) -> Request:
        """The request with its tenant's id, limits and cache salt."""
        call, max_output_tokens, cache_salt = request.call, request.max_output_tokens, ""
        body, affinity = request.body, call.affinity
        if self._salt is not None and max_output_tokens != 0:
            # A tenant's prompts may be found in an engine's cache only by its own calls.
            cache_salt = self._salt(key.id)
            affinity = f"{key.id} {affinity}" if affinity else ""
        has_budget = key.budget_day is not None or key.budget_month is not None
        if has_budget and max_output_tokens is None:
            # The highest possible cost of a call must be known before it is served.
            max_output_tokens = self._models[call.model].max_output_tokens
            body = with_fields(body, {"max_tokens": max_output_tokens})
        call = replace(
            call,
            tenant=key.id,
            affinity=affinity,
            express_limit=_limit(key.fast_input_tpm, key.fast_output_tpm, key.fast_requests_pm),
            other_limit=_limit(key.input_tpm, key.output_tpm, key.requests_pm),
        )
        return replace(request, call=call, body=body, max_output_tokens=max_output_tokens, cache_salt=cache_salt)

    def _read(
        self, route: DialectRoute, body: bytes, call_id: str, params: Params, headers: Headers, key: Key | None
    ) -> Request:
        if not is_utf8(body):
            raise InvalidRequest("The request's body is not UTF-8.")
        try:
            request = route.read(body, call_id, params)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise _invalid(error) from None
        model = self._models.get(request.call.model)
        if model is None:
            raise self._unknown_model(request.call.model, key)
        if request.call.tier not in (offered := [tier.name for tier in model.tiers]):
            field = route.dialect.TIER_FIELD
            raise InvalidRequest(
                f"This model is not offered at `{request.call.tier}`. Offered: {', '.join(offered)}.", field
            )
        return _choose_fallback(request, headers)

    def _unknown_model(self, name: str, key: Key | None) -> UnknownModel:
        available = ", ".join(self._rows_for(key))
        return UnknownModel(f"The model `{name}` does not exist. Available: {available}.", "model")

    def _rows_for(self, key: Key | None) -> dict[str, dict[str, Any]]:
        """The entries of the models that the key may use, with the tiers that it may use."""
        rows = self._model_rows
        if key is not None and key.models is not None:
            rows = {name: row for name, row in rows.items() if name in key.models}
        if key is not None and key.tiers is not None:
            rows = {name: _with_tiers(row, key.tiers) for name, row in rows.items()}
        return rows

    def _models_page(self, _params: Params, key: Key | None) -> Page:
        data = list(self._rows_for(key).values())
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        page = msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})
        return 200, b"application/json", page

    def _model_page(self, params: Params, key: Key | None) -> Page:
        if (row := self._rows_for(key).get(params["model"])) is None:
            raise self._unknown_model(params["model"][:256], key)
        return 200, b"application/json", msgspec.json.encode(row)

    def _ready_page(self, _params: Params, _key: Key | None) -> Page:
        return (200, b"text/plain", b"ready\n") if self._is_ready() else (503, b"text/plain", b"not ready\n")


class InvalidPath(InvalidRequest):
    status = 404

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"No such endpoint: {method} {path[:200]}.")


def new_call_id() -> str:
    """A unique id that sorts by time: milliseconds, then 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _invalid(error: Exception) -> InvalidRequest:
    """msgspec's error message, with the name of the field in `param`."""
    text = str(error)
    if isinstance(error, RecursionError):
        return InvalidRequest("The request is nested too deeply.")
    if text.startswith(UNKNOWN):
        name, _, at = text.removeprefix(UNKNOWN).partition("`")
        return InvalidRequest(f"Unknown field `{name}`{_in_parent(at)}.", name)
    if text.startswith(MISSING):
        name, _, at = text.removeprefix(MISSING).partition("`")
        return InvalidRequest(f"Missing field `{name}`{_in_parent(at)}.", name)
    what, _, at = text.partition(" - at `$")
    param = at.strip("`").lstrip(".") or None
    return InvalidRequest(f"{what}{f' (in `{param}`)' if param else ''}.", param)


def _in_parent(at: str) -> str:
    path = at.partition("`$")[2].strip("`").lstrip(".")
    return f" in `{path}`" if path else ""


def _choose_fallback(request: Request, headers: Headers) -> Request:
    """Whether a call that gets no express seat is served as standard or refused. The header overrides the dialect."""
    fallback = headers.get(FALLBACK_HEADER)
    if fallback is None:
        return request
    if fallback not in (b"none", b"standard"):
        raise InvalidRequest("`Headway-Fallback` must be `none` or `standard`.", "Headway-Fallback")
    return replace(request, call=replace(request.call, falls_back=fallback == b"standard"))


def _limit(*per_minute: int | None) -> TokenLimit | None:
    if all(limit is None for limit in per_minute):
        return None
    return TokenLimit(*[limit or 0 for limit in per_minute])


def _dialect_of(path: str, headers: Headers) -> Dialect:
    return next(dialect for dialect in DIALECTS if dialect.claims(path, headers))


async def _answer_error(
    client: HTTPClient, dialect: Dialect, error: HeadwayError, call_id: str, tier_asked: Tier
) -> None:
    if client.started and not client.is_streaming:
        client.abandon()  # a whole answer is under way: all that can be told is that it is cut off
        return
    with suppress(asyncio.CancelledError):  # the client leaves meanwhile, or the drain timeout is over
        if client.started:
            client.write(dialect.error_event(error, call_id))
            await client.end_stream()
            return
        headers = []
        if isinstance(error, Refused):
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        if isinstance(error, NoSeat):
            headers += dialect.limit_headers(tier_asked, error.rate_limit)
        body = dialect.error_body(error, call_id)
        await client.send_page(dialect.error_status(error), b"application/json", body, headers)


def _model_rows(models: list[ModelTable]) -> dict[str, dict[str, Any]]:
    """The entries of `/v1/models`, for both dialects: each SDK reads its own keys and ignores the other's.

    `service_tiers` lists a model's tiers, with the floor and the price multiple of each. `mistake_budget` is the share
    of calls in which an auto model may make an excess mistake."""
    created = int(time.time())
    rows = {model.name: _model_row(model.name, model, created) for model in models}
    for model in models:
        if model.auto is not None:
            budget = {"share": model.auto.budget, "confidence": CONFIDENCE, "student": model.student_name}
            rows[model.auto_name] = _model_row(model.auto_name, model, created) | {"mistake_budget": budget}
    return rows


def _with_tiers(row: dict[str, Any], tiers: list[str]) -> dict[str, Any]:
    return row | {"service_tiers": [tier for tier in row["service_tiers"] if tier["name"] in tiers]}


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
