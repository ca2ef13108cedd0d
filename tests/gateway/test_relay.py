"""The relay by itself: what a client that does not read changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.api.openai import OpenAIMeter
from headway.engines.base import Pulse
from headway.gateway.relay import Relay
from headway.wire import Served

pytestmark = pytest.mark.anyio
TOKENS = 40
FLOOR_TPS = 10.0


class Reader:
    """Stops reading once, in the middle, for as long as an engine needs for ten tokens."""

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.pause, self.resume = pause, resume

    def write(self, data: bytes) -> None:
        self.last = data

    def abandon(self) -> None:
        raise AssertionError("it read again in time")


class Engine:
    """Gives a token every twentieth of a second, on the test's own clock."""

    def __init__(self, reader: Reader, paused_s: float) -> None:
        self.now = 100.0
        self._reader = reader
        self._paused_s = paused_s

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        usage = '"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":9}'
        for number in range(1, TOKENS + 1):
            if number == TOKENS // 2 and self._paused_s:
                self._reader.pause()
                self.now += self._paused_s
                self._reader.resume()
            self.now += 0.05
            chunk = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}],' + usage % number + "}\n\n"
            sink(chunk.encode())
        sink(b'data: {"choices":[],' + (usage % TOKENS).encode() + b"}\n\n")
        sink(b"data: [DONE]\n\n")

    def pause(self) -> None: ...

    def resume(self) -> None: ...


async def relayed(paused_s: float) -> dict[str, Any]:
    reader = Reader()
    engine = Engine(reader, paused_s)
    meter = OpenAIMeter(wants_usage=True, wants_continuous_usage=False)
    meter.served = Served("fast", "fast", None, FLOOR_TPS)
    await Relay(engine, reader, meter, Pulse(), lambda: engine.now, stall_s=30.0).run()  # type: ignore[arg-type]
    assert meter.complete
    return meter.served.proof(0, meter.usage()[1], meter.speed_tps())


async def test_a_stream_that_is_read_as_it_comes_has_the_engines_speed() -> None:
    proof = await relayed(paused_s=0.0)
    assert proof["tokens_per_second"] == pytest.approx(20.0)
    assert proof["kept"] is True
    assert "reader_was_slow" not in proof


async def test_a_client_that_holds_the_stream_up_is_not_told_of_a_missed_floor() -> None:
    proof = await relayed(paused_s=10.0)
    assert proof["tokens_per_second"] < FLOOR_TPS
    assert proof["kept"] is None
    assert proof["reader_was_slow"] is True


async def test_a_floor_that_was_kept_although_the_client_held_the_stream_up_is_kept() -> None:
    proof = await relayed(paused_s=0.5)
    assert proof["kept"] is True
    assert proof["reader_was_slow"] is True
