"""The means with which the torture run causes faults."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runs.torture.links import FaultyLink

TIMEOUT_S = 20.0

# --- links ---


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A target that answers with what it gets, and ends when its client does."""
    try:
        while data := await reader.read(100_000):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def _echo_link() -> AsyncIterator[FaultyLink]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    link = FaultyLink("echo", server.sockets[0].getsockname()[1])
    await link.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield link
    finally:
        await link.stop()
        server.close()


@pytest.mark.anyio
async def test_a_whole_link_carries_everything_and_the_end_of_each_direction() -> None:
    sent = random.Random(1).randbytes(3_000_000)  # more than all buffers: back-pressure is needed
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(sent)
        writer.write_eof()
        await asyncio.sleep(0.1)  # nobody reads: the link must not keep it all in memory
        assert await reader.read(-1) == sent
        writer.close()
        assert link.connections == 1


@pytest.mark.anyio
async def test_a_frozen_link_takes_connections_and_shows_no_end() -> None:
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        link.freeze()
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", link.port)
        late_writer.write(b"late")
        writer.write(b"two")
        writer.write_eof()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read(1)
        link.mend()
        assert await reader.read(-1) == b"two"
        assert await late_reader.readexactly(4) == b"late"
        for one in (writer, late_writer):
            one.close()


@pytest.mark.anyio
async def test_a_closed_link_resets() -> None:
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        await reader.readexactly(3)
        link.close()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        link.mend()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        writer.close()


@pytest.mark.anyio
async def test_a_slow_link_delays_limits_and_splits_and_loses_nothing() -> None:
    sent = random.Random(2).randbytes(3_000)
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.slow(delay_s=0.03, bytes_per_s=20_000, split=7)
        began = time.monotonic()
        writer.write(sent)
        writer.write_eof()
        first = await reader.read(100)
        # There and back. The loop's clock is of whole milliseconds, and may be one behind.
        assert time.monotonic() - began >= 0.06 - 0.004
        assert first + await reader.read(-1) == sent
        assert time.monotonic() - began >= 0.1
        writer.close()
        link.slow(delay_s=60)
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"late")
        await asyncio.sleep(0.05)
        link.mend()
        assert await reader.readexactly(4) == b"late"
        writer.close()


@pytest.mark.anyio
async def test_a_corrupt_link_changes_as_many_bytes_as_it_says() -> None:
    sent = bytes(10_000)
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.corrupt(random.Random(3), 0.01, most=40)
        writer.write(sent)
        got = await reader.readexactly(len(sent))
        assert link.flipped_bytes == 40 == len(sent) - got.count(0)
        link.mend()
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()


@pytest.mark.anyio
async def test_a_truncated_stream_ends_without_an_error() -> None:
    async with _echo_link() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.truncate(5)
        writer.write(b"all of this")
        assert await reader.read(-1) == b"all o"
        writer.close()
        assert link.truncated == 1
        link.mend()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"all of this")
        assert await reader.readexactly(11) == b"all of this"
        writer.close()


@pytest.mark.anyio
async def test_a_link_without_a_target_resets() -> None:
    async with _echo_link() as link:
        link.target_port = 1
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
