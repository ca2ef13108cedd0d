"""The preStop of an engine, as the kubelet runs it, against the scripted engine. CPython only: the image has it."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pytest

from headway.engines.scripted import Script, running
from headway.local.engine_process import free_port
from tests.deploy.rendered import KUBERNETES
from tests.running import post

pytestmark = pytest.mark.anyio
SCRIPT = KUBERNETES / "base" / "engines" / "wait_until_idle.py"


async def waits_s(url: str, leave_s: float, drain_s: float) -> float:
    """Run it to its end. Returns how long it took."""
    began_at = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), url, str(leave_s), str(drain_s))
    assert await asyncio.wait_for(process.wait(), 60) == 0
    return time.monotonic() - began_at


async def stream(url: str, tokens: int) -> bytes:
    """Read a stream to its end."""
    asked = {"model": "scripted", "prompt": "x", "max_tokens": tokens, "stream": True}
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(post("/v1/completions", json.dumps(asked).encode(), b"connection: close"))
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_an_idle_engine_serves_until_headway_has_left_it() -> None:
    async with running(Script()) as engine:
        assert 2.0 <= await waits_s(engine.url, leave_s=2.0, drain_s=30.0) < 15.0


async def test_a_stream_runs_to_its_end() -> None:
    async with running(Script(step_s=((1, 0.04),))) as engine:
        answer = asyncio.create_task(stream(engine.url, tokens=100))
        while not engine.steps.batch:
            await asyncio.sleep(0.01)
        assert await waits_s(engine.url, leave_s=0.0, drain_s=50.0) > 2.0
        assert not engine.steps.batch
        assert (await answer).rstrip().endswith(b"0")  # the chunk that ends the body
        assert b"[DONE]" in answer.result()


async def test_it_gives_up_in_time() -> None:
    async with running(Script(step_s=((1, 5.0),))) as engine:
        answer = asyncio.create_task(stream(engine.url, tokens=100))
        while not engine.steps.batch:
            await asyncio.sleep(0.01)
        assert 2.0 <= await waits_s(engine.url, leave_s=1.0, drain_s=1.0) < 15.0
        answer.cancel()


async def test_it_does_not_wait_for_an_engine_that_is_not_there() -> None:
    assert await waits_s(f"http://127.0.0.1:{free_port()}", leave_s=60.0, drain_s=60.0) < 15.0
