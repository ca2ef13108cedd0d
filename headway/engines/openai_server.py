"""Any server with OpenAI's chat and completions endpoints: SGLang, llama.cpp, TGI, transformers.

Such a server says less than vLLM does. It counts tokens at the end of an answer, or not at all: then each event of a
stream counts as one. It does not say how many streams it runs, how much memory it has, or whether it makes progress
while it reads a long prompt: only the bytes that it sends show that it is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from headway.engines.base import Answer, EngineRequest, Pulse
from headway.engines.changed_answer import ChangedAnswer
from headway.engines.vllm import CHAT, COMPLETIONS, HEALTH_TIMEOUT_S, TOKEN_TIMEOUT_S, read_max_model_len
from headway.errors import ConnectionFailed, EngineLost
from headway.http1 import ConnectionPool, fetch
from headway.wire import Request, with_fields

EVENT_END, DONE, USAGE = b"\n\n", b"data: [DONE]", b'"usage":{'
FINISHED = b'"finish_reason":"'
WITHOUT_TOKEN = (b'"choices":[]', b'"delta":{}', b'"delta":{"role":"assistant"}', b'"content":""')
MAX_EVENT_BYTES = 2**20


class OpenAIServer:
    counts_streams = False

    def __init__(self, name: str, url: str, model: str) -> None:
        self.name = name
        self.pulse = Pulse()
        self._pool = ConnectionPool(url)
        one_token = {"model": model, "max_tokens": 1}
        self._one_chat_token = msgspec.json.encode({**one_token, "messages": [{"role": "user", "content": "1"}]})
        self._one_token = msgspec.json.encode({**one_token, "prompt": "1"})

    def prepare(self, request: Request) -> EngineRequest:
        """Ask for the usage of a stream. `continuous_usage_stats` is vLLM's own, and some servers refuse it."""
        collects = request.collect == "always"
        added: dict[str, object] = {"stream": True} if collects else {}
        if (request.streaming or collects) and request.path in (CHAT, COMPLETIONS):
            added["stream_options"] = {"include_usage": True}
        headers = ((b"x-request-id", request.call.id.encode()), *request.trace.headers())
        body = with_fields(request.body, added)
        return EngineRequest(request.path, headers, body, collects, prompt_tokens=request.call.prompt_tokens)

    async def send(self, request: EngineRequest, before_write: Callable[[], None]) -> Answer:
        answer = await self._pool.request(b"POST", request.path, request.body, request.headers, before_write)
        return CountedAnswer(answer, request.prompt_tokens)

    def generation_s(self, answer: Mapping[str, Any]) -> float | None:  # noqa: ARG002
        return None

    async def decode(self, token_ids: Sequence[int]) -> str:  # noqa: ARG002
        raise EngineLost("such a server does not go on with a stream of another one")

    async def is_healthy(self) -> bool:
        for path in ("/health", "/v1/models"):
            status, _ = await fetch(self._pool, path, HEALTH_TIMEOUT_S)
            if status != 404:  # the first is not a part of OpenAI's API
                return status == 200
        return False

    async def progress(self) -> tuple[float, ...]:
        return ()

    async def life(self) -> tuple[float, ...]:
        return ()

    async def kv_tokens(self) -> int:
        return 0

    async def streams(self) -> int | None:
        return None

    async def max_model_len(self) -> int | None:
        _, page = await fetch(self._pool, "/v1/models", HEALTH_TIMEOUT_S)
        return read_max_model_len(page)

    async def mismatch(self) -> str:
        return ""  # these servers list paths, or everything that they could load

    async def produces_a_token(self) -> bool:
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                status, _ = await self._pool.exchange(b"POST", CHAT, self._one_chat_token)
                if status != 200:  # such as a model without a chat template
                    status, _ = await self._pool.exchange(b"POST", COMPLETIONS, self._one_token)
                return status == 200
        except (ConnectionFailed, TimeoutError):
            return False

    def close(self) -> None:
        self._pool.close()


class CountedAnswer(ChangedAnswer):
    """An answer whose stream ends with its usage, also if the server sends none."""

    def __init__(self, answer: Answer, prompt_tokens: int) -> None:
        super().__init__(answer)
        self.stream = StreamUsage(prompt_tokens)

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        def pass_on(data: bytes) -> None:
            if shown := self.stream.added_to(data):
                sink(shown)

        await self._answer.pipe(pass_on)
        if end := self.stream.end():
            sink(end)


class StreamUsage:
    """Makes a stream end as OpenAI's do: with its usage in an event of its own, and with [DONE].

    Some servers have the usage in the event of the last token, or none, or end with the connection."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._rest = b""  # of an event that is not complete
        self.events = 0  # that have a token
        self.usage: Mapping[str, Any] | None = None  # as the server says it
        self._is_finished = False  # a reason for its end was given
        self._has_own_event = False  # of usage
        self._is_done = False

    def added_to(self, data: bytes) -> bytes:
        """The complete events, with a usage before the end."""
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(EVENT_END)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return b"".join([self._added_to_event(event) + EVENT_END for event in events])

    def end(self) -> bytes:
        """What is missing at the end of an answer that is complete."""
        return self._usage_event() + DONE + EVENT_END if self._is_finished and not self._is_done else b""

    def _added_to_event(self, event: bytes) -> bytes:
        if event.startswith(DONE):
            self._is_done = True
            return self._usage_event() + event
        if b'"choices"' not in event:
            return event
        dense = event.replace(b": ", b":")
        if USAGE in dense:
            with suppress(msgspec.MsgspecError, AttributeError):
                self.usage = msgspec.json.decode(event.removeprefix(b"data:")).get("usage")
            self._has_own_event = b'"choices":[]' in dense
        self._is_finished = self._is_finished or FINISHED in dense
        self.events += not any(empty in dense for empty in WITHOUT_TOKEN)
        return event

    def _usage_event(self) -> bytes:
        if self._has_own_event:
            return b""
        counted = self.usage or {"prompt_tokens": self._prompt_tokens, "completion_tokens": self.events}
        return b"data: " + msgspec.json.encode({"choices": [], "usage": counted}) + EVENT_END
