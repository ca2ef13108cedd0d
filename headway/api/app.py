"""The ASGI application: finds the route, authorizes the caller, parses the body and passes the request to `handle`.

It makes no decisions about calls. Errors are returned in the dialect of the route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from headway.api import anthropic, limits, openai, responses
from headway.api.auth import FindKey, Keys
from headway.api.body import Receive, decompress, read_body, read_text
from headway.api.call_ids import new_call_id
from headway.api.check_time import CheckTime
from headway.api.connection import Connection
from headway.api.dialect import NO_PARAMS, CallRoute, Dialect, HeaderList, Headers, Params, RouteTable
from headway.api.faults import FaultLog
from headway.api.fields import Cleaned
from headway.api.images import count_image_tokens
from headway.api.models import MaxModelLens, Models, may_use
from headway.api.origin import Origins, Scope
from headway.api.overflow import mark_overflow
from headway.api.pages import Page, PageRoute
from headway.api.prompt import with_prefix_keys
from headway.api.responses_socket import Sockets
from headway.api.responses_store import Remembered, StoredResponses
from headway.api.server import HTTPClient, Send
from headway.api.sessions import read_session
from headway.api.socket_messages import message_route
from headway.api.tiers import choose_fallback, choose_tier, explain_no_seat, retry_headers
from headway.api.trace_context import read_trace
from headway.api.unreadable import unreadable
from headway.api.utf8 import is_utf8
from headway.api.websocket import UpgradeRequired
from headway.auto.requests import CallRungs
from headway.config import Config
from headway.core.rate_limit import TokenLimit
from headway.errors import (
    Forbidden,
    HeadwayError,
    InvalidRequest,
    Refused,
    UnknownModel,
    UnknownPath,
    WrongMethod,
    kind_of,
)
from headway.ledger.keys import Key
from headway.observe.base import RefusedCall, TellRefused
from headway.wire import Client, NoSeat, Receipt, Request, StoredAnswers, for_model, with_fields

METRICS_TYPE = b"text/plain; version=0.0.4"
DIALECTS: tuple[Dialect, ...] = (anthropic, responses, openai)  # the first that claims an unknown path answers it

Handle = Callable[[Request, Client], Awaitable[Receipt]]
HandleAuto = Callable[[CallRungs, Client], Awaitable[Receipt]]


@dataclass(frozen=True, slots=True)
class DialectRoute:
    """An endpoint that a dialect reads and an engine answers."""

    dialect: Dialect
    call: CallRoute


class SocketRoute:
    """An endpoint that is a WebSocket."""


class App:
    """`handle` serves calls to ordinary models, `handle_auto` calls to auto models. `max_model_lens` has what engines
    report. With a ledger, `find_key` looks up a key by its hash, `salt` returns the cache salt that keeps a tenant's
    prompts apart in the engines' caches, `usage_page` what a key has spent, and `response_store` has the responses that
    can be continued. `pages` are further endpoints, each with its method and path."""

    def __init__(
        self,
        config: Config,
        *,
        handle: Handle,
        handle_auto: HandleAuto,
        is_ready: Callable[[], bool],
        metrics_page: Callable[[], Page | Awaitable[Page]],
        max_model_lens: MaxModelLens = dict,
        find_key: FindKey | None = None,
        salt: Callable[[str], str] | None = None,
        usage_page: Callable[[Key], Awaitable[bytes]] | None = None,
        response_store: StoredAnswers | None = None,
        pages: Iterable[tuple[str, str, PageRoute]] = (),
        tell_refused: TellRefused = lambda _: None,
    ) -> None:
        self._handle = handle
        self._handle_auto = handle_auto
        self._is_ready = is_ready
        self._keys = Keys((), find_key)
        self._salt = salt
        # Only bills, the access log and spans have sessions.
        self._reads_sessions = find_key is not None or config.gateway.is_observed
        self._tell_refused = tell_refused
        self._max_model_lens = max_model_lens
        self.configure(config)
        self._max_body_bytes = config.gateway.max_body_bytes
        self._faults = FaultLog()
        self._check_time = CheckTime()
        self._responses = StoredResponses(response_store, self._max_body_bytes)
        self.sockets = Sockets(
            config,
            self._read_message,
            self._handle,
            self._responses,
            self._keys,
            self._check_time,
            self._faults,
            tell_refused,
        )
        self.routes = RouteTable[DialectRoute | PageRoute | SocketRoute]()
        for dialect in DIALECTS:
            for route in dialect.ROUTES:
                self.routes.add("POST", route.path, DialectRoute(dialect, route))
        self.routes.add("GET", "/v1/models", PageRoute(self._models_page))
        self.routes.add("GET", "/v1/models/{model*}", PageRoute(self._model_page))
        self.routes.add("GET", responses.CREATE, SocketRoute())
        one_response = f"{responses.CREATE}/{{response_id}}"
        self.routes.add("GET", one_response, PageRoute(self._responses.retrieve))
        self.routes.add("DELETE", one_response, PageRoute(self._responses.delete))
        self.routes.add("POST", f"{one_response}/cancel", PageRoute(self._responses.cancel))
        self.routes.add("GET", f"{one_response}/input_items", PageRoute(self._responses.input_items))
        if usage_page is not None:
            self._usage_of = usage_page
            self.routes.add("GET", "/v1/usage", PageRoute(self._usage_page))
        for method, path, page in pages:
            self.routes.add(method, path, page)
        self.routes.add("GET", "/metrics", PageRoute(lambda *_: metrics_page(), "owner"))
        self.routes.add("GET", "/health", PageRoute(lambda *_: (200, b"text/plain", b"ok\n"), "anyone"))
        self.routes.add("GET", "/ready", PageRoute(self._ready_page, "anyone"))

    def configure(self, config: Config) -> None:
        """Calls that are not read yet are served by this configuration."""
        self._keys.change(config.gateway.key_hashes, config.gateway.admin_key_hashes)
        self._origins = Origins(config.gateway.cors_origins, anyone_may_call=self._keys.anyone_may_call)
        self._models = Models(config.models, self._max_model_lens)
        self._refuses_unknown = config.gateway.unknown_fields == "refuse"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], _without_last_slash(scope["path"])
        route, params = self.routes.find("GET" if method == "HEAD" else method, path)  # uvicorn sends HEAD no body
        headers: Headers = dict(scope["headers"])
        dialect = route.dialect if isinstance(route, DialectRoute) else _dialect_of(path, headers)
        call_id = new_call_id()
        # The OpenAI SDK reads the first name, the Anthropic SDK the second.
        id_headers = [(b"x-request-id", call_id.encode()), (b"request-id", call_id.encode())]
        connection = cast(Connection, scope["state"]["connection"])
        client = HTTPClient(connection, send, id_headers + self._origins.headers(headers), dialect.answer_headers)
        connection.task = asyncio.current_task()
        request: Request | CallRungs | None = None
        key: Key | None = None
        try:
            with self._faults.as_errors(call_id):
                self._origins.check(scope)
                if route is None:
                    await client.send_page(200, b"text/plain", b"", self._options(method, path, headers))
                elif isinstance(route, PageRoute):
                    key = self._authorize_page(route, headers)
                    given = {**params, "query": scope["query_string"].decode("latin-1")}
                    if route.max_body_bytes:
                        given["body"] = await read_text(receive, headers, route.max_body_bytes)
                    page = route.page(given, key)
                    await client.send_page(*(page if isinstance(page, tuple) else await page), headers=route.headers)
                elif isinstance(route, SocketRoute):
                    await self.sockets.serve(connection, scope, headers, client.headers)
                else:
                    key = self._keys.check(headers)
                    request, ignored = await self._receive(route, receive, headers, params, call_id, key)
                    if ignored:
                        client.headers.append((b"headway-ignored", ", ".join(ignored).encode()))
                    if not connection.pipeline:
                        connection.flow.resume_reading()  # paused after a large body, it would not see the client leave
                    if isinstance(request, CallRungs):
                        await self._handle_auto(request, client)
                    else:
                        await self._handle(request, self._responses.client_of(request, client, key))
        except HeadwayError as error:
            if request is None and isinstance(route, DialectRoute):  # else the gateway tells how it ended
                self._tell_refused(_refused(route, headers, call_id, key, error))
            await _answer_error(client, dialect, error, call_id, request)
        except asyncio.CancelledError:
            if not connection.transport.is_closing():
                # The drain timeout is over. Tell the client; uvicorn closes the connection.
                await _answer_error(client, dialect, Refused("draining", 1), call_id, request)
        finally:
            if connection.task is asyncio.current_task():  # else it is the next request's
                connection.task = None

    def _options(self, method: str, path: str, headers: Headers) -> HeaderList:
        """The headers of an answer to OPTIONS. Raises UnknownPath, or WrongMethod for all other methods."""
        methods = self.routes.methods(path)
        if not methods:
            raise UnknownPath(method, path)
        allow = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
        if method != "OPTIONS":
            raise WrongMethod(method, path, allow)
        return [(b"allow", allow.encode()), *self._origins.preflight_headers(headers, allow.encode())]

    def _authorize_page(self, route: PageRoute, headers: Headers) -> Key | None:
        if route.who == "owner":
            self._keys.check_owner(headers)
        elif route.who == "admin":
            self._keys.check_admin(headers)
        return self._keys.check(headers) if route.who == "caller" else None

    async def _receive(
        self,
        route: DialectRoute,
        receive: Receive,
        headers: Headers,
        params: Params,
        call_id: str,
        key: Key | None,
    ) -> tuple[Request | CallRungs, tuple[str, ...]]:
        """Read the request, and which of its fields are ignored. The body as it came is not kept: a call that waits has
        its request for the engine."""
        tenant = key.id if key is not None else ""
        self._check_time.admit(tenant)
        body = await read_body(receive, headers, self._max_body_bytes)
        with self._check_time.charging(tenant):
            body = decompress(body, headers, self._max_body_bytes)
        if route.dialect is responses:
            body, _ = await self._responses.expand(body, key)
        return self._prepare(route, body, headers, params, call_id, key)

    async def _read_message(
        self, body: bytes, headers: Headers, call_id: str, remembered: Remembered
    ) -> tuple[Request, tuple[str, ...], Key | None]:
        """The same for a message of a WebSocket, with the headers of its handshake."""
        key = self._keys.check(headers)
        self._check_time.admit(key.id if key is not None else "")
        body, earlier = await self._responses.expand(body, key, remembered)
        route = DialectRoute(responses, message_route(earlier))
        request, ignored = self._prepare(route, body, headers, NO_PARAMS, call_id, key)
        assert isinstance(request, Request), "auto models are refused"
        return request, ignored, key

    def _prepare(
        self, route: DialectRoute, body: bytes, headers: Headers, params: Params, call_id: str, key: Key | None
    ) -> tuple[Request | CallRungs, tuple[str, ...]]:
        with self._check_time.charging(key.id if key is not None else ""):
            request, cleaned = self._read(route, body, call_id, params, headers, key)
            request = self._responses.prepare(self._authorize(request, key), key)
            if self._reads_sessions:
                request = replace(request, session=read_session(body, headers))
            if b"traceparent" in headers:
                request = replace(request, trace=read_trace(headers))
            if request.call.model not in self._models.autos:
                return with_prefix_keys(request), cleaned.ignored
            if route.dialect is responses:
                raise InvalidRequest("Auto models are not offered on `/v1/responses`: use chat or Messages.", "model")
            return self._rungs(route, cleaned.body, request, key), cleaned.ignored

    def _rungs(self, route: DialectRoute, body: bytes, request: Request, key: Key | None) -> CallRungs:
        """The same call for the student and for the full model. A key needs permission for the auto model only."""
        full = self._models.autos[request.call.model]
        student = self._models.by_name[full.student_name]
        falls_back = request.call.falls_back

        def prepare(rung_request: Request) -> Request:
            call = replace(rung_request.call, falls_back=falls_back)
            rung_request = replace(rung_request, call=call, session=request.session, trace=request.trace)
            rung_request = count_image_tokens(rung_request, full.image_tokens)
            return with_prefix_keys(self._for_tenant(rung_request, key) if key is not None else rung_request)

        names, tiers = (student.name, full.name), [tier.name for tier in student.tiers]
        return CallRungs(body, request, route.call.read, openai.read_chat, prepare, names, tiers)

    def _authorize(self, request: Request, key: Key | None) -> Request:
        """Returns the request with its tenant. Raises Forbidden if the key does not allow the tier."""
        if key is None:
            return request
        tier = request.call.tier
        if key.tiers is not None and tier not in key.tiers:
            raise Forbidden(f"This key does not allow the tier `{tier}`. Allowed: {', '.join(key.tiers)}.")
        return self._for_tenant(request, key)

    def _for_tenant(self, request: Request, key: Key) -> Request:
        """The request with its tenant's id, limits and cache salt."""
        call, max_output_tokens, cache_salt = request.call, request.max_output_tokens, ""
        body = request.body
        if self._salt is not None and request.runs_model:
            # A tenant's prompts may be found in an engine's cache only by its own calls.
            cache_salt = self._salt(key.id)
        has_budget = key.budget_day is not None or key.budget_month is not None
        if has_budget and max_output_tokens is None:
            # The highest possible cost of a call must be known before it is served.
            max_output_tokens = self._models.by_name[call.model].max_output_tokens
            body = with_fields(body, {request.limit_field: max_output_tokens})
        call = replace(
            call,
            tenant=key.id,
            express_limit=_limit(key.fast_input_tpm, key.fast_output_tpm, key.fast_requests_pm),
            other_limit=_limit(key.input_tpm, key.output_tpm, key.requests_pm),
        )
        return replace(request, call=call, body=body, max_output_tokens=max_output_tokens, cache_salt=cache_salt)

    def _read(
        self, route: DialectRoute, body: bytes, call_id: str, params: Params, headers: Headers, key: Key | None
    ) -> tuple[Request, Cleaned]:
        if not is_utf8(body):
            raise InvalidRequest("The request's body is not UTF-8.")
        try:
            request, cleaned = route.call.parse(body, call_id, params, refuses_unknown=self._refuses_unknown)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise unreadable(error) from None
        asked = request.call.model
        found = self._models.find(asked)
        if found is None:
            raise self._unknown_model(asked, key)
        if not may_use(key, found.name):
            # The name as it was asked: what an alias stands for is not this caller's business.
            allowed = ", ".join(self._models.names_for(key))
            raise Forbidden(f"This key does not allow the model `{asked}`. Allowed: {allowed}.")
        self._models.check_use(found.name, key, route.call.path, embeds=route.call.embeds)
        request = choose_tier(for_model(request, found.name), found, headers, key, route.dialect.TIER_FIELD)
        table = self._models.by_name[found.name]
        limits.check_template_names(request.template_names, table.chat_template_kwargs)
        if request.images.pixels:
            self._models.check_images(found.name, key)
        return choose_fallback(mark_overflow(count_image_tokens(request, table.image_tokens), table), headers), cleaned

    def _unknown_model(self, name: str, key: Key | None) -> UnknownModel:
        available = ", ".join(self._models.names_for(key))
        return UnknownModel(f"The model `{name}` does not exist. Available: {available}.", "model")

    def _models_page(self, _params: Params, key: Key | None) -> Page:
        data = self._models.rows_for(key)
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        page = msgspec.json.encode({"object": "list", "data": data, "has_more": False, **ends})
        return 200, b"application/json", page

    def _model_page(self, params: Params, key: Key | None) -> Page:
        if (row := self._models.row_of(params["model"], key)) is None:
            raise self._unknown_model(params["model"][:256], key)
        return 200, b"application/json", msgspec.json.encode(row)

    async def _usage_page(self, _params: Params, key: Key | None) -> Page:
        assert key is not None, "with a ledger every caller has a key"
        return 200, b"application/json", await self._usage_of(key)

    def _ready_page(self, _params: Params, _key: Key | None) -> Page:
        return (200, b"text/plain", b"ready\n") if self._is_ready() else (503, b"text/plain", b"not ready\n")


