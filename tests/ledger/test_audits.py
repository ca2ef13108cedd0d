"""Audits in the store: written once, unreadable there, deleted at the verdict or after a day, and rebuilt in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.ledger import audits as audits_module
from headway.ledger.audits import KEEP_US, AuditRow, AuditRows, AuditSample, AuditStore
from headway.ledger.opening import open_store
from headway.ledger.sealing import SealBroken, Sealer
from headway.ledger.store import Store, StoreUnavailable

SAMPLE = AuditSample("gw-a", "m-auto", "cal-1")
SECRET = b"s" * 32


def row(number: int, verdict: str | None = None, asked_us: int = 10**18) -> AuditRow:
    return AuditRow(number, 0.02, asked_us, verdict)


def test_what_waits_and_what_has_ended(store: Store) -> None:
    rows = AuditRows(store)
    for number in (2, 1, 3):
        assert rows.keep(SAMPLE, row(number), f"sealed {number}")
    assert not rows.keep(SAMPLE, row(3), "of another call")
    rows.end(SAMPLE, [row(2, "differs"), row(4, "escalated")])
    assert rows.page(SAMPLE, 0) == [row(1), row(2, "differs"), row(3), row(4, "escalated")]
    assert [rows.read(SAMPLE, number) for number in (1, 2, 3, 9)] == [
        ("sealed 1", None),
        (None, "differs"),
        ("sealed 3", None),
        None,
    ]
    rows.end(SAMPLE, [row(2, "same")])  # the first verdict stands
    assert rows.page(SAMPLE, 0)[1] == row(2, "differs")
    assert not rows.keep(SAMPLE, row(2), "of a call after the verdict")
    for number in (1, 2, 9):
        rows.withdraw(SAMPLE, number)  # what has a verdict stays
    assert [one.number for one in rows.page(SAMPLE, 0)] == [2, 3, 4]


def test_rows_are_read_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits_module, "PAGE", 2)
    rows = AuditRows(store)
    rows.end(SAMPLE, [row(number, "same") for number in range(1, 6)])
    assert [[one.number for one in rows.page(SAMPLE, after)] for after in (0, 2, 4, 5)] == [[1, 2], [3, 4], [5], []]


def test_a_new_calibration_begins_anew_and_other_gateways_keep_theirs(store: Store) -> None:
    rows, other = AuditRows(store), AuditSample("gw-b", "m-auto", "cal-1")
    rows.keep(SAMPLE, row(1), "x")
    rows.keep(other, row(1), "y")
    assert rows.page(AuditSample("gw-a", "m-auto", "cal-2"), 0) == []
    assert rows.page(SAMPLE, 0) == []
    assert rows.page(other, 0) == [row(1)]


def test_nothing_is_sealed_for_longer_than_a_day(store: Store) -> None:
    rows, now_us = AuditRows(store), store.now_us()
    rows.keep(SAMPLE, row(1, asked_us=now_us - KEEP_US - 1_000_000), "old")
    rows.keep(AuditSample("gone", "m-auto", "x"), row(1, asked_us=now_us - KEEP_US - 1_000_000), "old")
    rows.keep(SAMPLE, row(2, asked_us=now_us), "new")
    rows.expire()
    with store.transaction() as cursor:
        cursor.execute("SELECT sealed FROM audits WHERE sealed IS NOT NULL")
        assert cursor.fetchall() == [("new",)]
    assert [one.verdict for one in rows.page(SAMPLE, 0)] == ["expired", None]


def test_a_seal_is_for_one_name_and_one_secret() -> None:
    sealer = Sealer(SECRET)
    sealed = sealer.seal(b"a prompt", "audit 1")
    assert sealer.open(sealed, "audit 1") == b"a prompt"
    assert sealer.seal(b"a prompt", "audit 1") != sealed
    for opener, text, name in (
        (sealer, sealed, "audit 2"),
        (Sealer(b"t" * 32), sealed, "audit 1"),
        (sealer, sealed[:-8] + "AAAAAAA=", "audit 1"),
        (sealer, "no base64!", "audit 1"),
        (sealer, "", "audit 1"),
    ):
        with pytest.raises(SealBroken):
            opener.open(text, name)


@pytest.mark.anyio
async def test_the_prompt_is_nowhere_in_the_store(tmp_path: Path) -> None:
    def open_here() -> Store:
        return open_store(f"sqlite:///{tmp_path}/books.db")

    audits = AuditStore(open_here, "gw-a", SECRET)
    assert await audits.page(SAMPLE, 0) == []
    await audits.keep(SAMPLE, row(1), b"my secret prompt")
    assert await audits.read(SAMPLE, 1) == b"my secret prompt"
    assert audits.is_available
    audits.close()
    for path in tmp_path.iterdir():
        assert b"secret prompt" not in path.read_bytes()
    again = AuditStore(open_here, "gw-a", SECRET)
    assert await again.page(SAMPLE, 0) == [row(1)]
    assert await again.read(SAMPLE, 1) == b"my secret prompt"
    await again.end(SAMPLE, [row(1, "same")])
    assert await again.read(SAMPLE, 1) == "same"
    assert await again.read(SAMPLE, 2) is None
    again.close()


@pytest.mark.anyio
async def test_a_lost_store_is_opened_again(tmp_path: Path) -> None:
    is_away = True

    def open_here() -> Store:
        if is_away:
            raise StoreUnavailable("away")
        return open_store(f"sqlite:///{tmp_path}/books.db")

    audits = AuditStore(open_here, "gw-a", SECRET)
    with pytest.raises(StoreUnavailable):
        await audits.page(SAMPLE, 0)
    assert not audits.is_available
    is_away = False
    await audits.expire()
    assert audits.is_available
    audits.close()
