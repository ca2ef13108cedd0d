"""The scripted engine: a test double of vLLM with programmed speeds, programmed faults and a record.

Knows the endpoints. Does not know how they are served (server.py), when a token is due (steps.py), how it is encoded
(formats.py, programmed.py) or which request gets a programmed answer (answers.py).
Invariant: every token that `/scripted/record` counts as sent was written to its connection while that was open.

The step loop writes tokens straight to uvicorn's transport: waking a task per token would cost more than the engine
that it simulates. ASGI starts and ends each answer. The engine does not wait for slow clients.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from uvicorn.server import ServerState

from headway.engines.scripted import embeddings
from headway.engines.scripted import formats as wire
from headway.engines.scripted.answers import Dialect, ProgrammedAnswers
from headway.engines.scripted.messages import MessagesFormat
from headway.engines.scripted.programmed import ProgrammedChat, ProgrammedCompletion, ProgrammedMessage
from headway.engines.scripted.responses import ResponsesFormat, words_plan
from headway.engines.scripted.steps import Faults, QueueFull, Script, ScriptedStream, StepLoop


class _Ids(msgspec.Struct):
    tokens: list[int]


_read_ids = msgspec.json.Decoder(_Ids).decode
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

JSON = b"application/json"
RESPONSES = "/v1/responses"
WordsFormat = wire.ChatFormat | wire.CompletionFormat | MessagesFormat
DIALECTS: dict[str, tuple[str, type[WordsFormat] | None]] = {
    "/v1/chat/completions": ("chatcmpl", wire.ChatFormat),
    "/v1/completions": ("cmpl", wire.CompletionFormat),
    "/v1/messages": ("chatcmpl", MessagesFormat),
    RESPONSES: ("resp", None),
}
ProgrammedFormat = ProgrammedChat | ProgrammedCompletion | ProgrammedMessage | ResponsesFormat
PROGRAMMED: dict[str, tuple[Dialect, type[ProgrammedFormat]]] = {
    "/v1/chat/completions": ("chat", ProgrammedChat),
    "/v1/completions": ("completions", ProgrammedCompletion),
    "/v1/messages": ("messages", ProgrammedMessage),
    RESPONSES: ("responses", ResponsesFormat),
}


class ScriptedEngine:
    """The engine and its ASGI app, which must be served with `ScriptedProtocol`. Without `answers` every answer is the
    same words, as many as the request allows."""

    def __init__(self, script: Script, answers: ProgrammedAnswers | None = None) -> None:
        self.script = script
        self.answers = answers
        self.steps = StepLoop(script)
        self.server_state = ServerState()
        self.url = ""  # set when served
        self._requests_seen = 0
        self._gets: dict[str, Callable[[], tuple[int, bytes, bytes]]] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/metrics": self._metrics,
            "/scripted/record": lambda: (200, JSON, msgspec.json.encode(self.record())),
        }
        self._posts: dict[str, Callable[[bytes], tuple[int, bytes, bytes]]] = {
            "/v1/messages/count_tokens": self._count_tokens,
            "/v1/responses/render": self._render,
            "/detokenize": lambda body: (
                200,
                JSON,
                msgspec.json.encode({"prompt": wire.decode(_read_ids(body).tokens)}),
            ),
            "/scripted/faults": self._post_faults,
        }

    @property
    def faults(self) -> Faults:
        return self.steps.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self.steps.set_faults(faults)

    def record(self) -> dict[str, Any]:
        steps = self.steps
        return {
            "running": steps.running,
            "waiting": len(steps.waiting),
            "highest_running": steps.highest_running,
            **steps.ended_as,
            "refused": steps.refused,
            "tokens_sent": steps.tokens_sent,
            "connections": len(self.server_state.connections),
            "steps_begun": steps.steps_begun,
            "running_changes": list(steps.running_changes),
            "requests": dict(steps.requests),
        }

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        # As in vLLM, a model that embeds does not generate, and the other way round.
        calls = [embeddings.PATH] if self.script.embedding_size else [*DIALECTS]
        if method == "POST" and path in calls:
            await (self._embed if path == embeddings.PATH else self._generate)(scope, receive, send)
        elif method == "POST" and path in self._posts:
            body = await _read_body(receive)
            if body is not None:
                await _respond(send, *self._posts[path](body))
        elif method == "GET" and path in self._gets:
            await _respond(send, *self._gets[path]())
        elif path in calls or path in self._posts or path in self._gets:
            await _respond(send, 405, JSON, b'{"detail":"Method Not Allowed"}')
        else:
            await _respond(send, 404, JSON, b'{"detail":"Not Found"}')

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        transport: asyncio.Transport = scope["state"]["transport"]
        try:
            ask, answer = self._read(scope, body)
            choices, lengths = self._encode(scope["path"], body, ask, answer)
            gives = [_giver(transport, one) if ask.stream else _ignore for one in choices]
            streams = self._board(answer.request_id, [answer.prompt_tokens] * len(lengths), lengths, gives)
        except wire.WireError as error:
            await _respond(send, error.status, JSON, _error_body(scope["path"], error))
            return
        for stream in streams:
            stream.record.received_s = scope["state"]["received_s"]
        leaving = asyncio.create_task(self._abort_when_client_leaves(receive, streams))
        if ask.stream and not all(stream.ended.done() for stream in streams):
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await asyncio.gather(*[stream.ended for stream in streams])
        states = {stream.record.state for stream in streams}
        if "died" in states:
            # Close a stream instead of aborting it, so that the tokens recorded as sent still go out.
            transport.close() if ask.stream else transport.abort()
        elif states == {"finished"} and ask.stream:
            _write(transport, choices[-1].closing(_metrics_of(streams[-1])))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif states == {"finished"}:
            await _respond(send, 200, JSON, choices[-1].whole(_metrics_of(streams[-1])))
        if states == {"finished"}:
            for stream in streams:
                stream.record.answered_s = time.monotonic()
        await leaving

    async def _embed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Each input is a request of its own to the scheduler, which is done after its first step."""
        body = await _read_body(receive)
        if body is None:
            return
        script, request_id = self.script, self._request_id(scope)
        try:
            asked = embeddings.read_embeddings(body, script.model, script.embedding_size, script.max_model_len)
            streams = self._board(request_id, asked.tokens, [1] * len(asked.inputs), [_ignore] * len(asked.inputs))
        except wire.WireError as error:
            await _respond(send, error.status, JSON, error.openai())
            return
        leaving = asyncio.create_task(self._abort_when_client_leaves(receive, streams))
        await asyncio.gather(*[stream.ended for stream in streams])
        states = {stream.record.state for stream in streams}
        if "died" in states:
            scope["state"]["transport"].abort()
        elif states == {"finished"}:
            await _respond(send, 200, JSON, asked.whole(request_id, script.model, int(time.time())))
        await leaving

    def _request_id(self, scope: Scope) -> str:
        self._requests_seen += 1
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
        return given[-1] if given else f"{self._requests_seen:016x}"

    def _read(self, scope: Scope, body: bytes) -> tuple[wire.Ask, wire.ScriptedAnswer]:
        path, request_id = scope["path"], self._request_id(scope)
        ask = wire.read_ask(body, self.script.model)
        if path in ("/v1/chat/completions", RESPONSES):
            wire.check_service_tier(ask)
        prompt_tokens = wire.count_prompt_tokens(ask)
        max_tokens = wire.check_limits(ask, prompt_tokens, self.script.max_model_len)
        total_tokens, stop = wire.find_stop(ask, max_tokens)
        options = ask.stream_options or wire.ScriptedStreamOptions()
        return ask, wire.ScriptedAnswer(
            id=f"{DIALECTS[path][0]}-{request_id}",
            request_id=request_id,
            created=int(time.time()),
            model=self.script.model,
            prompt_tokens=prompt_tokens,
            total_tokens=total_tokens,
            stop=stop,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
            choices=1 if path in ("/v1/messages", RESPONSES) else ask.n or 1,
            words_before=wire.count_words_before(ask),
            returns_ids=bool(ask.return_token_ids),
            body=body if path == RESPONSES else b"",
        )

    def _encode(
        self, path: str, body: bytes, ask: wire.Ask, answer: wire.ScriptedAnswer
    ) -> tuple[Sequence[wire.Format], list[int]]:
        """The encoder and the number of tokens of each choice."""
        encode = DIALECTS[path][1]
        if self.answers is None and encode is None:
            return [ResponsesFormat(answer, [words_plan(answer)], 0, has_reasoning=False)], [answer.total_tokens]
        if self.answers is None:
            assert encode is not None
            return [encode(answer, index) for index in range(answer.choices)], [answer.total_tokens] * answer.choices
        dialect, encode_programmed = PROGRAMMED[path]
        max_tokens = wire.check_limits(ask, answer.prompt_tokens, self.script.max_model_len)
        room = self.script.max_model_len - answer.prompt_tokens
        plans = self.answers.plan(dialect, body, ask, max_tokens, room)
        has_reasoning = self.answers.has_reasoning
        choices = [encode_programmed(answer, plans, one, has_reasoning=has_reasoning) for one in range(len(plans))]
        return choices, [len(plan.pieces) for plan in plans]

    def _board(
        self, request_id: str, prompts: list[int], lengths: list[int], gives: list[Callable[[int], None]]
    ) -> list[ScriptedStream]:
        """As in vLLM, each choice is a request of its own to the scheduler."""
        streams: list[ScriptedStream] = []
        try:
            for index, (prompt_tokens, length, give) in enumerate(zip(prompts, lengths, gives, strict=True)):
                name = f"{index}_{request_id}" if index else request_id
                streams.append(self.steps.board(name, prompt_tokens, length, give))
        except QueueFull:
            for stream in streams:
                self.steps.abort(stream)
            raise wire.WireError(503, "Service Unavailable", wire.BUSY) from None
        return streams

    async def _abort_when_client_leaves(self, receive: Receive, streams: list[ScriptedStream]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for stream in streams:
            self.steps.abort(stream)

    def _count_tokens(self, body: bytes) -> tuple[int, bytes, bytes]:
        try:
            tokens = wire.count_prompt_tokens(wire.read_ask(body, self.script.model))
        except wire.WireError as error:
            return error.status, JSON, _error_body("/v1/messages", error)
        counts = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
        return 200, JSON, msgspec.json.encode(counts)

    def _render(self, body: bytes) -> tuple[int, bytes, bytes]:
        try:
            tokens = wire.count_prompt_tokens(wire.read_ask(body, self.script.model))
        except wire.WireError as error:
            return error.status, JSON, error.openai()
        return 200, JSON, msgspec.json.encode({"token_ids": list(range(tokens)), "sampling_params": {}})

    def _post_faults(self, body: bytes) -> tuple[int, bytes, bytes]:
        try:
            asked = msgspec.json.decode(body, type=dict[str, Any])
            unknown = asked.keys() - {field.name for field in fields(Faults)}
            if unknown:
                raise msgspec.ValidationError(f"unknown fault: {', '.join(sorted(unknown))}")
            self.faults = msgspec.convert(asked, Faults)
        except msgspec.DecodeError as error:
            return 400, JSON, msgspec.json.encode({"detail": str(error)})
        return 200, JSON, msgspec.json.encode(self.faults)

    def _health(self) -> tuple[int, bytes, bytes]:
        return 503 if self.faults.unhealthy else 200, b"", b""

    def _models(self) -> tuple[int, bytes, bytes]:
        model = {"id": self.script.model, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        model |= {"root": self.script.model, "parent": None, "max_model_len": self.script.max_model_len}
        return 200, JSON, msgspec.json.encode({"object": "list", "data": [model]})

    def _metrics(self) -> tuple[int, bytes, bytes]:
        steps, script = self.steps, self.script
        cached = sum(s.record.prompt_tokens + s.record.tokens_sent for s in [*steps.batch, *steps.joining])
        kv_tokens = script.max_num_seqs * script.max_model_len
        values = (
            ("num_requests_running", "gauge", steps.running),
            ("num_requests_waiting", "gauge", len(steps.waiting)),
            ("kv_cache_usage_perc", "gauge", cached / kv_tokens),
            ("prompt_tokens_total", "counter", steps.prompt_tokens),
            ("generation_tokens_total", "counter", steps.tokens_sent),
        )
        text = "".join(
            f'# TYPE vllm:{name} {kind}\nvllm:{name}{{engine="0",model_name="{script.model}"}} {float(value)}\n'
            for name, kind, value in values
        )
        text += f'vllm:cache_config_info{{engine="0",kv_cache_size_tokens="{kv_tokens}"}} 1.0\n'
        return 200, b"text/plain; version=0.0.4; charset=utf-8", text.encode()


def _giver(transport: asyncio.Transport, choice: wire.Format) -> Callable[[int], None]:
    return lambda number: _write(transport, choice.token(number))


def _ignore(number: int) -> None:
    """Takes the tokens of an answer that is sent in one piece."""


def _write(transport: asyncio.Transport, chunks: bytes) -> None:
    if not transport.is_closing():  # the client may have disconnected during this turn of the loop
        transport.write(chunks)


def _error_body(path: str, error: wire.WireError) -> bytes:
    # vLLM rejects an invalid body before it knows the dialect.
    return error.anthropic() if path == "/v1/messages" and error.kind != "Bad Request" else error.openai()


def _metrics_of(stream: ScriptedStream) -> dict[str, float | None]:
    record = stream.record
    assert record.first_token_s is not None  # the stream has finished, and every answer has at least one token
    assert record.ended_s is not None
    tokens, generation_s = record.tokens_sent, record.ended_s - record.first_token_s
    return {
        "time_to_first_token_ms": 1e3 * (record.first_token_s - stream.arrived_s),
        "generation_time_ms": 1e3 * generation_s,
        "queue_time_ms": 1e3 * (stream.seated_s - stream.arrived_s),
        "mean_itl_ms": 1e3 * generation_s / (tokens - 1) if tokens > 1 else None,
        "tokens_per_second": tokens / max(record.ended_s - stream.arrived_s, 1e-9),
    }


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body, or None if the client left before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


async def _respond(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    if content_type:
        headers.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
