"""The means with which the torture run causes faults."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.engines.scripted import Script, running
from headway.http1 import ConnectionPool
from runs.measure.streams import cpu_seconds
from runs.torture.clocks import FaultyClock
from runs.torture.disks import FaultyDisk, joined
from runs.torture.engine_lies import KINDS, Lie, LyingEngine
from runs.torture.links import FaultyLink
from runs.torture.shortage import few_descriptors, little_memory, slow_process

TIMEOUT_S = 60.0  # on a busy machine

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


# --- disks and clocks: each test asks one Python process that has the shims ---


class _Process:
    """A process that evaluates expressions."""

    def __init__(self, env: Mapping[str, str]) -> None:
        loop = "import sys\nfor line in sys.stdin:\n  try: print(repr(eval(line)), flush=True)\n"
        loop += "  except OSError as error: print(repr(errno.errorcode[error.errno]), flush=True)\n"
        loop += "  except MemoryError: print(repr('MemoryError'), flush=True)\n"
        command = [sys.executable, "-c", f"import errno, os, sqlite3, threading, time, uvloop\n{loop}"]
        self._process = subprocess.Popen(
            command, env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        self.pid = self._process.pid

    def __call__(self, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{expression}\n")
        self._process.stdin.flush()
        return ast.literal_eval(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    (tmp_path / "disk").mkdir()
    return FaultyDisk(tmp_path / "disk", tmp_path / "control")


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[FaultyClock]:
    clock = FaultyClock(tmp_path / "clock")
    yield clock
    clock.mend()


@pytest.fixture
def ask(disk: FaultyDisk, clock: FaultyClock) -> Iterator[_Process]:
    process = _Process(joined(disk.env(), clock.env()))
    yield process
    process.end()


def test_a_full_disk_cuts_one_write_short_and_fails_the_next(disk: FaultyDisk, ask: _Process, tmp_path: Path) -> None:
    inside, outside = disk.folder / "file", tmp_path / "file"
    fd = ask(f"os.open({str(inside)!r}, os.O_WRONLY | os.O_CREAT)")
    other = ask(f"os.open({str(outside)!r}, os.O_WRONLY | os.O_CREAT)")
    disk.full(after_bytes=10)
    assert ask(f"os.write({fd}, b'12345678')") == 8
    assert ask(f"os.write({fd}, b'12345678')") == 2
    assert ask(f"os.write({fd}, b'12345678')") == "ENOSPC"
    assert ask(f"os.pwrite({fd}, b'1', 0)") == "ENOSPC"
    assert ask(f"os.writev({fd}, [b'1', b'2'])") == "ENOSPC"
    assert ask(f"os.write({other}, b'12345678')") == 8
    assert disk.failures == 4
    assert inside.read_bytes() == b"1234567812"
    disk.mend()
    assert ask(f"os.writev({fd}, [b'34', b'5'])") == 3


def test_a_read_only_disk_changes_nothing(disk: FaultyDisk, ask: _Process) -> None:
    path = disk.folder / "file"
    path.write_bytes(b"old")
    fd = ask(f"os.open({str(path)!r}, os.O_WRONLY)")
    disk.read_only()
    for expression in (
        f"os.write({fd}, b'new')",
        f"os.ftruncate({fd}, 0)",
        f"os.open({str(path)!r}, os.O_WRONLY)",
        f"os.open({str(disk.folder / 'other')!r}, os.O_WRONLY | os.O_CREAT)",
        f"open({str(path)!r}, 'ab')",
        f"os.rename({str(path)!r}, {str(path)!r} + '2')",
        f"os.unlink({str(path)!r})",
    ):
        assert ask(expression) == "EROFS"
    assert ask(f"open({str(path)!r}).read()") == "old"
    disk.mend()
    assert ask(f"os.write({fd}, b'new')") == 3


def test_syncs_fail_and_are_slow(disk: FaultyDisk, ask: _Process) -> None:
    fd = ask(f"os.open({str(disk.folder / 'file')!r}, os.O_WRONLY | os.O_CREAT)")
    disk.failing_fsync(times=1)
    assert ask(f"os.fsync({fd})") == "EIO"
    assert ask(f"os.fsync({fd})") is None
    disk.failing_fsync()
    assert [ask(f"os.fdatasync({fd})") for _ in range(2)] == ["EIO", "EIO"]
    disk.mend()
    disk.slow_fsync(60)
    began = time.monotonic()
    assert ask(f"os.fdatasync({fd})") is None
    assert time.monotonic() - began >= 0.06


def test_sqlite_meets_a_full_disk(disk: FaultyDisk, ask: _Process) -> None:
    database = f"sqlite3.connect({str(disk.folder / 'books.db')!r}, isolation_level=None)"
    ask(f"globals().__setitem__('db', {database})")
    ask("db.execute('CREATE TABLE t (x)').fetchall()")
    disk.full()
    ask("globals().__setitem__('tried', lambda: db.execute('INSERT INTO t VALUES (1)').fetchall())")
    ask("exec('try: tried()\\nexcept sqlite3.Error as error: globals().__setitem__(\"why\", str(error))')")
    assert ask("why") == "database or disk is full"
    disk.mend()
    assert ask("tried()") == []
    assert ask("db.execute('SELECT * FROM t').fetchall()") == [(1,)]


def test_a_clock_is_stepped_and_drifts_and_monotonic_time_does_not(clock: FaultyClock, ask: _Process) -> None:
    def ahead_s() -> float:
        told: float = ask("time.time()")
        return told - time.time()

    assert abs(ahead_s()) < 0.2
    clock.step(3600)
    monotonic_s = ask("time.monotonic()")
    assert ahead_s() == pytest.approx(3600, abs=0.2)
    assert ask("time.monotonic()") - monotonic_s < 2
    assert ask("threading.Event().wait(0.05)") is False  # neither at once nor an hour late
    assert ask("uvloop.run(__import__('asyncio').sleep(0.05))") is None
    clock.step(-7200)
    assert ahead_s() == pytest.approx(-3600, abs=0.2)
    clock.mend()
    clock.drift(3)
    time.sleep(0.3)
    assert 0.6 < ahead_s() < 30
    assert ahead_s() == pytest.approx(clock.offset_s, abs=0.3)
    clock.mend()
    assert abs(ahead_s()) < 0.2


# --- engines that lie ---


async def _ask(url: str, *, stream: bool, tokens: int = 6) -> bytes:
    """The body of the answer, as far as it comes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    headers = ((b"x-request-id", b"call-1"), (b"connection", b"close"))
    _, told = await ConnectionPool(url).exchange(b"POST", "/v1/chat/completions", msgspec.json.encode(body), headers)
    return told


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_lies_and_records_the_truth(stream: bool) -> None:
    script = Script("m", 0.001, ((1, 0.001),), 8)
    said = {}
    async with running(script, kind=LyingEngine) as engine:
        assert isinstance(engine, LyingEngine)
        for kind in KINDS:
            engine.tell(Lie(kind))
            said[kind] = await _ask(engine.url, stream=stream)
            assert engine.lies["call-1"] == kind
            assert engine.steps.requests["call-1"].tokens_sent == 6
        engine.tell(Lie())
        honest = await _ask(engine.url, stream=stream)
    assert b'"completion_tokens":6' in honest
    assert b'"completion_tokens":22' in said["claims more"]
    assert b'"completion_tokens":3' in said["claims fewer"]
    assert b'"usage"' not in said["no usage"]
    assert said["empty body"] == b""
    assert b'"content":"' not in said["no text"].replace(b'"content":""', b"")
    assert b"chatcmpl-nobody" in said["another's id"]
    assert b"chatcmpl-call-1" not in said["another's id"]
    assert said["garbage events"].split(b"\n\n")[0] != honest.split(b"\n\n")[0]


