"""The relay by itself: what a client that does not read changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.api.openai_meter import OpenAIForm
from headway.api.proof import proof_of
from headway.engines.base import Pulse
from headway.gateway.billing import make_receipt
from headway.gateway.relay import Relay
from headway.wire import Grant

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
    grant = Grant("fast", "fast", "r0", None, FLOOR_TPS)
    meter = OpenAIForm(wants_usage=True).meter(grant)
    finals: list[int] = []
    tell: Callable[[], None] = lambda: finals.append(meter.usage().output_tokens)  # noqa: E731
    relay = Relay(engine, reader, meter, Pulse(), lambda: engine.now, 30.0, tell)  # type: ignore[arg-type]
    await relay.run()
    assert meter.is_complete
    assert finals == [TOKENS]  # told once, with the engine's last count
    receipt = make_receipt(
        grant,
        "finished",
        meter,
        is_delivered=True,
        reader_was_slow=relay.reader_was_slow,
        seat_us=None,
        answer_s=1.0,
        boardings=1,
    )
    return proof_of(receipt)


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
