"""Stands between relays and one engine that keeps no journal, passes all bytes on, and writes the journal itself.

It counts what the engine says. A stream of completions or chat has usage in each event, so its counts are exact for all
that was sent. Messages have their prompt at the start and their output at the end, Responses both at the end: until
then each delta counts as one token, a lower bound. Of a whole answer nothing is known before its end. A prompt is 0
until it is known. A line is written before the bytes that it is about are passed on, so no relay knows more than the
journal.

`python -m runs.torture.recorder FOLDER PORT ENGINE_PORT`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import uvloop

from runs.torture.witness import REFUSED, Line
from runs.torture.workload import CHAT, COMPLETIONS, MESSAGES, RESPONSES

HOST = "127.0.0.1"
PATHS = (COMPLETIONS, CHAT, MESSAGES, RESPONSES)
EVENT, DATA = b"\n\n", b"data:"
DELTAS = (
    "content_block_delta",
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


class Recorder:
    def __init__(self, folder: Path, port: int, engine_port: int) -> None:
        self.engine_port = engine_port
        name = f"{HOST}-{port}-{time.monotonic_ns()}.journal"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class Recorded:
    """One request, with what its answer has said so far."""

    def __init__(self, recorder: Recorder, call_id: str, path: str, body: bytes) -> None:
        asked = msgspec.json.decode(body)
        prompt = asked.get("prompt")
        # The ids of a stream that goes on, or else not known before the engine says it.
        self._prompt_tokens = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else 0
        self._recorder = recorder
        self._call_id = call_id
        self._is_stream = bool(asked.get("stream"))
        self._tokens = dict.fromkeys(range(asked.get("n") or 1), 0)  # by choice
        self._running = set(self._tokens)
        self._page = b""  # of a whole answer, or an event that is not complete
        self._read = {MESSAGES: self._read_message, RESPONSES: self._read_response}.get(path, self._read_completion)
        for choice in self._tokens:
            self._write(choice)

    def on_body(self, data: bytes) -> None:
        self._page += data
        if not self._is_stream:
            return
        *events, self._page = self._page.split(EVENT)
        for event in events:
            _, found, payload = event.partition(DATA)
            if found and payload.strip().startswith(b"{"):
                self._read(msgspec.json.decode(payload))

    def completed(self, status: int) -> None:
        """The answer has ended, as HTTP says."""
        if status != 200:
            self.end(REFUSED)
            return
        if not self._is_stream:
            with suppress(msgspec.MsgspecError):
                self._count_whole(msgspec.json.decode(self._page).get("usage") or {})
        self.end("finished")

    def end(self, state: str) -> None:
        for choice in sorted(self._running):
            self._end(choice, state)

    def _write(self, choice: int, state: str = "") -> None:
        name = f"{choice}_{self._call_id}" if choice else self._call_id
        self._recorder.write(Line(time.monotonic(), name, self._prompt_tokens, self._tokens[choice], state))

    def _end(self, choice: int, state: str) -> None:
        if choice in self._running:
            self._running.discard(choice)
            self._write(choice, state)

    def _count(self, choice: int, tokens: int) -> None:
        if tokens > self._tokens[choice]:
            self._tokens[choice] = tokens
            self._write(choice)

    def _count_whole(self, usage: dict[str, Any]) -> None:
        """All choices of a whole answer are in one count."""
        if self._read == self._read_completion:
            self._prompt_tokens = usage.get("prompt_tokens", 0)
            self._count(0, usage.get("completion_tokens", 0))
        else:
            self._prompt_tokens = _input_tokens(usage)
            self._count(0, usage.get("output_tokens", 0))

    def _read_completion(self, event: dict[str, Any]) -> None:
        usage, choices = event.get("usage") or {}, event.get("choices") or []
        self._prompt_tokens = usage.get("prompt_tokens", self._prompt_tokens)
        for choice in choices:
            index = choice["index"]
            self._count(index, usage.get("completion_tokens", 0))
            if choice.get("finish_reason") is not None and usage:
                self._end(index, "finished")

    def _read_message(self, event: dict[str, Any]) -> None:
        if event["type"] == "message_start":
            self._prompt_tokens = _input_tokens(event["message"].get("usage") or {})
        elif event["type"] in DELTAS and event["delta"].get("type") != "signature_delta":
            self._count(0, self._tokens[0] + 1)
        elif event["type"] == "message_delta" and "usage" in event:
            self._finish(event["usage"])

    def _read_response(self, event: dict[str, Any]) -> None:
        if event.get("type") in DELTAS:
            self._count(0, self._tokens[0] + 1)
        elif event.get("type") in ("response.completed", "response.incomplete"):
            self._finish(event["response"].get("usage") or {})

    def _finish(self, usage: dict[str, Any]) -> None:
        self._prompt_tokens = _input_tokens(usage) or self._prompt_tokens
        # Exact, also if the deltas had said more than it. Not a token of its own: its time is that of the last delta.
        self._tokens[0] = usage.get("output_tokens", self._tokens[0])
        self._end(0, "finished")


def _input_tokens(usage: dict[str, Any]) -> int:
    """Those from the prefix cache are apart in messages, and included in responses."""
    apart = (usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens"))
    return (usage.get("input_tokens") or 0) + sum(count or 0 for count in apart)


class FromRelay(asyncio.Protocol):
    """One connection of a relay, which has one to the engine."""

    def __init__(self, recorder: Recorder) -> None:
        self.transport: asyncio.Transport
        self.request: Recorded | None = None
        self._recorder = recorder
        self._engine: FromEngine | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = self._call_id = ""
        self._raw, self._body = b"", b""
        self._is_whole = False  # the request, which waits for the engine's connection
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connecting = asyncio.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._raw += data
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.request is not None:
            self.request.end("aborted")
        if self._connecting is not None:
            self._connecting.cancel()
        if self._engine is not None:
            self._engine.transport.abort()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, self._engine = await loop.create_connection(lambda: FromEngine(self), HOST, self._recorder.engine_port)
        except OSError:
            self.transport.abort()
            return
        self._forward()

    def _forward(self) -> None:
        if not self._is_whole or self._engine is None or self.transport.is_closing():
            return
        is_recorded = self._call_id and self._path in PATHS
        self.request = Recorded(self._recorder, self._call_id, self._path, self._body) if is_recorded else None
        self._engine.transport.write(self._raw)
        self._raw, self._is_whole = b"", False

    # --- called by httptools ---

    def on_message_begin(self) -> None:
        self._path = self._call_id = ""
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._call_id = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._is_whole = True
        # In the next turn of the loop: what a relay has closed before it sent this is read first.
        asyncio.get_running_loop().call_soon(self._forward)


class FromEngine(asyncio.Protocol):
    def __init__(self, relay: FromRelay) -> None:
        self.transport: asyncio.Transport
        self._relay = relay
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._relay.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._relay.request is not None:
            self._relay.request.end("killed")
        self._relay.transport.close()  # after what is not written yet

    # --- called by httptools ---

    def on_body(self, data: bytes) -> None:
        if self._relay.request is not None and self._parser.get_status_code() == 200:
            self._relay.request.on_body(data)

    def on_message_complete(self) -> None:
        if self._relay.request is not None:
            self._relay.request.completed(self._parser.get_status_code())
            self._relay.request = None


async def listening(folder: Path, port: int, engine_port: int) -> asyncio.Server:
    recorder = Recorder(folder, port, engine_port)
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: FromRelay(recorder), HOST, port, backlog=1024)


async def main(folder: Path, port: int, engine_port: int) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await listening(folder, port, engine_port)
    await told.wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
