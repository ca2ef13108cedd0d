"""The prober of one replica: what it asks, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headway.core.types import Event, Replica, ReplicaCacheLost, ReplicaDown, ReplicaUp
from headway.engines.base import Pulse
from headway.engines.probe import LIFE_S, Prober, is_another_life
from headway.engines.scripted import Script, running
from headway.engines.vllm import PROGRESS_METRICS, VLLMEngine, read_kv_tokens, read_life, read_metrics
from headway.errors import EngineLost

pytestmark = pytest.mark.anyio


class FakeEngine:
    """Healthy, and with a page of metrics that a test writes."""

    name = "r0"

    def __init__(self) -> None:
        self.pulse = Pulse()
        self.page = b"vllm:num_requests_running 1\n"

    async def is_healthy(self) -> bool:
        return True

    async def life(self) -> tuple[float, ...]:
        return read_life(self.page)

    async def kv_tokens(self) -> int:
        return 0

    async def max_model_len(self) -> int | None:
        return None

    async def mismatch(self) -> str:
        return ""

    async def produces_a_token(self) -> bool:
        return True

    async def progress(self) -> tuple[float, ...]:
        return read_metrics(self.page, PROGRESS_METRICS)


def prober_of(engine: FakeEngine, told: list[Event], *, aboard: int, interval_s: float) -> Prober:
    made: Any = engine
    return Prober(
        Replica("r0", "m", 8),
        made,
        tell=told.append,
        aboard=lambda _name: aboard,
        clock=time.monotonic,
        interval_s=interval_s,
        stall_s=60.0,
    )


async def until(told: list[Event], count: int) -> None:
    async with asyncio.timeout(20):
        while len(told) < count:
            await asyncio.sleep(0.001)


async def test_a_page_of_metrics_that_cannot_be_read_is_a_failed_probe_and_the_prober_goes_on() -> None:
    engine, told = FakeEngine(), list[Event]()
    prober = prober_of(engine, told, aboard=1, interval_s=0.001)
    task = asyncio.create_task(prober.run())
    await until(told, 1)
    engine.page = b'vllm:num_requests_running{a="b"} oops\n'
    await until(told, 2)
    engine.page = b"vllm:num_requests_running 1\n"
    await until(told, 3)
    assert not task.done()
    task.cancel()
    assert [type(event) for event in told[:3]] == [ReplicaUp, ReplicaDown, ReplicaUp]


@pytest.mark.parametrize(
    "line", [b"vllm:num_requests_running x", b"vllm:num_requests_running NaN", b'vllm:num_requests_running{a="b"}']
)
def test_metrics_that_are_no_numbers_cannot_be_read(line: bytes) -> None:
    with pytest.raises(EngineLost, match="metrics cannot be read"):
        read_metrics(line + b"\n", PROGRESS_METRICS)


def test_the_size_of_the_memory_is_read_from_the_cache_config() -> None:
    line = b'vllm:cache_config_info{block_size="16",engine="%d",kv_cache_size_tokens="%b",num_gpu_blocks="9"} 1.0\n'
    assert read_kv_tokens(b"x 1\n" + line % (0, b"4096") + line % (1, b"4096")) == 8192
    for unknown in (b"None", b"-1", b"9" * 13, b""):
        assert read_kv_tokens(line % (0, unknown)) == 0
    assert read_kv_tokens(b"") == 0


async def test_a_replica_comes_up_with_the_memory_that_its_engine_has() -> None:
    async with running(Script("m", max_num_seqs=2, max_model_len=100)) as engine:
        told: list[Event] = []
        prober = Prober(
            Replica("r0", "m", 2),
            VLLMEngine("r0", engine.url, "m"),
            tell=told.append,
            aboard=lambda _name: 0,
            clock=lambda: 0.0,
            interval_s=60.0,
            stall_s=60.0,
        )
        task = asyncio.create_task(prober.run())
        await until(told, 1)
        task.cancel()
        prober.engine.close()
    assert told == [ReplicaUp(Replica("r0", "m", 2, kv_tokens=200))]
    assert prober.max_model_len == 100


async def test_a_replica_that_is_changed_while_its_memory_is_read_stays_changed() -> None:
    engine, told = FakeEngine(), list[Event]()
    prober = prober_of(engine, told, aboard=0, interval_s=60.0)

    async def kv_tokens() -> int:
        prober.replica = Replica("r0", "m", 4)
        return 100

    engine.kv_tokens = kv_tokens  # type: ignore[method-assign]
    task = asyncio.create_task(prober.run())
    await until(told, 1)
    task.cancel()
    assert told == [ReplicaUp(Replica("r0", "m", 4, kv_tokens=100))]


def test_a_page_of_metrics_is_bounded() -> None:
    with pytest.raises(EngineLost, match="larger than"):
        read_metrics(b"x 1\n" * 2**21, PROGRESS_METRICS)


LIFE = b"process_start_time_seconds %d\nvllm:prompt_tokens_total %d\nvllm:generation_tokens_total 7\n"


@pytest.mark.parametrize(
    ("now", "is_another"),
    [
        ((5.0, 10.0, 7.0), False),
        ((5.0, 12.0, 7.0), False),
        ((6.0, 12.0, 8.0), True),
        ((5.0, 9.0, 7.0), True),
        ((5.0, 12.0, 0.0), True),
    ],
)
def test_an_engine_that_was_started_again_is_known_by_its_counts(now: tuple[float, ...], is_another: bool) -> None:
    assert is_another_life((5.0, 10.0, 7.0), now) is is_another
    assert not is_another_life((), now)  # nothing was known


async def test_an_engine_that_was_started_again_between_two_checks_has_lost_its_cache() -> None:
    engine, told, now = FakeEngine(), list[Event](), 0.0
    made: Any = engine
    prober = Prober(
        Replica("r0", "m", 8),
        made,
        tell=told.append,
        aboard=lambda _name: 0,
        clock=lambda: now,
        interval_s=0.001,
        stall_s=60.0,
    )
    engine.page = LIFE % (100, 50)
    task = asyncio.create_task(prober.run())
    await until(told, 1)
    engine.page = LIFE % (100, 60)
    now += LIFE_S
    await asyncio.sleep(0.02)
    assert told == [ReplicaUp(Replica("r0", "m", 8))]
    for page in (b"oops", LIFE % (200, 60), LIFE % (200, 1)):
        engine.page = page
        now += LIFE_S
        await asyncio.sleep(0.02)
    engine.page = LIFE % (300, 1)
    prober.probe_now()  # a call has failed: it is asked for a token before any call boards again
    await until(told, 5)
    task.cancel()
    assert told[1:] == [ReplicaCacheLost("r0")] * 3 + [ReplicaUp(Replica("r0", "m", 8))]
