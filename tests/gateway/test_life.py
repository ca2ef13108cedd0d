"""Clients that leave or do not read, and a gateway that is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
STEADY = Script(model=MODEL, first_token_s=0.02, step_s=((1, 0.005),))
LONG = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":5000}'
SHORT = LONG.replace(b"5000", b"40")


async def until_engine_is_idle(engine: ScriptedEngine) -> None:
    async with asyncio.timeout(10):
        while engine.record()["running"] or engine.record()["waiting"]:
            await asyncio.sleep(0.005)


async def leave_after(here: Running, body: bytes, bytes_read: int) -> None:
    """Open a call, read that much of its answer, and go away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(post("/v1/chat/completions", body))
    if bytes_read:
        await reader.readexactly(bytes_read)
    else:
        while not here.gateway.machine.calls:
            await asyncio.sleep(0.001)
    writer.transport.abort()


@pytest.mark.parametrize("bytes_read", [0, 300, 5000])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_leaves_frees_its_seat_and_stops_the_engine(bytes_read: int, streaming: bool) -> None:
    async with running(STEADY) as engine, running_gateway(config_for([engine])) as here:
        body = LONG if streaming else LONG.replace(b"true", b"false")
        await leave_after(here, body, bytes_read if streaming else 0)
        await here.until_empty()
        await until_engine_is_idle(engine)
        assert here.gateway.machine.pools[MODEL].aboard(engine.url) == 0


async def test_a_client_that_leaves_while_held_never_reaches_an_engine() -> None:
    async with running(STEADY) as engine, running_gateway(config_for([engine], seats=1)) as here:
        seated = asyncio.create_task(here.raw(post("/v1/chat/completions", SHORT)))
        while not engine.record()["running"]:
            await asyncio.sleep(0.001)
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(post("/v1/chat/completions", LONG))
            while not here.gateway.machine.pools[MODEL].waiting.held:
                await asyncio.sleep(0.001)
            writer.transport.abort()
            while here.gateway.machine.pools[MODEL].waiting.held:
                await asyncio.sleep(0.001)
        assert b"[DONE]" in await seated
        await here.until_empty()
        assert len(engine.record()["requests"]) <= 2  # the probe's token, and the one call


async def test_nothing_is_left_of_many_clients_that_come_and_go() -> None:
    """The short form of runs/leaks.sh."""
    async with running(STEADY) as engine, running_gateway(config_for([engine], seats=4)) as here:
        before = len(asyncio.all_tasks())
        sockets = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            leaving = [leave_after(here, LONG, 300 if number % 2 else 0) for number in range(10)]
            await asyncio.gather(*leaving)
        await here.until_empty()
        await until_engine_is_idle(engine)
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
        assert here.gateway.machine.pools[MODEL].waiting.held == 0
        # Idle connections to the engine are kept for the next call; there are never more of them than seats.
        assert len(os.listdir("/proc/self/fd")) <= sockets + 2 * (4 + 1)


async def test_a_client_that_does_not_read_is_cut_off_and_harms_nobody() -> None:
    fast = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.0005),), max_model_len=200_000)
    async with running(fast) as engine, running_gateway(config_for([engine], reader_stall_s=0.5)) as here:
        with socket.create_connection(("127.0.0.1", here.port)) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(post("/v1/chat/completions", LONG.replace(b"5000", b"100000")))
            async with asyncio.timeout(60):
                while not here.gateway.machine.calls:
                    await asyncio.sleep(0.01)
                while here.gateway.machine.calls:
                    answer = await here.raw(post("/v1/chat/completions", SHORT))
                    assert b"[DONE]" in answer
        await until_engine_is_idle(engine)
        record = engine.record()
        assert record["aborted"] == 1
        # What it was sent is bounded: our buffer, and what the kernel took.
        [unread] = [request.tokens_sent for request in record["requests"].values() if request.state == "aborted"]
        assert unread < 90_000


