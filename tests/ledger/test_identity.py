"""Whose spool a directory is: a copy of it is not, and does not become so by trying again."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.core.types import Call
from headway.errors import Refused, SetupError
from headway.ledger import books as books_module
from headway.ledger.books import Books, BooksSettings
from headway.ledger.identity import MOST_TRIED
from headway.ledger.opening import open_store
from headway.ledger.spool import Spool
from headway.ledger.store import Store
from headway.supervise import Supervisor
from tests.ledger.test_store import reserved

pytestmark = pytest.mark.anyio
QUOTA = 2**20


def make_books(spool: Path, url: str) -> Books:
    return Books(BooksSettings(spool, QUOTA, 3600.0), lambda: open_store(url))


def snapshot(spool: Path, to: Path) -> None:
    """A copy that cannot be told by its place, as one of a whole disk."""
    shutil.copytree(spool, to)
    (to / "place").unlink()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.02)


def test_a_copied_spool_does_not_start_and_it_says_what_to_do(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "one", QUOTA)
    spool.reserve(reserved("open"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    spool.stop()
    for _ in range(3):
        with pytest.raises(SetupError, match=r"was copied or moved here.*empty directory.*delete .*/place"):
            Spool(tmp_path / "copy", QUOTA)
    (tmp_path / "one").rename(tmp_path / "renamed")
    renamed = Spool(tmp_path / "renamed", QUOTA)  # a directory of another name is the same
    assert renamed.identity.name == spool.identity.name
    assert list(renamed.open) == ["open"]
    renamed.stop()
    (tmp_path / "copy" / "place").unlink()  # the owner says that it was moved
    moved = Spool(tmp_path / "copy", QUOTA)
    assert moved.identity.name == spool.identity.name
    moved.stop()


async def test_of_two_copies_the_store_lets_one_start(tmp_path: Path, store_url: str, store: Store) -> None:
    first = make_books(tmp_path / "one", store_url)
    await first.start(Supervisor())
    await first.stop()
    snapshot(tmp_path / "one", tmp_path / "copy")
    again = make_books(tmp_path / "one", store_url)
    await again.start(Supervisor())
    await again.stop()
    for _ in range(3):  # as a supervisor does
        copy = make_books(tmp_path / "copy", store_url)
        with pytest.raises(SetupError, match=r"Another gateway has used the spool.*delete .*/gateway"):
            await copy.start(Supervisor())
    (tmp_path / "copy" / "gateway").unlink()
    renamed = make_books(tmp_path / "copy", store_url)
    await renamed.start(Supervisor())
    assert renamed.spool.identity.name != first.spool.identity.name
    await renamed.stop()


async def test_a_gateway_whose_spool_was_taken_over_takes_no_more_calls(
    tmp_path: Path, store_url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books_module, "KEYS_REFRESH_S", 0.05)
    running = make_books(tmp_path / "one", store_url)
    await running.start(Supervisor())
    snapshot(tmp_path / "one", tmp_path / "copy")
    copy = make_books(tmp_path / "copy", store_url)
    await copy.start(Supervisor())
    await until(lambda: running.setup_error is not None)
    with pytest.raises(Refused, match="cannot be reached"):
        await running.open(Call(id="c", model="m", tier="standard"), 1)
    await copy.open(Call(id="c", model="m", tier="standard"), 1)
    await copy.stop()
    await running.stop()


async def test_a_claim_whose_answer_was_lost_is_made_again(tmp_path: Path, store_url: str, store: Store) -> None:
    first = make_books(tmp_path / "one", store_url)
    await first.start(Supervisor())
    await first.stop()
    killed = Spool(tmp_path / "one", QUOTA)
    assert store.claim(killed.identity.name, killed.identity.known, killed.identity.claim)  # and not recorded
    killed.stop()
    after = make_books(tmp_path / "one", store_url)
    await after.start(Supervisor())
    await after.stop()


@pytest.mark.parametrize("was_confirmed", [True, False])
async def test_of_copies_that_were_made_before_a_claim_was_answered_one_is_confirmed(
    tmp_path: Path, store_url: str, store: Store, *, was_confirmed: bool
) -> None:
    """A gateway that starts while the store is away takes calls before its claim is answered."""
    first = make_books(tmp_path / "one", store_url)
    await first.start(Supervisor())
    await first.stop()
    killed = Spool(tmp_path / "one", QUOTA)
    if was_confirmed:
        assert store.claim(killed.identity.name, killed.identity.known, killed.identity.claim)
    killed.stop()
    snapshot(tmp_path / "one", tmp_path / "copy")
    after = make_books(tmp_path / "one", store_url)
    await after.start(Supervisor())
    with pytest.raises(SetupError, match="Another gateway has used the spool"):
        await make_books(tmp_path / "copy", store_url).start(Supervisor())
    await after.stop()


def test_starts_that_the_store_does_not_answer_leave_a_bounded_file(tmp_path: Path) -> None:
    for _ in range(MOST_TRIED + 5):
        spool = Spool(tmp_path, QUOTA)
        spool.stop()
    assert len((tmp_path / "claim").read_text().split()) == 2 + MOST_TRIED
    assert spool.identity.claim.number == 1


def test_a_full_disk_at_the_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SetupError, match=r"cannot use the spool in .*No space left"):
        Spool(tmp_path, QUOTA)
    monkeypatch.undo()
    Spool(tmp_path, QUOTA).stop()


@pytest.mark.parametrize("name", ["gateway", "claim"])
def test_a_damaged_identity_is_said_and_mended_by_deleting_it(tmp_path: Path, name: str) -> None:
    spool = Spool(tmp_path, QUOTA)
    spool.reserve(reserved("open"))
    spool.stop()
    (tmp_path / name).write_bytes(b"\0\0\0\0")
    with pytest.raises(SetupError, match="Delete both"):
        Spool(tmp_path, QUOTA)
    (tmp_path / "gateway").unlink()
    (tmp_path / "claim").unlink()
    after = Spool(tmp_path, QUOTA)
    assert list(after.open) == ["open"]
    after.stop()


def test_only_the_owner_can_read_the_spool(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(0o755)
    spool = Spool(tmp_path / "spool", QUOTA)
    spool.reserve(reserved("c1"))
    with spool._segments[0].open("ab") as file:
        file.write(b"what is this\n")
    spool.next_batch()
    spool.stop()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes
    assert any(path.parent.name == "bad" for path in modes)
