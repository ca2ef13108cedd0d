"""A disk that fails: nothing that was said to be on it is forgotten, and nothing unreadable is in the way."""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.ledger import spool as spool_module
from headway.ledger.entries import Entry
from headway.ledger.segments import entry_line
from headway.ledger.spool import Spool
from tests.ledger.test_spool import QUOTA, all_entries, drop
from tests.ledger.test_store import reserved, whole_call

pytestmark = pytest.mark.anyio


def fail(*_: object) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def bad_lines(spool: Path) -> list[bytes]:
    lines = [line for path in (spool / "bad").glob("*") for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]
    return [line.split(b" ", 1)[1] for line in lines]


async def test_whichever_byte_is_damaged_the_other_lines_are_shipped_and_the_line_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "good", QUOTA)
    written = whole_call("c1")[:3]
    for entry in written:
        spool.add(entry)
    segment = spool._segments[0].name
    spool.stop()
    content = (tmp_path / "good" / segment).read_bytes()
    first = content.index(b"\n") + 1
    ends = [at for at in range(first, len(content)) if content[at] == ord("\n")]
    for at in sorted({*range(first, len(content), 11), *ends}):
        for damage in (b"\xff", bytes([content[at] ^ 1])):
            directory = tmp_path / f"{at}-{damage.hex()}"
            directory.mkdir()
            (directory / segment).write_bytes(content[:at] + damage + content[at + 1 :])
            check_damage(directory, written)


def check_damage(directory: Path, written: list[Entry]) -> None:
    Spool(directory, QUOTA).stop()
    spool = Spool(directory, QUOTA)  # also after a restart, a line is set aside once
    shipped = all_entries(spool)
    missing = [entry for entry in written if entry not in shipped]
    assert [entry for entry in written if entry in shipped] == shipped, "an entry is as it was, or not there"
    assert spool.bad_lines == len(bad_lines(directory)) == (1 if missing else 0)
    # All bytes of the lines are set aside, but for their end, if it is there.
    size = sum(len(entry_line(entry)) for entry in missing)
    assert sum(map(len, bad_lines(directory))) in ({size - 1, size} if missing else {0})
    spool.stop()


@pytest.mark.parametrize(
    "figures",
    [
        {"output_tokens": 1.5},
        {"prompt_tokens": -1_000_000},
        {"prompt_tokens": None},
        {"amount": "10"},
        {"amount": -5},
        {"amount": 2**70},
        {"attempt": 2**40},
        {"model": "a\0b"},
        {"kind": "gift"},
        {"day": "tomorrow"},
    ],
    ids=str,
)
async def test_an_odd_figure_is_set_aside_and_named_and_the_rest_is_shipped(
    tmp_path: Path, figures: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, QUOTA)
    odd = msgspec.structs.replace(reserved("odd"), **figures)
    for entry in (reserved("before"), odd, reserved("after")):
        spool.add(entry)
    with caplog.at_level(logging.ERROR):
        assert [entry.call_id for entry in all_entries(spool)] == ["before", "after"]
    assert "000000000001.jsonl" in caplog.text
    assert spool.bad_lines == 1
    assert bad_lines(tmp_path) == [entry_line(odd).rstrip(b"\n")]
    drop(spool)
    after = Spool(tmp_path, QUOTA)
    assert set(after.open) == {"before", "after"}
    assert after.bad_lines == 1
    after.stop()


async def test_without_a_descriptor_for_the_next_segment_the_current_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2_000)
    spool = Spool(tmp_path, QUOTA)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        for number in range(20):
            spool.reserve(reserved(f"c{number:02d}"))
        await spool.durable()
        assert not spool.is_full
        assert len(spool._segments) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    spool.reserve(reserved("c20"))
    assert len(spool._segments) == 2
    assert [entry.call_id for entry in all_entries(spool)] == [f"c{number:02d}" for number in range(21)]
    spool.stop()


async def test_a_segment_whose_head_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1_000)
    spool = Spool(tmp_path, QUOTA)
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:10] if b'["open"' in data else data))
    for number in range(9):
        spool.reserve(reserved(f"c{number}"))
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    monkeypatch.setattr(os, "write", real_write)
    assert len(all_entries(spool)) == 9
    assert spool.bad_lines == 0
    spool.stop()