# --- shortage ---


@pytest.fixture
def busy() -> Iterator[_Process]:
    process = _Process({})
    process("1")  # it runs
    yield process
    process.end()


def test_descriptors_run_short(busy: _Process) -> None:
    with few_descriptors(busy.pid, spare=1):  # no matter how high its highest is
        kept = busy("os.open('/dev/null', os.O_RDONLY)")
        assert busy("os.open('/dev/null', os.O_RDONLY)") == "EMFILE"
    assert busy("os.open('/dev/null', os.O_RDONLY)") > kept


def test_memory_runs_short(busy: _Process) -> None:
    take = "[len(bytes(50_000_000))]"
    with little_memory(busy.pid):
        assert busy(take) == "MemoryError"
    assert busy(take) == [50_000_000]


@pytest.mark.anyio
async def test_a_process_runs_for_a_share_of_the_time(busy: _Process) -> None:
    spin = "exec('end = time.monotonic() + 0.6\\nwhile time.monotonic() < end: pass')"
    began_s = time.monotonic()
    async with slow_process(busy.pid, 0.2):
        await asyncio.to_thread(busy, spin)
        used_s = cpu_seconds(busy.pid)
    assert used_s < 0.6 * (time.monotonic() - began_s) + 0.3  # what it used to start is in it
    assert busy("1 + 1") == 2
