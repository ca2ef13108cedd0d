"""The lease on one box: a lock on a file, with the epoch in it.

The kernel drops the lock when the process ends, however it ends, so a standby takes over at once. A lock has no expiry:
while its holder is stopped, nobody can take it. Whoever starts dispatchers on a box must kill one that hangs.

The lock belongs to the open file, so a child made by fork without exec would keep it. The file must be on a local disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headway.dispatch.lease import LEASE_S, LeaseUnavailable
from headway.errors import SetupError

DIGITS = 19  # of the largest 64-bit number: each epoch overwrites all of the one before

T = TypeVar("T")


class FileLease:
    def __init__(self, path: Path, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._path = path
        self._fd: int | None = None  # open while the lock is held
        self._epoch = 0
        # One thread: a request that hangs on a bad disk is waited for by the next one.
        self._thread = ThreadPoolExecutor(1, "lease")

    async def take(self, above: int = 0) -> int | None:
        return await self._bounded(lambda: self._take(above))

    async def renew(self, epoch: int) -> bool:
        return await self._bounded(lambda: self._renew(epoch))

    async def release(self, epoch: int) -> None:
        await self._bounded(lambda: self._release(epoch))

    async def close(self) -> None:
        await self._bounded(self._unlock)
        self._thread.shutdown(wait=False)

    async def _bounded(self, work: Callable[[], T]) -> T:
        working = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done, _ = await asyncio.wait({working}, timeout=self.lease_s / 3)
        if not done:
            working.cancel()  # if it has not begun
            raise LeaseUnavailable(f"the disk of {self._path} does not answer")
        try:
            return working.result()
        except OSError as error:
            raise LeaseUnavailable(f"cannot use {self._path}: {error}") from error

    def _take(self, above: int) -> int | None:
        if self._fd is not None and not self._is_in_place(self._fd):
            self._unlock()
        if self._fd is None and not self._lock():
            return None
        assert self._fd is not None
        try:
            self._epoch = max(self._read(self._fd), above) + 1
            os.pwrite(self._fd, b"%0*d\n" % (DIGITS, self._epoch), 0)
            os.fsync(self._fd)
        except (OSError, SetupError):
            self._unlock()
            raise
        return self._epoch

    def _renew(self, epoch: int) -> bool:
        if self._fd is None or self._epoch != epoch:
            return False
        if not self._is_in_place(self._fd):
            self._unlock()
            return False
        return True

    def _release(self, epoch: int) -> None:
        if self._epoch == epoch:
            self._unlock()

    def _lock(self) -> bool:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_in_place(fd):
                raise BlockingIOError  # replaced since it was opened: a lock on the old file says nothing
            self._sync_directory()  # the file may be new
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def _unlock(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _is_in_place(self, fd: int) -> bool:
        """Whether the path still leads to this file. If not, another dispatcher can lock the file that is there now."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _read(self, fd: int) -> int:
        text = os.pread(fd, DIGITS + 1, 0)
        if text and not text.strip().isdigit():
            raise SetupError(f"{self._path} is damaged. Stop all dispatchers and relays of this cell and delete it.")
        return int(text or b"0")

    def _sync_directory(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
