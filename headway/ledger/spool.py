"""The spool: entries on the local disk, in order, until the store has them.

Each line is appended to a segment file with one write, so it survives the death of this process; after `durable` it is
synced and survives a power loss too. A segment is deleted when all its entries are in the store.

Every line is a JSON array. Its first element is its kind:

    ["entry", {...}]                                                  an entry, with a checksum, for the store
    ["again", {...}]                                                  an entry that a failed sync may have lost
    ["seen", [[call id, attempt, replica, prompt, output], ...]]      progress of running calls
    ["open", [[reservation, attempt, replica, prompt, output], ...]]  first line of a segment: all running calls

The last two stay in the spool. From them the next run closes the calls that were running when a gateway died; it needs
only the newest segment. The spool is bounded: above `quota_bytes` new calls are refused, but running calls can still be
closed.

After a sync has failed, the system forgets what it could not write, and the next sync succeeds. So entries stay in
memory until they are synced; if that fails, they are written again, to a new segment.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import SetupError
from headway.ledger.entries import Entry
from headway.ledger.identity import Identity
from headway.ledger.segments import (
    NAMES,
    BadLines,
    Batch,
    Seen,
    again,
    create_segment,
    entry_line,
    last_number,
    read_batch,
    read_lines,
    sync_and_close,
)

log = logging.getLogger("headway.ledger")

SEGMENT_BYTES = 4 * 2**20
BATCH_ENTRIES = 1_000
BLOCKED = "the spool's disk is full or fails"
QUICK_SYNC_S = 0.0005  # below this a sync runs in the event loop, above it in a thread

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class OpenCall:
    """A running call: what the next run needs to close it."""

    reserved: Entry
    attempt: int = 1
    replica: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    served: Entry | None = None  # its end had begun to be written

    def closing(self, at_us: int) -> list[Entry]:
        """The entries that end the call, whose gateway died."""
        if self.served is not None:
            return self.reserved.closed_after(self.served)
        return self.reserved.lost(self.attempt, self.replica, (self.prompt_tokens, self.output_tokens), at_us)


class Spool:
    """One directory, used by one process. One other thread may call `next_batch`, `set_aside` and `shipped` only."""

    def __init__(self, directory: Path, quota_bytes: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # it belongs to another user, who has given this one the right to write
            directory.chmod(0o700)
        self.directory = directory
        self.quota_bytes = quota_bytes
        self._segment_bytes = min(SEGMENT_BYTES, quota_bytes // 8)  # the newest segment is never deleted
        self.identity = Identity(directory)
        self._lock = self.identity.lock
        self.gateway = self.identity.gateway
        self.open: dict[str, OpenCall] = {}
        self._bad = BadLines(directory)
        self._number = last_number(directory)
        self._segments = sorted(directory.glob(NAMES))
        # Each of these two is changed by one thread only.
        self._written_bytes = sum(path.stat().st_size for path in self._segments)
        self._deleted_bytes = 0
        self._read_at = 0  # in the oldest segment
        self._shipped_at = time.monotonic()  # when the store last had all entries
        self._unwritten: list[bytes] = []  # lines that the disk has no room for
        self._unsynced: list[bytes] = []  # entries in the current segment, since its last sync
        self._is_broken = False  # nothing more may be written to the current segment
        self._is_overdue = False  # the next segment could not begin
        self._waiting: asyncio.Future[None] | None = None  # for the next sync
        self._is_syncing = False
        self._sync_s = 0.0  # smoothed duration of a sync
        # The last syncs of previous segments, each with the entries that wait for it.
        self._closing: list[tuple[Future[OSError | None], list[bytes]]] = []
        self._thread = ThreadPoolExecutor(1, "spool")
        self._thread.submit(lambda: None).result()  # so that the thread exists: later memory may be short
        self._fd = -1
        self._size = self._head_bytes = 0
        try:
            self._recover()
            self._begin_segment()
        except OSError as error:
            os.close(self._lock)
            raise SetupError(f"cannot use the spool in {directory}: {error}") from error

    # --- writing ---

    @property
    def size_bytes(self) -> int:
        return self._written_bytes - self._deleted_bytes

    @property
    def is_full(self) -> bool:
        """Whether there is no room for new calls."""
        return self._is_blocked or self.size_bytes >= self.quota_bytes

    @property
    def behind_s(self) -> float:
        """Time since the store last had all entries."""
        return time.monotonic() - self._shipped_at

    @property
    def bad_lines(self) -> int:
        """How many lines are set aside because they cannot be read."""
        return self._bad.count

    def reserve(self, entry: Entry) -> bool:
        """Write that a call begins. False if the disk does not take it: then nobody would know of it."""
        self.retry()
        if self._is_blocked or not self._put(line := entry_line(entry)):
            return False
        self._unsynced.append(line)
        self.open[entry.call_id] = OpenCall(entry, entry.attempt, entry.replica)
        self._end_segment_if_long()
        return True

    def close_call(self, entries: list[Entry]) -> None:
        """Write the last entries of a call at once."""
        self.open.pop(entries[0].call_id, None)
        self._write(b"".join(entry_line(entry) for entry in entries))

    def add(self, entry: Entry) -> None:
        self._write(entry_line(entry))

    def seen(self, rows: list[Seen]) -> None:
        """Write the progress of running calls, and what the disk has not taken before. To be called often."""
        self._apply_progress(rows)
        self.retry()
        # If this gateway dies while the disk takes nothing, the calls are billed without this progress.
        if rows and not self._is_blocked and self._put(b'["seen",' + _encode(rows) + b"]\n"):
            self._end_segment_if_long()

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
        """Write the lines that the disk has not taken."""
        if self._is_broken and not self._begin_segment():
            return
        while self._unwritten and self._put(self._unwritten[0]):
            self._unsynced.append(self._unwritten.pop(0))
            self._end_segment_if_long()

    @property
    def _is_blocked(self) -> bool:
        return self._is_broken or bool(self._unwritten)

    def _put(self, line: bytes) -> bool:
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written == len(line):
            self._size += written
            self._written_bytes += written
            return True
        try:
            os.ftruncate(self._fd, self._size)  # leave no partial line in the middle
        except OSError:
            self._is_broken = True
        return False

    def _end_segment_if_long(self) -> None:
        if self._size >= max(self._segment_bytes, 4 * self._head_bytes):
            self._begin_segment()

    def _begin_segment(self) -> bool:
        """Begin the next segment. If it cannot be opened or written, go on with the current one and try again later.

        It begins with the calls that are running, and with the lines that are not written yet: if one of these closes a
        call and was lost after this, nobody would close the call."""
        rows = [
            (call.reserved, call.attempt, call.replica, call.prompt_tokens, call.output_tokens)
            for call in self.open.values()
        ]
        running = b'["open",' + _encode(rows) + b"]\n"
        head = b"".join((running, *self._unwritten))
        self._number += 1
        path = self.directory / f"{self._number:012d}.jsonl"
        try:
            fd = create_segment(path, head)
        except OSError as error:
            if self._fd < 0:
                raise
            if not self._is_overdue:
                log.error("the spool cannot begin a segment: %s", error)
            self._is_overdue = True
            return False
        if self._fd >= 0:
            self._closing.append((self._thread.submit(sync_and_close, self._fd), self._unsynced))
        self._unwritten, self._unsynced = [], []
        self._is_broken = self._is_overdue = False
        self._written_bytes += len(head)
        self._fd, self._size, self._head_bytes = fd, len(head), len(running)
        self._segments.append(path)
        return True

    # --- durability: one sync for everything written in one iteration of the loop, or during the last sync ---

    def durable(self) -> asyncio.Future[None]:
        """Return a future that completes when everything written so far is on disk, or fails with OSError."""
        loop = asyncio.get_running_loop()
        self.retry()
        if self._is_blocked:
            failed: asyncio.Future[None] = loop.create_future()
            failed.set_exception(OSError(BLOCKED))
            return failed
        if self._waiting is None:
            self._waiting = loop.create_future()
            if not self._is_syncing:
                loop.call_soon(self._sync, loop)
        return self._waiting

    def _sync(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        self.retry()
        if self._is_blocked:  # since the call of `durable`
            self._answer(waiting, OSError(BLOCKED), loop)
            return
        lines, self._unsynced = self._unsynced, []
        if self._sync_s <= QUICK_SYNC_S and all(closing.done() for closing, _ in self._closing):
            # On a fast disk two thread switches cost more than the sync. Not while the thread syncs the previous
            # segment, which may contain the awaited lines.
            self._synced(waiting, lines, self._timed_sync(self._fd), loop)
            return
        try:
            syncing = loop.run_in_executor(self._thread, self._timed_sync, self._fd)
        except (RuntimeError, MemoryError):
            self._synced(waiting, lines, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), loop)
            return
        self._is_syncing = True
        syncing.add_done_callback(lambda done: self._synced(waiting, lines, done.result(), loop))

    def _timed_sync(self, fd: int) -> OSError | None:
        began = time.perf_counter()
        try:
            os.fdatasync(fd)
        except OSError as error:
            return error
        self._sync_s += 0.1 * (time.perf_counter() - began - self._sync_s)
        return None

    def _synced(
        self, waiting: asyncio.Future[None], lines: list[bytes], error: OSError | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._is_syncing = False
        if error is not None:
            self._give_up_segment(lines)
        self._answer(waiting, self._check_closed() or error, loop)

    def _answer(self, waiting: asyncio.Future[None], error: OSError | None, loop: asyncio.AbstractEventLoop) -> None:
        if not waiting.done():
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)
        if self._waiting is not None:
            loop.call_soon(self._sync, loop)

    def _give_up_segment(self, lines: list[bytes]) -> None:
        """Write nothing more to the current segment, and write `lines` and what followed them to another one."""
        self._is_broken = True
        self._write_again([*lines, *self._unsynced])
        self._unsynced = []

    def _check_closed(self) -> OSError | None:
        """Return the error of the last sync of a previous segment, if it failed. Its lines are written again."""
        error = None
        while self._closing and self._closing[0][0].done():
            closing, lines = self._closing.pop(0)
            if lines and (failed := closing.result()) is not None:
                error = failed
                self._write_again(lines)
        return error

    def _write_again(self, lines: list[bytes]) -> None:
        log.error("the spool's disk failed: entries are written again")
        self._unwritten[:0] = [again(line) for line in lines]

    # --- reading, in the thread that ships ---

    def next_batch(self) -> Batch | None:
        """Return entries that the store does not have yet, or None if it has all."""
        while True:
            segment = self._segments[0]
            is_newest = len(self._segments) == 1
            try:
                batch = read_batch(segment, self._read_at, BATCH_ENTRIES, self._bad, is_newest=is_newest)
            except OSError as error:
                if error.errno != errno.EIO or is_newest:
                    raise
                self._forget_oldest()
                self._bad.set_aside_segment(segment, error)
                continue
            if batch.entries:
                return batch
            self._read_at = batch.end
            if is_newest:
                self._shipped_at = time.monotonic()
                return None
            self._forget_oldest()
            segment.unlink()

    def set_aside(self, batch: Batch, number: int, why: Exception) -> None:
        """Set aside an entry of a batch that the store refuses."""
        self._bad.set_aside(batch.segment, batch.offsets[number], entry_line(batch.entries[number]), why)

    def shipped(self, batch: Batch) -> None:
        """Continue after a batch that the store has committed."""
        self._read_at = batch.end

    def _forget_oldest(self) -> None:
        self._deleted_bytes += self._segments.pop(0).stat().st_size
        self._read_at = 0

    # --- recovery of the last run ---

    def _recover(self) -> None:
        for segment in list(self._segments):
            try:
                for kind, value, *_ in read_lines(segment, 0, self._bad, is_newest=False):
                    self._replay(kind, value)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                log.error("a segment of the spool cannot be read to its end: %s: %s", segment, error)

    def _replay(self, kind: str, value: Any) -> None:
        if kind == "open":
            self.open = {reserved.call_id: OpenCall(reserved, *rest) for reserved, *rest in value}
        elif kind == "seen":
            self._apply_progress(value)
        elif kind == "entry":
            if value.kind == "reserved":
                self.open[value.call_id] = OpenCall(value, value.attempt, value.replica)
            elif value.kind == "served" and value.call_id in self.open:
                self.open[value.call_id].served = value
            elif value.kind == "released":  # the last one
                self.open.pop(value.call_id, None)

    def stop(self) -> None:
        for closing, _ in self._closing:
            closing.result()
        for _ in range(2):  # if the disk fails now, once more
            self._check_closed()
            self.retry()
            if self._is_blocked or self._timed_sync(self._fd) is None:
                break
            self._give_up_segment([])
        if self._is_blocked:
            log.error("the disk of the spool is full or fails: the ends of some calls are not written")
        self._thread.shutdown()
        os.close(self._fd)
        os.close(self._lock)
