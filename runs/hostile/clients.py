"""Hostile clients over raw sockets, and honest ones among them whose answers must be right. See runs/hostile.sh."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec

from headway.engines.scripted.formats import WORDS
from runs.hostile import corpus
from runs.hostile.mutate import Mutator

HONEST, HOSTILE = "m", "h"  # models: of the scripted engine, and of the hostile one
CALL_TIMEOUT_S = 20.0
LINGER_S = 0.3  # how long a client waits for an answer to what may be no request
# What a client does, and its weight.
KINDS = {"honest": 25, "calls the hostile engine": 25, "breaks the grammar": 30, "leaves": 20}

PATHS = {"/v1/chat/completions": corpus.CHATS, "/v1/completions": corpus.COMPLETIONS, "/v1/messages": corpus.MESSAGES}
METHODS = (b"GET", b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"CONNECT", b"PRI", b"", b"post", b"P\x00ST", b"X" * 2_000)
TARGETS = (
    b"/", b"//", b"/v1/chat/completions/", b"/v1/chat/completions?x=" + b"y" * 500, b"/v1/messages?beta=true",
    b"/v1/models", b"/v1/models/m", b"/v1/models/%00", b"/metrics", b"/health", b"/ready",
    b"/v1/messages/count_tokens", b"*", b"http://x/v1/models", b"/%ff%fe", b"/../../etc/passwd", b"/\xff",
    b"/" + b"x" * 8_000, b"/" + b"x" * 70_000, b"", b"/v1/x y",
)  # fmt: skip
VERSIONS = (b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9.9", b"HTTQ/1.1", b"", b"HTTP/1.1 x")
HEADERS = (
    b"host: y", b"host:", b"content-length: 0", b"content-length: -1", b"content-length: 1e3",
    b"content-length: 99999999999999999999", b"content-length: 5, 5", b"transfer-encoding: chunked",
    b"transfer-encoding: identity", b"transfer-encoding: xchunked", b"transfer-encoding: chunked, chunked", b" folded",
    b"x\x00: y", b"x: \x00", b"no colon", b": y", b"x: " + b"y" * 8_000, b"x: " + b"y" * 70_000,
    b"expect: 100-continue", b"upgrade: websocket\r\nconnection: upgrade", b"connection: close",
    b"connection: keep-alive", b"content-encoding: gzip", b"content-type: text/plain", b"x-api-key: \xff",
    b"authorization: Bearer", b"authorization: Basic eDp5", b"authorization: Bearer " + b"k" * 600,
    b"headway-fallback: maybe", b"headway-fallback: standard", b"anthropic-version: 2023-06-01",
    b"origin: http://evil.example", b"x: y\nz: w", b"\r\n", b"x: y\r\n" * 300,
)  # fmt: skip
CHUNK_SIZES = (b"ffffffffffffffff", b"-5", b"zz", b"", b"5;" + b"x" * 300, b"0x5", b"5 ", b"00000005", b"5\r\n\r\n")


@dataclass
class Tally:
    """What the clients saw."""

    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)  # of each problem, what was sent
    served: dict[str, int] = field(default_factory=dict)  # output tokens of the honest calls, by call id

    def report(self, problem: str, sent: bytes, got: bytes) -> None:
        self.problems[problem] += 1
        self.examples.setdefault(problem, sent[:1500] + b" ==> " + got[:600])


@dataclass
class Answer:
    """One response; its `on_*` methods are httptools' callbacks."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def is_in_dialect(self) -> bool:
        """Whether it is an error as the dialects write it, with the id of its call."""
        try:
            error = msgspec.json.decode(self.body)["error"]
            return isinstance(error["message"], str) and b"x-request-id" in self.headers
        except (msgspec.MsgspecError, KeyError, TypeError):
            return False


