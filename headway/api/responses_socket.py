"""The WebSocket of the Responses API: `GET /v1/responses`, upgraded.

    message ──► a stream's queue ──► the line that every HTTP call goes down ──► SocketClient ──► messages

Each `response.create` is a call of its own, with its own key check, tier, limits, budget, seat, proof and bill. A named
stream is a queue: its calls run one after the other, and those of different streams at once. The socket remembers the
newest response of each stream (api/socket_memory.py), so that `previous_response_id` works with `store: false`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw
from websockets.frames import CloseCode

from headway.api import responses
from headway.api.auth import Keys
from headway.api.call_ids import new_call_id
from headway.api.check_time import FREE_S, CheckTime
from headway.api.connection import Connection
from headway.api.dialect import HeaderList, Headers
from headway.api.faults import FaultLog
from headway.api.origin import Scope
from headway.api.responses_store import Continued, Remembered, StoredResponses, continuing, input_of
from headway.api.socket_memory import RememberedResponse, SocketMemory, SocketResponses
from headway.api.socket_messages import Asked, SocketQueueFull, expired, frame_of, stream_of
from headway.api.tiers import explain_no_seat, retry_headers
from headway.api.trace_context import read_trace
from headway.api.websocket import TooManySockets, UpgradeRequired, WebSocket, answer_handshake
from headway.config import Config
from headway.errors import HeadwayError, InvalidRequest, Refused, Unauthorized, kind_of
from headway.ledger.keys import Key
from headway.observe.base import RefusedCall, TellRefused
from headway.sse import END, data_of
from headway.wire import Client, Grant, NoSeat, Receipt, Request

clock = time.monotonic

MAX_AGE_S = 3600.0
MAX_IN_FLIGHT = 16
MAX_STREAMS = 32  # with a name
MAX_WAITING = 64  # messages; together they have the size of one at most
CHECK_S = 5.0  # how often all sockets are checked
MAX_REST_S = 5.0  # for which a socket is not read whose key has used up its time

ReadMessage = Callable[[bytes, Headers, str, Remembered], Awaitable[tuple[Request, tuple[str, ...], Key | None]]]
HandleCall = Callable[[Request, Client], Awaitable[Receipt]]
_read_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Sockets:
    """All open sockets of this process."""

    def __init__(
        self,
        config: Config,
        read: ReadMessage,
        handle: HandleCall,
        stored: StoredResponses,
        keys: Keys,
        check_time: CheckTime,
        faults: FaultLog,
        tell_refused: TellRefused,
    ) -> None:
        self.read, self.handle, self.stored = read, handle, stored
        self.calls = 0  # that all sockets have passed on
        self.max_bytes = config.gateway.max_body_bytes
        self.stall_s = config.gateway.reader_stall_s
        self.memory = SocketMemory(config.responses.max_socket_memory_bytes)
        self.faults, self.tell_refused = faults, tell_refused
        self._table = config.responses
        self._keys = keys
        self._check_time = check_time
        self._open: set[ResponsesSocket] = set()
        self._by_tenant = Counter[str]()
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, connection: Connection, scope: Scope, headers: Headers, added: HeaderList) -> None:
        """Upgrade the connection and serve it until it is closed. Raises only before the upgrade."""
        if connection.cycle.disconnected:
            raise asyncio.CancelledError
        key = self._keys.check(headers)
        if not self._table.websocket:
            raise UpgradeRequired("The WebSocket is turned off on this gateway: send requests with `POST`.")
        answer = answer_handshake(scope["http_version"], scope["headers"], added)
        if connection.closes or connection.cycle.more_body:
            raise InvalidRequest("A handshake must not have a body.")
        tenant = key.id if key is not None else ""
        if len(self._open) >= self._table.max_sockets:
            raise TooManySockets(503, "This gateway has too many open WebSockets: use `POST` instead, or retry later.")
        if key is not None and self._by_tenant[tenant] >= self._table.max_sockets_per_key:
            raise TooManySockets(429, "This key has too many open WebSockets: close some, or use `POST` instead.")
        socket = ResponsesSocket(self, connection, headers, tenant)
        self._open.add(socket)
        self._by_tenant[tenant] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        try:
            await socket.run(answer)
        finally:
            self._open.discard(socket)
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]

    def counts(self) -> tuple[int, int]:
        """Open sockets, and the calls that came over all sockets so far."""
        return len(self._open), self.calls

    def _check(self) -> None:
        now = clock()
        for socket in list(self._open):
            socket.check(now)
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check) if self._open else None

    def charge(self, tenant: str, seconds: float) -> float:
        """Charge what it took to read frames. Returns for how long the socket must not be read."""
        if seconds <= FREE_S:
            return 0.0
        self._check_time.charge(tenant, seconds)
        try:
            self._check_time.admit(tenant)
        except Refused as refused:
            return min(refused.retry_after_s, MAX_REST_S)
        return 0.0


class ResponsesSocket:
    """One client's socket: its streams, what it remembers, how long it may live. Implements websocket.MessageReader."""

    def __init__(self, sockets: Sockets, connection: Connection, headers: Headers, tenant: str) -> None:
        self._sockets = sockets
        self._connection = connection
        self._headers = headers
        self._tenant = tenant
        self._opened_at = clock()
        self._remembered = SocketResponses(sockets.memory, tenant, sockets.max_bytes)
        self._streams: set[str] = set()  # the names that were used
        self._waiting: deque[Asked] = deque()
        self._running: dict[str, asyncio.Task[None]] = {}  # by stream
        self._leaves: tuple[int, str] | None = None  # how it closes once the calls have ended
        self._is_expiry_told = False
        self.web = WebSocket(
            connection,
            self,
            max_bytes=sockets.max_bytes,
            stall_s=sockets.stall_s,
            charge=lambda seconds: sockets.charge(tenant, seconds),
        )

    async def run(self, answer: bytes) -> None:
        """Ends when the connection is lost, or when the drain timeout is over."""
        try:
            self._connection.upgrade(self.web, answer)
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            for stream in self._running:
                self._send_error(Refused("draining", 1), stream)
            self.web.close(CloseCode.GOING_AWAY)
        finally:
            ending = self._cancel_calls()
            await asyncio.gather(*ending, return_exceptions=True)
            self._remembered.forget_all()
            self.web.stop()

    # --- the life of a socket ---

    def drain(self) -> None:
        self._leave(CloseCode.GOING_AWAY, "This gateway is shutting down.")

    def check(self, now: float) -> None:
        if now - self._opened_at >= MAX_AGE_S:
            self._leave(CloseCode.NORMAL_CLOSURE, "60 minutes are over.")
        self.web.check(now)

    def socket_closed(self) -> None:
        self._cancel_calls()

    def _cancel_calls(self) -> list[asyncio.Task[None]]:
        self._waiting.clear()
        ending = list(self._running.values())
        for task in ending:
            task.cancel()
        return ending

    def _leave(self, code: int, reason: str) -> None:
        """Close the socket once its calls have ended."""
        self._leaves = self._leaves or (code, reason)
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._leaves is None or self._running or self._waiting or not self.web.is_open:
            return
        if self._is_expired() and not self._is_expiry_told:
            self._send_error(expired(), "")
        self.web.close(*self._leaves)

    def _is_expired(self) -> bool:
        return clock() - self._opened_at >= MAX_AGE_S

    # --- messages ---

    def message_received(self, message: bytes) -> None:
        stream = ""
        try:
            if self._is_expired():
                self._is_expiry_told = True
                raise expired()
            frame = frame_of(message)
            stream = stream_of(frame)
            self._check_room(stream, message)
        except HeadwayError as error:
            self._send_error(error, stream)
            if self._is_expiry_told:
                self.check(clock())
            return
        self._waiting.append(Asked(stream, message, bytes(frame.generate) == b"false"))
        self._start_calls()

    def _check_room(self, stream: str, message: bytes) -> None:
        if stream and stream not in self._streams and len(self._streams) >= MAX_STREAMS:
            raise InvalidRequest(
                f"This WebSocket has used {MAX_STREAMS} different values of `stream_id`. Use one of them again, or "
                "open another WebSocket.",
                "stream_id",
                "websocket_stream_limit_reached",
            )
        must_wait = stream in self._running or len(self._running) >= MAX_IN_FLIGHT
        waiting_bytes = sum(len(asked.body) for asked in self._waiting)
        is_full = len(self._waiting) >= MAX_WAITING or len(message) + waiting_bytes > self._sockets.max_bytes
        if must_wait and self._waiting and is_full:
            raise SocketQueueFull("Too many messages wait for their turn on this WebSocket. Wait for answers first.")
        if stream:
            self._streams.add(stream)

    def _start_calls(self) -> None:
        for asked in list(self._waiting):
            if len(self._running) >= MAX_IN_FLIGHT:
                return
            if asked.stream not in self._running:
                self._waiting.remove(asked)
                self._running[asked.stream] = asyncio.get_running_loop().create_task(self._serve(asked))

    async def _serve(self, asked: Asked) -> None:
        call_id, client = new_call_id(), SocketClient(self.web, asked.stream)
        request: Request | None = None
        continued: RememberedResponse | None = None

        def find(response_id: str) -> Continued | None:
            nonlocal continued
            continued = self._remembered.find(response_id)
            return continued.items if continued is not None else None

        try:
            with self._sockets.faults.as_errors(call_id):
                body, asked.body = asked.body, b""  # a call that waits has its request for the engine
                request, client.ignored, key = await self._sockets.read(body, self._headers, call_id, find)
                del body
                if asked.warms_up:
                    self._warm_up(request, client)
                else:
                    self._sockets.calls += 1
                    await self._sockets.handle(request, self._client_of(request, client, key))
        except HeadwayError as error:
            if request is None:  # else the gateway tells how it ended
                status, trace = responses.error_status(error), read_trace(self._headers)
                refused = RefusedCall(call_id, responses.CREATE, self._tenant, kind_of(error), status, trace=trace)
                self._sockets.tell_refused(refused)
            self._fail(client, error, request, continued)
        finally:
            self.web.unwatch(client)
            del self._running[asked.stream]
            self._start_calls()
            self._close_if_done()

    def _client_of(self, request: Request, client: SocketClient, key: Key | None) -> Client:
        return self._sockets.stored.client_of(
            request, client, key, lambda stored: self._remember(request, client, stored.input, stored.output)
        )

    def _remember(self, request: Request, client: SocketClient, asked: Raw, output: Raw) -> None:
        response_id = responses.response_id(request.call.id)
        items = continuing(request, asked, output)
        self._remembered.keep(client.stream, response_id, items)

    def _warm_up(self, request: Request, client: SocketClient) -> None:
        """Remember the request, so that the next one need not repeat it. No engine is asked, and nothing is billed."""
        self._remember(request, client, input_of(request), Raw(b"[]"))
        nothing: dict[str, Any] = {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        }
        response = {**responses.empty_response(request.call.id), "model": request.call.model, "store": False}
        for number, (kind, status, more) in enumerate(
            (("created", "in_progress", {}), ("completed", "completed", {"usage": nothing}))
        ):
            told = {**response, "status": status, **more}
            client.send(_encode({"type": f"response.{kind}", "sequence_number": number, "response": told}))

    # --- errors ---

    def _fail(
        self,
        client: SocketClient,
        error: HeadwayError,
        request: Request | None,
        continued: RememberedResponse | None,
    ) -> None:
        if continued is not None and self._remembered.newest(client.stream) == continued.id:
            self._remembered.forget(client.stream)  # as OpenAI does: the client sends the whole conversation
        if request is not None and isinstance(error, NoSeat):
            explain_no_seat(error, request.call)
        if request is not None and client.started:
            client.write(responses.error_event(error, request.call.id, request.form))
        else:
            self._send_error(error, client.stream, request, client.ignored)
        if isinstance(error, Unauthorized):
            self._leave(CloseCode.POLICY_VIOLATION, "The key is not valid any more.")

    def _send_error(
        self, error: HeadwayError, stream: str, request: Request | None = None, ignored: tuple[str, ...] = ()
    ) -> None:
        """In the form of OpenAI's socket. The headers are those that the error has on HTTP."""
        found = retry_headers(error, request.call if request is not None else None, responses.limit_headers)
        headers = {name.decode(): value.decode() for name, value in found} | _told(ignored)
        told: dict[str, Any] = _read_any(responses.error_body(error, ""))["error"]
        event: dict[str, Any] = {"type": "error", "status": responses.error_status(error)}
        if stream:
            event["stream_id"] = stream
        if headers:  # the SDK looks in the error, Codex beside it
            told["headers"] = event["headers"] = headers
        self.web.send(_encode({**event, "error": told}))


