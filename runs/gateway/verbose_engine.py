"""A scripted engine whose answers with log-probabilities are as large as their request allows. See runs/neighbours.sh.

It writes all tokens of such a stream in one event. vLLM does so for a client that reads slowly: tokens that wait for it
are joined.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from headway.engines.scripted import Script, ScriptedEngine, serve_scripted
from headway.engines.scripted.engine import Receive, Scope, Send

LOGPROB_BYTES = 300  # with a long token; an ordinary one takes about 100
PIECE = 256 * 1024


class _Asked(msgspec.Struct):
    max_tokens: int = 0
    top_logprobs: int = 0
    n: int = 1
    stream: bool = False


_read = msgspec.json.Decoder(_Asked).decode


class VerboseEngine(ScriptedEngine):
    def __init__(self, script: Script, answer_s: float) -> None:
        super().__init__(script)
        self._answer_s = answer_s

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST" or scope["path"] != "/v1/chat/completions":
            await super().app(scope, receive, send)
            return
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message["body"])
            if not message["more_body"]:
                break
        body = b"".join(parts)
        asked = _read(body)
        if asked.top_logprobs:
            await self._answer(asked, send)
            return
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> object:
            return whole.pop() if whole else await receive()

        await super().app(scope, receive_again, send)

    async def _answer(self, asked: _Asked, send: Send) -> None:
        await asyncio.sleep(self._answer_s)
        padding = asked.max_tokens * (asked.top_logprobs + 1) * asked.n * LOGPROB_BYTES
        usage = b'"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d}' % (
            9 + asked.max_tokens * asked.n,
            asked.max_tokens * asked.n,
        )
        text = b'{"index":0,"%b":{"role":"assistant","content":"' % (b"delta" if asked.stream else b"message")
        ending = b'"},"logprobs":null,"finish_reason":"length"}]'
        if asked.stream:
            head, tail = b'data: {"choices":[' + text, ending + b"," + usage + b"}\n\n"
            tail += b'data: {"choices":[],' + usage + b"}\n\ndata: [DONE]\n\n"
            content_type = b"text/event-stream; charset=utf-8"
        else:
            head, tail, content_type = b'{"choices":[' + text, ending + b"," + usage + b"}", b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]})
        # The bytes are in the text, because nobody reads them.
        for piece in (head, *[b"x" * PIECE] * (padding // PIECE), tail):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


if __name__ == "__main__":
    own_port, model, first_s, step_s, seats, verbose_s = sys.argv[1:]
    script = Script(model, float(first_s), ((1, float(step_s)),), int(seats))
    serve_scripted(VerboseEngine(script, float(verbose_s)), "127.0.0.1", int(own_port))
