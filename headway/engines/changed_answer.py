"""An engine's answer whose stream is changed on its way; all else is as the engine says it."""

from __future__ import annotations

from collections.abc import Callable

from headway.engines.base import Answer


class ChangedAnswer:
    """Implements base.Answer but for `pipe`, which is the change."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        self._answer = answer

    @property
    def content_type(self) -> bytes:
        return self._answer.content_type

    async def read(self) -> bytes:
        return await self._answer.read()

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        self._answer.pause()

    def resume(self) -> None:
        self._answer.resume()

    def close(self) -> None:
        self._answer.close()