def _limit(*per_minute: int | None) -> TokenLimit | None:
    if all(limit is None for limit in per_minute):
        return None
    return TokenLimit(*[limit or 0 for limit in per_minute])


def _without_last_slash(path: str) -> str:
    return path[:-1] if len(path) > 1 and path.endswith("/") else path


def _dialect_of(path: str, headers: Headers) -> Dialect:
    return next(dialect for dialect in DIALECTS if dialect.claims(path, headers))


def _refused(route: DialectRoute, headers: Headers, call_id: str, key: Key | None, error: HeadwayError) -> RefusedCall:
    status = route.dialect.error_status(error)
    tenant = key.id if key is not None else ""
    return RefusedCall(call_id, route.call.path, tenant, kind_of(error), status, trace=read_trace(headers))


async def _answer_error(
    client: HTTPClient, dialect: Dialect, error: HeadwayError, call_id: str, request: Request | CallRungs | None
) -> None:
    if client.started and not client.is_streaming:
        client.abandon()  # a whole answer is under way: all that can be told is that it is cut off
        return
    with suppress(asyncio.CancelledError):  # the client leaves meanwhile, or the drain timeout is over
        if client.started:
            form = request.form if isinstance(request, Request) else None
            client.write(dialect.error_event(error, call_id, form))
            await client.end_stream()
            return
        headers = [(b"allow", error.allow.encode())] if isinstance(error, WrongMethod) else []
        if isinstance(error, UpgradeRequired):
            headers.append((b"upgrade", b"websocket"))
        call = request.call if request is not None else None
        if isinstance(error, NoSeat) and call is not None:
            explain_no_seat(error, call)
        headers += retry_headers(error, call, dialect.limit_headers)
        body = dialect.error_body(error, call_id)
        await client.send_page(dialect.error_status(error), b"application/json", body, headers)
