"""A scripted engine that lies: it tells what it did not do, and keeps true records of what it did and to whom it lied.

`POST /scripted/lie` with {"kind": "claims more", "share": 0.5, "seed": 1} begins to lie, with {} it ends, and
`GET /scripted/lies` gives {call's id: kind of lie}. The faults that need no lie (silence, 503, a death in the middle)
are the scripted engine's own: `POST /scripted/faults`. engine.py serves one.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from headway.engines.scripted import ProgrammedAnswers, Script, ScriptedEngine
from headway.engines.scripted.engine import Receive, Scope, Send

PROBE = b'"prompt":"1"'  # it is honest to probes: a replica that fails them gets no calls
COUNT = re.compile(rb'("completion_tokens":|"output_tokens":|"total_tokens":)(\d+)')
ID = re.compile(rb'(?<="id":")(?:chatcmpl|cmpl)-[^"]+')
USAGE = re.compile(rb'"usage":\{')
TEXT = re.compile(rb'"(?:content|text)":"')


class _Answer:
    """One answer as it is told: each kind of lie changes a part of it, an event or a whole body."""

    def __init__(self, kind: str, chance: random.Random, other_id: bytes) -> None:
        self._chance, self._other_id = chance, other_id
        self._parts = 0
        self.id = b""
        self.change = KINDS[kind]

    def claim_more(self, part: bytes) -> bytes:
        return COUNT.sub(lambda found: found[1] + b"%d" % (2 * int(found[2]) + 10), part)

    def claim_fewer(self, part: bytes) -> bytes:
        return COUNT.sub(lambda found: found[1] + b"%d" % (int(found[2]) // 2), part)

    def claim_none(self, part: bytes) -> bytes:
        """No usage at all."""
        return USAGE.sub(b'"unused":{', part)

    def say_nothing(self, part: bytes) -> bytes:
        return b""

    def say_garbage(self, part: bytes) -> bytes:
        """From the third event on, now and then a part that is none."""
        self._parts += 1
        if self._parts == 1 or (self._parts > 2 and self._chance.random() < 0.2):
            return self._chance.choice((part[: len(part) // 2], b"data: {\n\n", b"data: []\n\n", b"\x00\xff\n\n", b"{"))
        return part

    def take_anothers_id(self, part: bytes) -> bytes:
        if (found := ID.search(part)) is not None:
            self.id = found[0]
        return ID.sub(self._other_id or b"chatcmpl-nobody", part)

    def send_no_text(self, part: bytes) -> bytes:
        """All tokens are counted, and none is there."""
        return TEXT.sub(b'"nothing":"', part)


KINDS: dict[str, Callable[[_Answer, bytes], bytes]] = {
    "claims more": _Answer.claim_more,
    "claims fewer": _Answer.claim_fewer,
    "no usage": _Answer.claim_none,
    "empty body": _Answer.say_nothing,
    "garbage events": _Answer.say_garbage,
    "another's id": _Answer.take_anothers_id,
    "no text": _Answer.send_no_text,
}


class Lie(msgspec.Struct, forbid_unknown_fields=True):
    kind: str = ""
    share: float = 1.0  # of the calls
    seed: int = 0


class LyingEngine(ScriptedEngine):
    def __init__(self, script: Script, answers: ProgrammedAnswers | None = None) -> None:
        super().__init__(script, answers)
        self.lies: dict[str, str] = {}  # by call
        self._other_id = b""
        self.tell(Lie())

    def tell(self, lie: Lie) -> None:
        if lie.kind and lie.kind not in KINDS:
            raise ValueError(f"there is no lie {lie.kind!r}, only {', '.join(KINDS)}")
        self._lie, self._chance = lie, random.Random(lie.seed)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/scripted/lies":
            await _send_json(send, self.lies)
        elif scope["path"] == "/scripted/lie":
            self.tell(msgspec.json.decode((await receive())["body"], type=Lie))
            await _send_json(send, self._lie)
        elif scope["path"].startswith("/v1/") and scope["method"] == "POST" and self._lie.kind:
            await self._maybe_lie(scope, receive, send)
        else:
            await super().app(scope, receive, send)

    async def _maybe_lie(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()  # a body as short as those of the runs comes whole
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        if PROBE in first.get("body", b"") or self._chance.random() >= self._lie.share:
            await super().app(scope, _replay(first, receive), send)
            return
        self.lies[given] = self._lie.kind
        answer = _Answer(self._lie.kind, self._chance, self._other_id)
        transport = cast(asyncio.Transport, _LyingTransport(scope["state"]["transport"], answer))
        state = {**scope["state"], "transport": transport}
        await super().app({**scope, "state": state}, _replay(first, receive), _lying(send, answer))
        self._other_id = answer.id or self._other_id


class _LyingTransport:
    """What the scripted engine writes its events to: a chunk of HTTP for each, perhaps several at once."""

    def __init__(self, transport: asyncio.Transport, answer: _Answer) -> None:
        self._transport, self._answer = transport, answer
        self.is_closing, self.close, self.abort = transport.is_closing, transport.close, transport.abort

    def write(self, chunks: bytes) -> None:
        while chunks:
            size, _, rest = chunks.partition(b"\r\n")
            event, chunks = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            if told := self._answer.change(self._answer, event):
                self._transport.write(b"%x\r\n%b\r\n" % (len(told), told))


def _lying(send: Send, answer: _Answer) -> Send:
    """Changes answers that are sent whole."""
    held: list[dict[str, Any]] = []

    async def told(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and any(
            name == b"content-length" for name, _ in message["headers"]
        ):
            held.append(message)
            return
        if held:
            start, body = held.pop(), answer.change(answer, message["body"])
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
            message = {**message, "body": body}
        await send(message)

    return told


def _replay(first: Any, receive: Receive) -> Receive:
    again = [first]

    async def replayed() -> Any:
        return again.pop() if again else await receive()

    return replayed


async def _send_json(send: Send, value: object) -> None:
    body = msgspec.json.encode(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