class FailingDisk:
    """Fails the syncs of one descriptor, once, as the system does: the error is told to the first who asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fd: int) -> None:
        self.fd: int | None = fd
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        if fd == self.fd:
            self.fd = None
            raise OSError(errno.EIO, "Input/output error")
        self._real(fd)


async def test_an_error_of_a_segments_last_sync_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2_000)
    spool = Spool(tmp_path, QUOTA)
    failed, disk = spool._segments[0], FailingDisk(monkeypatch, spool._fd)
    names: list[str] = []
    while len(spool._segments) == 1:
        names.append(f"c{len(names)}")
        spool.reserve(reserved(names[-1]))
    with pytest.raises(OSError, match="Input/output error"):
        await spool.durable()
    assert disk.fd is None
    await spool.durable()
    assert not spool.is_full
    failed.write_bytes(b"")  # what the power loss leaves of it
    assert [entry.call_id for entry in all_entries(spool)] == names
    spool.stop()


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_after_a_failed_sync_the_entries_are_written_to_another_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_thread: bool
) -> None:
    spool = Spool(tmp_path, QUOTA)
    spool._sync_s = 1.0 if in_a_thread else 0.0
    for entry in whole_call("before"):
        spool.add(entry)
    await spool.durable()
    good = spool._segments[0].read_bytes()
    spool.reserve(reserved("c1"))
    spool.seen([("c1", 1, "r0", 10, 5)])
    spool.close_call(whole_call("c1")[1:])
    spool.reserve(reserved("c2"))
    failed = spool._segments[0]
    FailingDisk(monkeypatch, spool._fd)
    with pytest.raises(OSError, match="Input/output error"):
        await spool.durable()
    assert spool.is_full, "a new call first tries again"
    await spool.durable()
    assert not spool.is_full
    failed.write_bytes(good)  # what the power loss leaves of it
    drop(spool)
    after = Spool(tmp_path, QUOTA)
    assert list(after.open) == ["c2"], "c1 is closed, though its reservation was written again"
    shipped = [entry.id for entry in all_entries(after)]
    assert shipped == [entry.id for entry in [*whole_call("before"), *whole_call("c1"), reserved("c2")]]
    after.stop()


async def test_without_memory_for_a_thread_syncs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, QUOTA)
    spool._sync_s = 1.0  # in a thread

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", start)
        spool.reserve(reserved("c1"))
        await spool.durable()
    spool.stop()


async def test_a_sync_that_cannot_begin_is_said_and_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every call waits for it for good, with its seat."""
    spool = Spool(tmp_path, QUOTA)
    spool._sync_s = 1.0

    def submit(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(spool._thread, "submit", submit)
        spool.reserve(reserved("c1"))
        with pytest.raises(OSError, match="allocate memory"):
            await spool.durable()
    await spool.durable()
    assert not spool.is_full
    spool.stop()


async def test_a_sync_that_fails_at_the_end_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(reserved("c1"))
    failed = spool._segments[0]
    FailingDisk(monkeypatch, spool._fd)
    spool.stop()
    failed.unlink()
    after = Spool(tmp_path, QUOTA)
    assert [entry.call_id for entry in all_entries(after)] == ["c1"]
    assert list(after.open) == ["c1"]
    after.stop()


class HalfAFile:
    """A file whose second half the disk cannot read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._at = 0
        self._half = os.fstat(file.fileno()).st_size // 2

    def __enter__(self) -> HalfAFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, offset: int) -> None:
        self._at = self._file.seek(offset)

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self._at += len(line)
            if self._at > self._half:
                raise OSError(errno.EIO, "Input/output error")
            yield line


async def test_a_segment_that_the_disk_cannot_read_is_set_aside_after_what_comes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, QUOTA)
    for name in ("c0", "c1"):
        for entry in whole_call(name):
            spool.add(entry)
    broken, real_open = spool._segments[0], Path.open
    assert spool._begin_segment()
    spool.add(reserved("c2"))
    await spool.durable()

    def opened(path: Path, *values: Any, **more: Any) -> Any:
        file = real_open(path, *values, **more)
        return HalfAFile(file) if path == broken else file

    monkeypatch.setattr(Path, "open", opened)
    shipped = [entry.id for entry in all_entries(spool)]
    assert shipped == [*(entry.id for entry in whole_call("c0")[:3]), "c2:1:reserved"]
    assert (tmp_path / "bad" / f"{broken.name}.unreadable").exists()
    assert spool.bad_lines == 1
    spool.stop()


async def test_no_call_begins_that_the_disk_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, QUOTA)
    assert spool.reserve(reserved("c1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        assert not spool.reserve(reserved("c2"))
        spool.close_call(whole_call("c1")[1:])
        assert not spool.reserve(reserved("c3"))
        assert list(spool.open) == []
    assert spool.reserve(reserved("c4"))
    await spool.durable()
    assert [entry.call_id for entry in all_entries(spool)] == ["c1"] * 4 + ["c4"]
    spool.stop()


async def test_a_segment_that_was_being_begun_when_the_process_died_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first line says which calls are running: the ends of the others may be in what was not written any more."""
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(reserved("c1"))
    real_write = os.write

    def killed(fd: int, data: bytes) -> int:
        real_write(fd, data[: len(data) - 10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        patch.setattr(os, "ftruncate", fail)
        spool.close_call(whole_call("c1")[1:])  # now a segment must be begun
        patch.setattr(os, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            spool.retry()
    drop(spool)
    spool = Spool(tmp_path, QUOTA)
    assert list(spool.open) == ["c1"]
    assert [entry.kind for entry in all_entries(spool)] == ["reserved"]
    spool.stop()


@pytest.mark.parametrize("written", [1, 2, 3])
async def test_an_end_of_which_a_part_was_written_is_written_whole(tmp_path: Path, written: int) -> None:
    first, *end = whole_call("c1")
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(first)
    for entry in end[:written]:
        spool.add(entry)
    drop(spool)
    spool = Spool(tmp_path, QUOTA)
    for call in list(spool.open.values()):
        spool.close_call(call.closing(2_000))
    entries = {
        entry.id: entry for entry in reversed(all_entries(spool))
    }  # of two with the same id the first one counts
    assert sorted(entries.values(), key=lambda one: one.id) == sorted([first, *end], key=lambda one: one.id)
    spool.stop()
