"""The spool: what was written is there after a kill, in order, once; and it is bounded."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from headway.errors import SetupError
from headway.ledger import spool as spool_module
from headway.ledger.entries import Entry
from headway.ledger.segments import entry_line, read_line
from headway.ledger.spool import Spool
from tests.ledger.test_store import reserved, whole_call

pytestmark = pytest.mark.anyio
QUOTA = 2**20


def drop(spool: Spool) -> None:
    """Leave the spool as a kill does: only the system closes its files."""
    os.close(spool._fd)
    os.close(spool._lock)


def all_entries(spool: Spool) -> list[Entry]:
    entries: list[Entry] = []
    while batch := spool.next_batch():
        entries += batch.entries
        spool.shipped(batch)
    return entries


async def test_what_was_written_is_read_in_order_and_deleted_when_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 4_000)
    spool = Spool(tmp_path, QUOTA)
    written = []
    for number in range(100):
        first, *closing = whole_call(f"c{number:03d}")
        spool.reserve(first)
        spool.close_call(closing)
        written += [first, *closing]
    await spool.durable()
    assert len(list(tmp_path.glob("*.jsonl"))) > 5
    assert all_entries(spool) == written
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    assert spool.size_bytes < 10_000
    spool.stop()


def test_lines_of_versions_that_knew_no_sessions_are_read_and_written_alike() -> None:
    line = entry_line(reserved())
    assert b"session" not in line
    assert b"agent" not in line
    assert read_line(line) == ("entry", reserved())


async def test_a_killed_run_leaves_its_calls_under_way_with_what_was_seen_of_them(tmp_path: Path) -> None:
    spool = Spool(tmp_path, QUOTA)
    for name in ("done", "early", "late"):
        spool.reserve(reserved(name))
    spool.seen([("late", 1, "r0", 10, 5), ("done", 1, "r0", 1, 1)])
    spool.seen([("late", 2, "r1", 10, 21)])
    spool.close_call(whole_call("done")[1:])
    with spool._segments[-1].open("ab") as torn:
        torn.write(b'["seen",[["late",2,"r1",10,99')
    drop(spool)
    after = Spool(tmp_path, QUOTA)
    assert set(after.open) == {"early", "late"}
    late = after.open["late"]
    assert (late.attempt, late.replica, late.prompt_tokens, late.output_tokens) == (2, "r1", 10, 21)
    assert after.gateway.split("/")[0] == spool.gateway.split("/")[0]
    assert int(after.gateway.split("/")[1]) == int(spool.gateway.split("/")[1]) + 1
    after.stop()


async def test_calls_under_way_outlive_the_segment_they_began_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2_000)
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(reserved("long"))
    spool.seen([("long", 1, "r0", 7, 3)])
    for number in range(30):
        first, *closing = whole_call(f"c{number}")
        spool.reserve(first)
        spool.close_call(closing)
    all_entries(spool)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    drop(spool)
    after = Spool(tmp_path, QUOTA)
    assert list(after.open) == ["long"]
    assert after.open["long"].output_tokens == 3
    after.stop()


async def test_one_directory_is_one_gateways(tmp_path: Path) -> None:
    spool = Spool(tmp_path, QUOTA)
    with pytest.raises(SetupError, match="another gateway uses the spool"):
        Spool(tmp_path, QUOTA)
    spool.stop()


async def test_it_is_full_at_its_quota_and_calls_can_still_be_closed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 5_000)
    spool.reserve(reserved("open"))
    while not spool.is_full:
        spool.seen([("open", 1, "r0", 1, 1)])
    spool.close_call(whole_call("open")[1:])
    await spool.durable()
    assert [entry.kind for entry in all_entries(spool)] == ["reserved", "served", "refunded", "released"]
    spool.stop()


async def test_a_full_disk_loses_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(reserved("c1"))
    real_write = os.write

    def half_a_line(fd: int, data: bytes) -> int:
        return real_write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half_a_line)
    spool.close_call(whole_call("c1")[1:])
    assert spool.is_full
    with pytest.raises(OSError, match="full"):
        await spool.durable()
    monkeypatch.setattr(os, "write", real_write)
    await spool.durable()
    assert not spool.is_full
    assert [entry.kind for entry in all_entries(spool)] == ["reserved", "served", "refunded", "released"]
    spool.stop()


async def test_waiters_share_a_sync_and_a_cancelled_one_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, QUOTA)
    syncs = 0
    real = os.fdatasync

    def count(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real(fd)

    monkeypatch.setattr(os, "fdatasync", count)

    async def write(number: int) -> None:
        spool.reserve(reserved(f"c{number}"))
        await asyncio.shield(spool.durable())

    tasks = [asyncio.create_task(write(number)) for number in range(50)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[30].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 2
    assert sum(result is None for result in results) == 48
    assert syncs <= 3
    spool.stop()


async def test_a_sync_does_not_overtake_that_of_the_segment_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1_000)
    spool = Spool(tmp_path, QUOTA)
    before = spool._fd
    may_end = threading.Event()
    real = os.fdatasync

    def slow_for_the_first(fd: int) -> None:
        if fd == before:
            may_end.wait(10)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow_for_the_first)
    while spool._fd == before:
        spool.reserve(reserved(f"c{spool.size_bytes}"))
    waiting = asyncio.ensure_future(spool.durable())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.1)
    may_end.set()
    await waiting
    spool.stop()
