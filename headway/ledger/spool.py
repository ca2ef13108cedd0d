"""The spool: entries on the local disk, in order, until the store has them.

Each line is appended to a segment file with one write, so it survives the death of this process; after `durable` it is
synced and survives a power loss too. A segment is deleted when all its entries are in the store.

Every line is a JSON array. Its first element is its kind:

    ["entry", {...}]                                                  an entry, for the store
    ["seen", [[call id, attempt, replica, prompt, output], ...]]      progress of running calls
    ["open", [[reservation, attempt, replica, prompt, output], ...]]  first line of a segment: all running calls

The last two stay in the spool. From them the next run closes the calls that were running when a gateway died; it needs
only the newest segment. The spool is bounded: above `quota_bytes` new calls are refused, but running calls can still be
closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import SetupError
from headway.ledger.entries import Entry

SEGMENT_BYTES = 4 * 2**20
BATCH_ENTRIES = 1_000
QUICK_SYNC_S = 0.0005  # below this a sync runs in the event loop, above it in a thread

Seen = tuple[str, int, str, int, int]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


@dataclass(slots=True)
class OpenCall:
    """A running call: what the next run needs to close it."""

    reserved: Entry
    attempt: int = 1
    replica: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries in the order they were written, and the offset after them."""

    entries: list[Entry]
    offset: int


