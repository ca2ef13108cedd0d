"""The lease on a file: what a lock adds, and what it cannot do."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.dispatch.lease import LeaseUnavailable
from headway.dispatch.lease_file import FileLease
from headway.errors import SetupError
from tests.dispatch.conftest import LONG_S, closing

pytestmark = pytest.mark.anyio

HOLD = """
import asyncio, sys
from pathlib import Path
from headway.dispatch.lease_file import FileLease

async def hold():
    print(await FileLease(Path(sys.argv[1]), 30).take(), flush=True)
    await asyncio.sleep(600)

asyncio.run(hold())
"""


@contextmanager
def another_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lease, and its epoch."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "leader", LONG_S)
    async with closing(lease):
        with another_process(tmp_path / "leader") as (process, epoch):
            assert await lease.take() is None
            process.kill()
            process.wait()
            assert await lease.take() == epoch + 1


async def test_a_stopped_process_keeps_the_lock(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "leader", LONG_S)
    async with closing(lease):
        with another_process(tmp_path / "leader") as (process, _):
            process.send_signal(signal.SIGSTOP)
            assert await lease.take() is None


async def test_the_epoch_survives_the_processes(tmp_path: Path) -> None:
    for epoch in range(1, 4):
        lease = FileLease(tmp_path / "leader", LONG_S)
        async with closing(lease):
            assert await lease.take() == epoch
    assert (tmp_path / "leader").read_text() == f"{3:019}\n"


async def test_a_deleted_file_ends_the_lease(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "leader", LONG_S)
    async with closing(lease):
        assert await lease.take() == 1
        (tmp_path / "leader").unlink()
        assert not await lease.renew(1)
        assert await lease.take(above=1) == 2


async def test_a_damaged_file_is_an_error_for_the_owner(tmp_path: Path) -> None:
    (tmp_path / "leader").write_text("seven")
    one, other = FileLease(tmp_path / "leader", LONG_S), FileLease(tmp_path / "leader", LONG_S)
    async with closing(one, other):
        for lease in (one, other):  # the first does not keep the lock
            with pytest.raises(SetupError, match="is damaged"):
                await lease.take()


async def test_a_missing_folder_is_a_store_that_is_away(tmp_path: Path) -> None:
    lease = FileLease(tmp_path / "none" / "leader", LONG_S)
    async with closing(lease):
        with pytest.raises(LeaseUnavailable, match="No such file"):
            await lease.take()
        (tmp_path / "none").mkdir()
        assert await lease.take() == 1


async def test_a_disk_that_fails_to_write_leaves_the_lock_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError("Input/output error")

    one, other = FileLease(tmp_path / "leader", LONG_S), FileLease(tmp_path / "leader", LONG_S)
    async with closing(one, other):
        with monkeypatch.context() as patched:
            patched.setattr("headway.dispatch.lease_file.os.fsync", fail)
            with pytest.raises(LeaseUnavailable, match="Input/output error"):
                await one.take()
        assert await other.take() is not None


async def test_contenders_at_the_same_moment(tmp_path: Path) -> None:
    contenders = [FileLease(tmp_path / "leader", LONG_S) for _ in range(8)]
    async with closing(*contenders):
        epochs = await asyncio.gather(*(lease.take() for lease in contenders))
        assert sorted(epoch or 0 for epoch in epochs) == [0] * 7 + [1]