class SocketClient:
    """The client of one call on a socket; implements wire.Client."""

    def __init__(self, web: WebSocket, stream: str) -> None:
        self.started = False
        self.stream = stream
        self.ignored: tuple[str, ...] = ()  # fields of the request
        self._web = web
        self._end = b',"stream_id":"%b"}' % stream.encode() if stream else b""

    async def send_whole(self, _content_type: bytes, _body: bytes, _receipt: Receipt) -> None:
        raise AssertionError("every answer on a socket is a stream")

    async def start_stream(self, _content_type: bytes, _grant: Grant) -> None:
        """Nothing is sent yet, so another engine may still be tried."""

    def write(self, data: bytes) -> None:
        for event in data.split(END):
            if payload := data_of(event):
                self.send(payload)

    def send(self, payload: bytes) -> None:
        end = self._end
        if self.ignored and not self.started:  # the first event of an answer is what has headers on HTTP
            end = b',"headers":%b%b' % (_encode(_told(self.ignored)), end or b"}")
        self.started = True
        self._web.send(payload[:-1] + end if end else payload)

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._web.watch(self, pause, resume)

    async def end_stream(self) -> None:
        self._web.unwatch(self)

    def abandon(self) -> None:
        self._web.abort()


def _told(ignored: tuple[str, ...]) -> dict[str, str]:
    """The header that names fields which are ignored, as on HTTP."""
    return {"headway-ignored": ", ".join(ignored)} if ignored else {}