class Spool:
    """One directory, used by one process. One other thread may call `next_batch` and `shipped` only."""

    def __init__(self, directory: Path, quota_bytes: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.quota_bytes = quota_bytes
        self._segment_bytes = min(SEGMENT_BYTES, quota_bytes // 8)  # the newest segment is never deleted
        self._lock = _lock(directory)
        self.gateway = _identity(directory)
        self.open: dict[str, OpenCall] = {}
        self._segments = sorted(directory.glob("*.jsonl"))
        # Each of these two is changed by one thread only.
        self._written_bytes = sum(path.stat().st_size for path in self._segments)
        self._deleted_bytes = 0
        self._read_at = 0  # in the oldest segment
        self._unwritten: list[bytes] = []  # lines that the disk has no room for
        self._waiting: asyncio.Future[None] | None = None  # for the next sync
        self._is_syncing = False
        self._sync_s = 0.0  # smoothed duration of a sync
        self._closing: Future[None] | None = None  # the last sync of the previous segment
        self._thread = ThreadPoolExecutor(1, "spool")
        self._recover()
        self._fd = -1
        self._size = self._head_bytes = 0
        self._begin_segment()

    # --- writing ---

    @property
    def size_bytes(self) -> int:
        return self._written_bytes - self._deleted_bytes

    @property
    def is_full(self) -> bool:
        """Whether there is no room for new calls."""
        return bool(self._unwritten) or self.size_bytes >= self.quota_bytes

    def reserve(self, entry: Entry) -> None:
        self.open[entry.call_id] = OpenCall(entry, entry.attempt, entry.replica)
        self.add(entry)

    def close_call(self, entries: list[Entry]) -> None:
        """Write the last entries of a call at once."""
        self.open.pop(entries[0].call_id, None)
        self._write(b"".join(b'["entry",' + _encode(entry) + b"]\n" for entry in entries))

    def add(self, entry: Entry) -> None:
        self._write(b'["entry",' + _encode(entry) + b"]\n")

    def seen(self, rows: list[Seen]) -> None:
        """Write the progress of running calls."""
        self._apply_progress(rows)
        if not self._unwritten:  # if the disk is full and this gateway dies, the calls are billed without this progress
            self._put(b'["seen",' + _encode(rows) + b"]\n")

    def _apply_progress(self, rows: list[Seen]) -> None:
        for call_id, attempt, replica, prompt_tokens, output_tokens in rows:
            if (call := self.open.get(call_id)) is not None:
                call.attempt, call.replica = attempt, replica
                call.prompt_tokens, call.output_tokens = prompt_tokens, output_tokens

    def _write(self, line: bytes) -> None:
        """Write a line that must not be lost. It is kept in memory while the disk has no room."""
        self._unwritten.append(line)
        self.retry()

    def retry(self) -> None:
        while self._unwritten and self._put(self._unwritten[0]):
            del self._unwritten[0]

    def _put(self, line: bytes) -> bool:
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written < len(line):
            os.ftruncate(self._fd, self._size)  # leave no partial line in the middle
            return False
        self._size += written
        self._written_bytes += written
        if self._size >= max(self._segment_bytes, 4 * self._head_bytes):
            self._begin_segment()
        return True

    def _begin_segment(self) -> None:
        number = int(self._segments[-1].stem) + 1 if self._segments else 1
        path = self.directory / f"{number:012d}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
        rows = [
            (call.reserved, call.attempt, call.replica, call.prompt_tokens, call.output_tokens)
            for call in self.open.values()
        ]
        head = b'["open",' + _encode(rows) + b"]\n"
        try:
            os.write(fd, head)
            os.fdatasync(fd)
        except OSError as error:
            os.close(fd)
            path.unlink()
            if self._fd < 0:
                raise SetupError(f"cannot write to the spool in {self.directory}: {error}") from error
            return  # the disk is full: keep using the current segment
        self._written_bytes += len(head)
        if self._fd >= 0:
            self._closing = self._thread.submit(_sync_and_close, self._fd)
        self._fd, self._size, self._head_bytes = fd, len(head), len(head)
        self._segments.append(path)

    # --- durability: one sync for everything written in one iteration of the loop, or during the last sync ---

    def durable(self) -> asyncio.Future[None]:
        """Return a future that completes when everything written so far is on disk, or fails with OSError."""
        loop = asyncio.get_running_loop()
        self.retry()
        if self._unwritten:
            failed: asyncio.Future[None] = loop.create_future()
            failed.set_exception(OSError("the spool's disk is full"))
            return failed
        if self._waiting is None:
            self._waiting = loop.create_future()
            if not self._is_syncing:
                loop.call_soon(self._sync, loop)
        return self._waiting

    def _sync(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        if self._sync_s <= QUICK_SYNC_S and (self._closing is None or self._closing.done()):
            # On a fast disk two thread switches cost more than the sync. Not while the thread syncs the previous
            # segment, which may contain the awaited lines.
            self._synced(waiting, self._timed_sync(self._fd), loop)
            return
        self._is_syncing = True
        syncing = loop.run_in_executor(self._thread, self._timed_sync, self._fd)
        syncing.add_done_callback(lambda done: self._synced(waiting, done.result(), loop))

    def _timed_sync(self, fd: int) -> OSError | None:
        began = time.perf_counter()
        try:
            os.fdatasync(fd)
        except OSError as error:
            return error
        self._sync_s += 0.1 * (time.perf_counter() - began - self._sync_s)
        return None

    def _synced(self, waiting: asyncio.Future[None], error: OSError | None, loop: asyncio.AbstractEventLoop) -> None:
        self._is_syncing = False
        if not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
        if self._waiting is not None:
            loop.call_soon(self._sync, loop)

    # --- reading, in the thread that ships ---

    def next_batch(self) -> Batch | None:
        """Return entries that the store does not have yet, or None if it has all."""
        while True:
            segment = self._segments[0]
            is_newest = len(self._segments) == 1
            entries, offset = _read_entries(segment, self._read_at)
            if entries:
                return Batch(entries, offset)
            self._read_at = offset
            if is_newest:
                return None
            self._delete_oldest()

    def shipped(self, batch: Batch) -> None:
        """Continue after a batch that the store has committed."""
        self._read_at = batch.offset

    def _delete_oldest(self) -> None:
        segment = self._segments.pop(0)
        self._deleted_bytes += segment.stat().st_size
        segment.unlink()
        self._read_at = 0

    # --- recovery of the last run ---

    def _recover(self) -> None:
        for segment in self._segments:
            for kind, value, _ in _read_lines(segment, 0):
                self._replay(kind, value)

    def _replay(self, kind: str, value: Any) -> None:
        if kind == "open":
            self.open = {}
            for reserved, *rest in value:
                entry = msgspec.convert(reserved, Entry)
                self.open[entry.call_id] = OpenCall(entry, *rest)
        elif kind == "seen":
            self._apply_progress(value)
        else:
            entry = msgspec.convert(value, Entry)
            if entry.kind == "reserved":
                self.open[entry.call_id] = OpenCall(entry, entry.attempt, entry.replica)
            elif entry.kind == "served":
                self.open.pop(entry.call_id, None)

    def stop(self) -> None:
        self._thread.shutdown()
        os.fdatasync(self._fd)
        os.close(self._fd)
        os.close(self._lock)


def _sync_and_close(fd: int) -> None:
    os.fdatasync(fd)
    os.close(fd)


def _read_lines(segment: Path, offset: int) -> Iterator[tuple[str, Any, int]]:
    """Yield (kind, value, offset of the next line) of each complete line."""
    with segment.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # being written, or its writer died before reporting it
            offset += len(line)
            kind, value = _decode(line)
            yield kind, value, offset


def _read_entries(segment: Path, offset: int) -> tuple[list[Entry], int]:
    entries: list[Entry] = []
    for kind, value, after in _read_lines(segment, offset):
        offset = after
        if kind == "entry":
            entries.append(msgspec.convert(value, Entry))
            if len(entries) >= BATCH_ENTRIES:
                break
    return entries, offset


def _lock(directory: Path) -> int:
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SetupError(f"another gateway uses the spool in {directory}: give each gateway its own `spool`.") from None
    return fd


def _identity(directory: Path) -> str:
    """Return the name of this gateway, the same in all its runs, and the number of this run."""
    path = directory / "gateway"
    name, run = path.read_text().split("/") if path.exists() else (f"gw-{secrets.token_hex(4)}", "0")
    identity = f"{name}/{int(run) + 1}"
    new = path.with_suffix(".new")
    new.write_text(identity)
    new.replace(path)
    return identity