@contextmanager
def gateway_process(
    tmp_path: Path, engine_url: str, *arguments: str, drain_timeout_s: float = 20.0, unready_s: float = 0.0
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    config = tmp_path / "headway.toml"
    config.write_text(
        f"[gateway]\nport = 0\nprobe_interval_s = 0.1\ndrain_timeout_s = {drain_timeout_s}\nunready_s = {unready_s}\n"
        f'[[models]]\nname = "{MODEL}"\n[[models.replicas]]\nurl = "{engine_url}"\nseats = 8\n'
    )
    command = [sys.executable, "-m", "headway", "serve", "--config", str(config), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "listens on port" not in said:
                said = process.stdout.readline()
                assert said, "the gateway ended before it listened"
            yield process, int(said.split()[-1].strip("."))
        finally:
            process.kill()


async def read_until_up(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if b" 200 " in answer:
                return
            await asyncio.sleep(0.02)


async def test_sigterm_lets_running_streams_end_and_takes_no_new_calls(tmp_path: Path) -> None:
    async with running(STEADY) as engine:
        with gateway_process(tmp_path, engine.url) as (process, port):
            await read_until_up(port)
            stream, stream_writer = await asyncio.open_connection("127.0.0.1", port)
            kept, kept_writer = await asyncio.open_connection("127.0.0.1", port)
            stream_writer.write(post("/v1/chat/completions", LONG.replace(b"5000", b"200")))
            await stream.readuntil(b"data: ")
            process.send_signal(signal.SIGTERM)
            # The port closes; a connection that is already there is told so in its dialect.
            async with asyncio.timeout(10):
                while True:
                    try:
                        _, probe = await asyncio.open_connection("127.0.0.1", port)
                        probe.close()
                        await asyncio.sleep(0.01)
                    except ConnectionRefusedError:
                        break
            rest = await asyncio.wait_for(stream.read(), 20)
            assert b"[DONE]" in rest
            assert await asyncio.to_thread(process.wait, 20) == 0
            for writer in (stream_writer, kept_writer):
                writer.close()
            assert await kept.read() == b""


async def test_calls_are_taken_until_a_load_balancer_has_noticed(tmp_path: Path) -> None:
    async with running(STEADY) as engine:
        with gateway_process(tmp_path, engine.url, unready_s=1.0) as (process, port):
            await read_until_up(port)
            process.send_signal(signal.SIGTERM)

            async def ask(request: bytes) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                answer = await asyncio.wait_for(reader.read(), 20)
                writer.close()
                return answer

            ready = b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
            async with asyncio.timeout(10):
                while b" 503 " not in await ask(ready):
                    pass
            assert b"[DONE]" in await ask(post("/v1/chat/completions", SHORT, b"connection: close"))
            assert await asyncio.to_thread(process.wait, 20) == 0


async def test_when_the_drains_time_is_up_streams_are_told(tmp_path: Path) -> None:
    async with running(STEADY) as engine:
        with gateway_process(tmp_path, engine.url, drain_timeout_s=1.0) as (process, port):
            await read_until_up(port)
            engine.faults = Faults(slow_factor=100.0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post("/v1/messages", LONG))
            await reader.readuntil(b"event: ")
            process.send_signal(signal.SIGTERM)
            while b"event: error" not in (line := await asyncio.wait_for(reader.readline(), 40)):
                assert line, "the stream ended without a word"
            assert b"message_stop" not in await reader.read()
            assert await asyncio.to_thread(process.wait, 20) == 1
            writer.close()


async def test_neither_prompts_nor_keys_are_written_down(tmp_path: Path) -> None:
    secret = "canary-7f3a"
    async with running(STEADY) as engine:
        record = tmp_path / "record.jsonl"
        with gateway_process(tmp_path, engine.url, "--record", str(record)) as (process, port):
            await read_until_up(port)
            engine.faults = Faults(die_after_tokens=3)
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions", f"/{secret}"):
                body = LONG.replace(b'"hi"', f'"{secret}"'.encode())
                for wrong in (b"", b"x"):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(post(path, body + wrong, f"authorization: Bearer {secret}".encode()))
                    await reader.read()
                    writer.close()
            process.send_signal(signal.SIGTERM)
            output, _ = await asyncio.to_thread(process.communicate)
            assert "lost replica" in output
            assert secret not in output
            assert secret not in record.read_text()


async def test_a_client_that_hangs_up_at_the_last_event_was_served() -> None:
    async with running(STEADY) as engine, running_gateway(config_for([engine])) as here:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write(post("/v1/chat/completions", SHORT))
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), 10)
            writer.transport.abort()
        await here.until_empty()
        page = here.gateway.metrics.page().decode()
        assert 'headway_calls_total{model="scripted",outcome="finished",tier="standard"} 20.0' in page
