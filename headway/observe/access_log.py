"""The access log: one line of JSON for each call that has ended, in a file or on standard output.

    event loop ──► lines, at most MAX_BYTES ──► one thread ──► O_APPEND file or standard output

The event loop encodes a line and never writes. Every FLUSH_S the thread writes what there is, in pieces of whole lines
that are at most PIPE_BUF long, so that the lines of several processes are never mixed. While the thread waits for a
full pipe or a slow disk, lines are kept up to the bound and dropped above it; lines that a full disk does not take are
dropped. `dropped` counts both.

The file is opened again as soon as another one, or none, has its name: a program that rotates logs need not tell us.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from select import PIPE_BUF

import msgspec

from headway.core.types import Tier
from headway.errors import SetupError
from headway.observe.base import EndedCall, RefusedCall

log = logging.getLogger("headway.access_log")

STDOUT = 1
FLUSH_S = 0.2
MAX_BYTES = 4 * 2**20  # of lines that are not written
MAX_TEXT = 200  # characters of each text in a line
STOP_S = 2.0  # to write the last lines
MICRO = 1_000_000
_encode = msgspec.json.Encoder().encode


class AccessLine(msgspec.Struct, omit_defaults=True):
    """A line of the access log. A field is left out where it has no value."""

    time: str  # of its end, UTC
    id: str  # as in the header `x-request-id`
    key: str = ""  # id of the key, never the key
    path: str = ""  # endpoint
    stream: bool | None = None
    model: str = ""
    auto: str = ""  # the auto model that was asked for; such a call has a line for each rung
    rung: str = ""
    tier_asked: Tier | None = None
    tier: Tier | None = None  # served
    reason: str = ""  # why that is another one
    outcome: str = ""
    error: str = ""
    status: int | None = None  # of a call that was refused before it was taken
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    held_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    tokens_per_second: float | None = None
    floor: float | None = None
    kept: bool | None = None
    replica: str = ""
    boardings: int | None = None
    moves: int | None = None  # how often its stream went on at another replica
    seat_s: float | None = None
    billed_micro: int | None = None  # to be paid, after the refund
    refunded_micro: int | None = None
    session: str = ""
    agent: str = ""


def line_of(ended: EndedCall | RefusedCall, now: datetime) -> bytes:
    time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = _of_refused(ended, time) if isinstance(ended, RefusedCall) else _of_ended(ended, time)
    return _encode(line) + b"\n"


def _of_ended(ended: EndedCall, time: str) -> AccessLine:
    request, receipt, grant = ended.request, ended.receipt, ended.receipt.grant
    call, usage, rung = request.call, receipt.usage, grant.rung
    is_billed = grant.price is not None
    return AccessLine(
        time,
        call.id,
        key=_cut(call.tenant),
        path=request.path,
        stream=request.streaming,
        model=_cut(call.model),
        auto=_cut(rung.auto) if rung is not None else "",
        rung=rung.name if rung is not None else "",
        tier_asked=rung.tier_asked if rung is not None else grant.tier_asked,
        tier=grant.tier if receipt.boardings else None,
        reason=grant.reason or "",
        outcome=receipt.outcome,
        error=ended.error,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        held_s=_rounded(ended.held_s),
        first_token_s=_rounded(ended.first_token_s),
        total_s=_rounded(receipt.answer_s),
        tokens_per_second=_rounded(receipt.speed_tps),
        floor=grant.floor_tps or None,
        kept=receipt.kept,
        replica=_cut(grant.replica),
        boardings=receipt.boardings,
        moves=receipt.moves or None,
        seat_s=receipt.seat_us / MICRO if receipt.seat_us is not None else None,
        billed_micro=receipt.paid_micro if is_billed else None,
        refunded_micro=receipt.bill.refund if is_billed else None,
        session=_cut(request.session.id or ""),
        agent=_cut(request.session.agent or ""),
    )


def _of_refused(refused: RefusedCall, time: str) -> AccessLine:
    line = AccessLine(time, refused.call_id, key=_cut(refused.key), path=refused.path, outcome="refused")
    line.error, line.status = refused.error, refused.status
    if (request := refused.request) is not None:
        line.stream, line.model, line.tier_asked = request.streaming, _cut(request.call.model), request.call.tier
        line.session, line.agent = _cut(request.session.id or ""), _cut(request.session.agent or "")
    return line


def _cut(text: str) -> str:
    return text[:MAX_TEXT]


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if value is not None else None


class AccessLog:
    """Implements base.CallLog. `where` is the path of a file, or None for standard output. Raises SetupError."""

    def __init__(self, where: Path | None) -> None:
        self.dropped = 0
        self._writer = LineWriter(where)
        self._lines: list[bytes] = []
        self._bytes = 0  # of these lines, and of those that the thread has
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._batches: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = asyncio.Event()  # nothing is left to write
        self._idle.set()

    def write(self, ended: EndedCall | RefusedCall) -> None:
        line = line_of(ended, datetime.now(UTC))
        if len(line) > PIPE_BUF or self._bytes + len(line) > MAX_BYTES:
            self.dropped += 1
            return
        self._lines.append(line)
        self._bytes += len(line)
        self._idle.clear()
        if self._timer is None and not self._is_writing:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        self._is_writing = True
        if self._thread is None:
            loop = asyncio.get_running_loop()
            # A daemon: if a pipe stays full, the process can end nevertheless.
            self._thread = threading.Thread(target=self._work, args=(loop,), name="access log", daemon=True)
            self._thread.start()
        self._batches.put(lines)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (lines := self._batches.get()) is not None:
            dropped = self._writer.write(lines)
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._written, sum(map(len, lines)), dropped)

    def _written(self, size: int, dropped: int) -> None:
        self.dropped += dropped
        self._bytes -= size
        self._is_writing = False
        if self._lines:
            self._flush()
        else:
            self._idle.set()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._idle.wait()
        self._batches.put(None)


class LineWriter:
    """Writes lines to a file that may be renamed or removed, or to standard output. Used by one thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fd = STDOUT
        self._is_torn = False  # the last line in the file is not complete
        self._is_failing = False
        if path is not None:
            try:
                self._fd = _open(path)
            except OSError as error:
                raise SetupError(f"Cannot write the access log to {path} ({error}). Choose another file.") from error

    def write(self, lines: Sequence[bytes]) -> int:
        """Returns how many of them are lost."""
        written = 0
        try:
            self._open_again_if_moved()
            for piece in _pieces(lines):
                done = self._put(piece)
                written += piece.count(b"\n", 0, done)
                if done < len(piece):
                    self._is_torn = piece[done - 1 : done] != b"\n"
                    raise OSError(f"only {done} of {len(piece)} bytes were taken")
        except OSError as error:
            if not self._is_failing:
                log.error("the access log cannot be written, so lines are lost: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False
        return len(lines) - written

    def _put(self, piece: bytes) -> int:
        if self._is_torn:
            os.write(self._fd, b"\n")
            self._is_torn = False
        return os.write(self._fd, piece)

    def _open_again_if_moved(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            is_same = False
        else:
            own = os.fstat(self._fd)
            is_same = (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
        if not is_same:
            before, self._fd = self._fd, _open(self._path)
            self._is_torn = False
            os.close(before)


def _open(path: Path) -> int:
    """Not for devices and pipes: opening a pipe waits for its reader."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is not a file")
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)


def _pieces(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Whole lines, together at most PIPE_BUF long."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > PIPE_BUF:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield b"".join(piece)