class Clients:
    """`is_away` tells whether the gateway is being restarted; what a client saw meanwhile is not judged."""

    def __init__(self, port: int, keys: Sequence[str], seed: int, is_away: Callable[[], int] = lambda: 0) -> None:
        self.tally = Tally()
        self._port = port
        self._keys = [key.encode() for key in keys]
        self._random = random.Random(seed)
        self._mutators = {path: Mutator(bodies, seed) for path, bodies in PATHS.items()}
        self._is_away = is_away

    async def one(self) -> None:
        """Make one request."""
        [kind] = self._random.choices(list(KINDS), list(KINDS.values()))
        self.tally.requests += 1
        self.tally.kinds[kind] += 1
        epoch = self._is_away()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await {
                    "honest": self._be_honest,
                    "calls the hostile engine": self._call_hostile_engine,
                    "breaks the grammar": self._break_grammar,
                    "leaves": self._leave,
                }[kind](epoch)
        except (OSError, asyncio.IncompleteReadError):
            if epoch == self._is_away() and kind == "honest":
                self.tally.report("an honest client is cut off", b"", b"")
        except TimeoutError:
            if epoch == self._is_away():
                self.tally.report(f"no answer in {CALL_TIMEOUT_S:g} s: {kind}", b"", b"")

    # --- requests ---

    def _call(self, model: str) -> tuple[str, int, bool, bytes]:
        """A call that can be served: its path, its tokens, whether it is streamed, and its bytes."""
        chance = self._random
        path, streaming, tokens = chance.choice(tuple(PATHS)), chance.random() < 0.6, chance.randint(1, 12)
        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "stream": streaming}
        body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
        if streaming and path != "/v1/messages":
            body["stream_options"] = {"include_usage": True}
        if model == HOSTILE and chance.random() < 0.2:
            body |= {"speed": "fast"} if path == "/v1/messages" else {"service_tier": "fast"}
        return path, tokens, streaming, self._request(path, msgspec.json.encode(body))

    def _request(self, path: str, body: bytes, *, close: bool = True) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n".encode()
        head += b"x-api-key: %b\r\n" % self._random.choice(self._keys)
        head += b"connection: close\r\n" if close else b""
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    async def _be_honest(self, epoch: int) -> None:
        path, tokens, streaming, request = self._call(HONEST)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            got = await reader.read(-1)
        finally:
            writer.close()
        answers = self._answers(got)
        answer = answers[0] if len(answers) == 1 else Answer()
        self.tally.statuses[answer.status] += 1
        if epoch != self._is_away():
            return
        if answer.status == 429:
            return
        if answer.status != 200 or not answer.is_complete:
            self.tally.report(f"an honest call gets {answer.status}", request, got)
        elif _text(path, streaming, answer.body) != "".join(WORDS[:tokens]):
            self.tally.report("an honest call gets a wrong answer", request, got)
        else:
            self.tally.served[answer.headers[b"x-request-id"].decode()] = tokens

    async def _call_hostile_engine(self, epoch: int) -> None:
        request = self._call(HOSTILE)[3]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            got = await reader.read(-1)
        finally:
            writer.close()
        answers = self._answers(got)
        if not answers and epoch == self._is_away():
            self.tally.report("a call of the hostile engine gets no answer", request, got)
        for answer in answers:
            self._judge(answer, request, got, epoch, may_fail=True)

    async def _break_grammar(self, epoch: int) -> None:
        chance = self._random
        data = self._malformed()
        if chance.random() < 0.15:  # pipelined
            data = data * chance.randint(2, 6) if len(data) < 5_000 else data
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        got = b""
        try:
            await self._write_in_parts(data, writer)
            if chance.random() < 0.3:
                writer.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while piece := await reader.read(65536):
                        got += piece
                        if any(answer.is_complete for answer in self._answers(got)):
                            break
        except ConnectionError:
            pass  # it may refuse at any time
        finally:
            self._close(writer)
        for answer in self._answers(got):
            self._judge(answer, data, got, epoch, may_fail=False)

    async def _leave(self, _epoch: int) -> None:
        """Disconnect at any point: inside the request, before the answer, inside it, or after it."""
        chance = self._random
        request = self._call(chance.choice((HONEST, HOSTILE)))[3]
        head, end = request.index(b"\r\n\r\n"), len(request)
        inside = (chance.randrange(20), chance.randrange(head), chance.randrange(head, end))
        ends = (0, 1, *inside, head, head + 2, head + 4, end - 1)
        point = chance.choice((*ends, *[end] * 9))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request[:point])
            if point == end:
                match chance.randrange(5):
                    case 0:
                        await asyncio.sleep(chance.expovariate(1 / 0.01))
                    case 1:
                        await reader.read(chance.randint(1, 600))
                    case 2:
                        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                            await reader.readuntil(b'"content":"')
                    case 3:
                        writer.write_eof()  # half-closed: it may still read
                        await reader.read(-1)
                    case 4:
                        await reader.read(-1)
            elif chance.random() < 0.3:
                writer.write_eof()
                await asyncio.sleep(chance.expovariate(1 / 0.01))
        except ConnectionError:
            pass
        finally:
            self._close(writer)

    # --- malformed requests ---

    def _malformed(self) -> bytes:
        chance = self._random
        path = chance.choice(tuple(PATHS))
        roll = chance.random()
        if roll < 0.45:  # the body
            return self._request(path, self._mutators[path].next(), close=chance.random() < 0.5)
        if roll < 0.55:
            return self._chunked(path, self._mutators[path].next())
        if roll < 0.65:  # a body that is shorter or longer than it should be
            request = self._request(path, self._mutators[path].next())
            return request[: -chance.randint(1, 60)] if chance.random() < 0.5 else request + request[:100]
        if roll < 0.70:
            return bytes(chance.getrandbits(8) for _ in range(chance.randint(1, 200)))
        method = chance.choice(METHODS) if chance.random() < 0.3 else chance.choice((b"POST", b"GET"))
        target = chance.choice(TARGETS) if chance.random() < 0.5 else path.encode()
        version = chance.choice(VERSIONS) if chance.random() < 0.2 else b"HTTP/1.1"
        lines = [b"%b %b %b" % (method, target, version), b"host: 127.0.0.1"]
        lines += chance.sample(HEADERS, chance.randint(0, 3))
        if chance.random() < 0.7:
            lines.append(b"x-api-key: %b" % chance.choice((*self._keys, b"hw-unknown")))
        body = chance.choice(PATHS[path])
        if chance.random() < 0.7:
            lines.append(b"content-length: %d" % len(body))
        ending = chance.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
        return ending.join(lines) + ending * 2 + body

    def _chunked(self, path: str, body: bytes) -> bytes:
        chance = self._random
        head = self._request(path, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
        cut = chance.randrange(len(body) + 1)
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
        if chance.random() < 0.5:
            at = chance.randrange(len(chunks) + 1)
            chunks = chunks[:at] + chance.choice(CHUNK_SIZES) + b"\r\n" + chunks[at:]
        return head + chunks + chance.choice((b"0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"", b"0\r\n"))

    async def _write_in_parts(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        chance = self._random
        for _ in range(chance.choice((0, 0, 1, 2, 20))):
            cut = chance.randrange(len(data) + 1)
            writer.write(data[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[cut:]
        writer.write(data)
        await writer.drain()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort() if self._random.random() < 0.5 else writer.close()

    # --- answers ---

    def _answers(self, got: bytes) -> list[Answer]:
        """All responses that were read; the last one may be cut off."""
        answers: list[Answer] = []

        class Parser:
            def on_message_begin(self) -> None:
                answers.append(Answer())

            def on_header(self, name: bytes, value: bytes) -> None:
                answers[-1].on_header(name, value)

            def on_headers_complete(self) -> None:
                answers[-1].status = parser.get_status_code()

            def on_body(self, data: bytes) -> None:
                answers[-1].on_body(data)

            def on_message_complete(self) -> None:
                answers[-1].on_message_complete()

        parser = httptools.HttpResponseParser(Parser())
        try:
            parser.feed_data(got)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            answers.append(Answer(status=-1))
        return answers

    def _judge(self, answer: Answer, sent: bytes, got: bytes, epoch: int, *, may_fail: bool) -> None:
        self.tally.statuses[answer.status] += 1
        if epoch != self._is_away() or answer.status == 0:  # status 0: cut off inside its head
            return
        if answer.status == 100 and b"100-continue" in sent:
            return
        if answer.status == -1 and sent.startswith(b"HEAD "):  # without the body that its length speaks of
            return
        if not 200 <= answer.status < 600:
            self.tally.report(f"an answer that is no HTTP: status {answer.status}", sent, got)
        elif answer.status >= 500 and not (may_fail and answer.is_in_dialect) and answer.is_complete:
            self.tally.report(f"an unexpected {answer.status}", sent, got)


def _text(path: str, streaming: bool, body: bytes) -> str | None:
    """The text of an honest answer; None if it is no answer."""
    try:
        if not streaming:
            return _whole_text(path, msgspec.json.decode(body))
        lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
        events = [msgspec.json.decode(line) for line in lines]
        if path == "/v1/messages":
            is_whole = bool(events) and events[-1]["type"] == "message_stop"
            text = "".join(one["delta"]["text"] for one in events if one["type"] == "content_block_delta")
        else:
            is_whole = body.endswith(b"data: [DONE]\n\n")
            choices = [one["choices"][0] for one in events if one["choices"]]
            text = "".join(one["delta"].get("content", "") if "delta" in one else one["text"] for one in choices)
        return text if is_whole else None
    except (msgspec.MsgspecError, LookupError, TypeError):
        return None


def _whole_text(path: str, answer: Any) -> str:
    if path == "/v1/messages":
        return "".join(block["text"] for block in answer["content"])
    choice = answer["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text
