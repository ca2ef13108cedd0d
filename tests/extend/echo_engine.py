"""A toy kind of engine: it needs no server, and answers a completion with the prompt itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headway.engines.base import EngineRequest, Pulse
from headway.wire import Request


class EchoEngine:
    """Implements engines.base.Engine."""

    counts_streams = False

    def __init__(self, name: str, _url: str, _model: str) -> None:
        self.name = name
        self.pulse = Pulse()

    def prepare(self, request: Request) -> EngineRequest:
        return EngineRequest(request.path, (), request.body)

    async def send(self, request: EngineRequest, before_write: Callable[[], None]) -> EchoAnswer:
        before_write()
        words = str(msgspec.json.decode(request.body)["prompt"]).split()
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words)}
        return EchoAnswer(msgspec.json.encode({"choices": [{"index": 0, "text": " ".join(words)}], "usage": usage}))

    def generation_s(self, _answer: Mapping[str, Any]) -> float | None:
        return None  # it does not say

    async def is_healthy(self) -> bool:
        return True

    async def progress(self) -> tuple[float, ...]:
        return ()

    async def life(self) -> tuple[float, ...]:
        return ()  # it does not say

    async def kv_tokens(self) -> int:
        return 0  # it does not say

    async def streams(self) -> int | None:
        return None  # it does not say

    async def max_model_len(self) -> int | None:
        return None  # it does not say

    async def mismatch(self) -> str:
        return ""  # nothing speaks against it

    async def produces_a_token(self) -> bool:
        return True

    def close(self) -> None:
        pass


class EchoAnswer:
    """Implements engines.base.Answer."""

    status = 200
    content_type = b"application/json"

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        sink(self._body)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass
