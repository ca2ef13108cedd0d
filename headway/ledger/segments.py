"""The lines of the spool's segments, and those that cannot be read.

A line that cannot be read is set aside in `bad/SEGMENT`, after its offset in the segment, and is never in the way of
others. Such lines come from a damaged disk, or from a figure that no entry may have.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headway.ledger.entries import Attempt, Count, Entry

log = logging.getLogger("headway.ledger")

Seen = tuple[str, Attempt, str, Count, Count]
OpenRow = tuple[Entry, Attempt, str, Count, Count]

NAMES = "*.jsonl"
NEW = ".begun"  # of a segment that is being created
BAD = "bad"
UNREADABLE = ".unreadable"  # a whole segment that was set aside, because the disk gives an error

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode
_VALUES: dict[str, msgspec.json.Decoder[Any]] = {
    "entry": msgspec.json.Decoder(Entry),
    "again": msgspec.json.Decoder(Entry),
    "seen": msgspec.json.Decoder(list[Seen]),
    "open": msgspec.json.Decoder(list[OpenRow]),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries in the order they were written, each with its offset in the segment, and the offset after them."""

    segment: Path
    entries: list[Entry]
    offsets: list[int]
    end: int


class BadLines:
    """Lines of one spool that are set aside, in this run and in earlier ones. A line is set aside once."""

    def __init__(self, spool: Path) -> None:
        self._directory = spool / BAD
        self._known = {
            (path.name, int(offset))
            for path in self._directory.glob(NAMES)
            for offset, _, _ in (line.partition(b" ") for line in path.read_bytes().split(b"\n"))
            if offset.isdigit()
        }
        self._unreadable = len(list(self._directory.glob(f"{NAMES}{UNREADABLE}")))

    @property
    def count(self) -> int:
        return len(self._known) + self._unreadable

    def set_aside(self, segment: Path, offset: int, line: bytes, why: Exception) -> None:
        if (segment.name, offset) in self._known:
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / segment.name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(b"%d %b\n" % (offset, line.rstrip(b"\n")))
            file.flush()
            os.fsync(file.fileno())
        self._known.add((segment.name, offset))
        log.error("a line of the spool is set aside: %s, offset %d, in %s: %s", segment.name, offset, path, why)

    def set_aside_segment(self, segment: Path, why: OSError) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / (segment.name + UNREADABLE)
        segment.replace(path)
        self._unreadable += 1
        log.error("a segment of the spool is set aside: %s, in %s: %s", segment.name, path, why)


def last_number(spool: Path) -> int:
    """Return the highest number that a segment has had, of those that are there or set aside."""
    names = [*spool.glob(NAMES), *(spool / BAD).glob(f"{NAMES}*")]
    return max((int(path.name.partition(".")[0]) for path in names), default=0)


def read_lines(segment: Path, offset: int, bad: BadLines, *, is_newest: bool) -> Iterator[tuple[str, Any, int, int]]:
    """Yield (kind, value, offset, offset of the next line) of each line, and set aside those that cannot be read."""
    with segment.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") and (is_newest or _is_torn(line)):
                return  # being written, or its writer died before it could say that it was written
            at, offset = offset, offset + len(line)
            try:
                kind, value = read_line(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                bad.set_aside(segment, at, line, error)
            else:
                yield kind, value, at, offset


def read_batch(segment: Path, offset: int, most: int, bad: BadLines, *, is_newest: bool) -> Batch:
    """Read at most that many entries."""
    batch = Batch(segment, [], [], offset)
    try:
        for kind, value, at, after in read_lines(segment, offset, bad, is_newest=is_newest):
            offset = after
            if kind in ("entry", "again"):
                batch.entries.append(value)
                batch.offsets.append(at)
                if len(batch.entries) >= most:
                    break
    except OSError:
        if not batch.entries:
            raise  # else, what comes before the damage is shipped first
    return replace(batch, end=offset)


def create_segment(path: Path, head: bytes) -> int:
    """Create a segment and return its descriptor. Leaves no segment if that fails. A process that is killed meanwhile
    leaves no part of one: its head says which calls are running, and a part of it would say that fewer are."""
    new = path.with_suffix(NEW)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    try:
        if os.write(fd, head) < len(head):
            raise OSError(errno.ENOSPC, "no room for the head of a segment")
        new.rename(path)
        new = path
        os.fdatasync(fd)
    except OSError:
        os.close(fd)
        new.unlink()
        raise
    return fd


def sync_and_close(fd: int) -> OSError | None:
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error
    finally:
        os.close(fd)
    return None


def entry_line(entry: Entry) -> bytes:
    """Return the line of an entry, with a checksum: a damaged digit is still JSON."""
    body = _encode(entry)
    return b'["entry",{"crc":"%08x",%b]\n' % (zlib.crc32(body), body[1:])


def again(lines: bytes) -> bytes:
    """Return lines of entries as those that are written again, with the same checksums."""
    return lines.replace(b'["entry",{', b'["again",{')  # in a text, the quotes would be escaped


def read_line(line: bytes) -> tuple[str, Any]:
    kind, raw = _decode(line)
    start = line.partition(b"{")[2][:16]
    if start.startswith(b'"crc":"') and b'"crc":"%08x"' % zlib.crc32(b"{" + line[27:-2]) != start:
        raise msgspec.ValidationError("the checksum is wrong")
    if kind not in _VALUES:
        raise msgspec.ValidationError(f"unknown kind {kind!r}")
    if b"\\u0000" in line:
        raise msgspec.ValidationError("a text with a zero byte, which PostgreSQL cannot store")
    if not line.endswith(b"\n"):
        raise msgspec.ValidationError("its end is damaged")
    value = _VALUES[kind].decode(raw)
    if isinstance(value, Entry) and value.has_wrong_sign:
        raise msgspec.ValidationError(f"{value.id}: the amount {value.amount} has the wrong sign")
    return kind, value


def _is_torn(line: bytes) -> bool:
    """Whether the last line of a segment, which has no end, is the beginning of a line. If not, its end is damaged."""
    for text in (line, line[:-1]):
        try:
            _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        return False
    return True
