"""The tables and the spool of a gateway of version 0.1, kept in from_0_1/, are taken over with exact books.

The sample was made by version 0.1.0 (commit 4bdd684): a gateway on SQLite with two scripted engines, of which `slow`
misses its floors. Then the store was locked, so that the next calls stayed in the spool, and the gateway was killed while
two streams ran. `runs/upgrade.sh` does the same at scale, with that commit itself.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headway.ledger.books import Books, BooksSettings
from headway.ledger.keys import key_hash
from headway.ledger.opening import open_store
from headway.ledger.spool import Spool
from headway.ledger.store import Store, StoreUnavailable
from headway.ledger.verify import verify, verify_budgets
from headway.supervise import Supervisor

pytestmark = pytest.mark.anyio
SAMPLE = Path(__file__).parent / "from_0_1"
QUOTA = 2**20
FOR_EVER_S = 1e9
RUNNING = {"01a1f426074ca453f2e6f012bddfc0fa": (9, 41), "01a1f426074ffcca9e84dd44e641372e": (9, 40)}
FRUGAL = "key-0000000002"


@pytest.fixture
def old_store_url(store_url: str) -> str:
    """A store with the tables that version 0.1 made, and what it wrote to them."""
    store = open_store(store_url)
    statements = (SAMPLE / "books.sql").read_text().split(";\n")
    with store.transaction(lock="sample") as cursor:
        for statement in statements:
            if statement.strip() and not statement.startswith(("BEGIN", "COMMIT")):
                cursor.execute(statement)
    store.close()
    return store_url


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE / "spool", tmp_path / "spool"))


def rows(store: Store, sql: str) -> list[Any]:
    with store.transaction() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def old_entries() -> dict[str, dict[str, Any]]:
    """The entries in the spool, by id."""
    lines = [json.loads(line) for line in (SAMPLE / "spool" / "000000000001.jsonl").read_text().splitlines()]
    entries = [value for kind, value in lines if kind == "entry"]
    return {f"{entry['call_id']}:{entry['attempt']}:{entry['kind']}": entry for entry in entries}


async def taken_over(url: str, spool: Path) -> Store:
    books = Books(BooksSettings(spool, QUOTA, FOR_EVER_S), lambda: open_store(url))
    await books.start(Supervisor())
    assert books.find_key(key_hash(b"hw-of-0-1")) is not None
    frugal = books.find_key(key_hash(b"hw-of-0-1-with-a-budget"))
    assert frugal is not None
    assert (frugal.tiers, frugal.budget_day, frugal.budget_month) == (["standard", "fast"], 100_000, 200_000)
    assert books.find_key(key_hash(b"hw-of-0-1-revoked")) is None
    assert books.gateway == "gw-9bba8d43/2"  # the same gateway, its next run
    await books.stop()
    return open_store(url)


async def test_entries_are_taken_over_as_they_were(old_store_url: str, spool: Path) -> None:
    old = old_entries()
    store = open_store(old_store_url)
    names = "id, call_id, attempt, kind, at_us, day, gateway, key, model, replica, tier, amount, outcome, seat_us"
    before = rows(store, f"SELECT {names} FROM entries ORDER BY id")
    store.close()
    store = await taken_over(old_store_url, spool)
    after = {row[0]: row for row in rows(store, f"SELECT {names} FROM entries ORDER BY id")}
    assert len(before) == 10 < len(old) == 22
    assert [after[row[0]] for row in before] == before
    for name, entry in old.items():
        found = dict(zip(names.split(", ")[1:], after[name][1:], strict=True))
        assert {key: value for key, value in entry.items() if key in found}.items() <= found.items()
    store.close()


async def test_running_calls_are_closed_at_their_last_progress(old_store_url: str, spool: Path) -> None:
    store = await taken_over(old_store_url, spool)
    lost = rows(
        store,
        "SELECT call_id, prompt_tokens, output_tokens FROM entries WHERE outcome = 'gateway_lost' AND kind = 'served'",
    )
    assert {call_id: (prompt, output) for call_id, prompt, output in lost} == RUNNING
    verdict = verify(store.entries())
    assert (verdict.calls, verdict.open_calls, verdict.held, verdict.problems) == (8, 0, 0, [])
    # By hand: 9 prompt tokens at 1, output tokens at 10 micro-units each; the fast calls that kept their floor at 2.1.
    standard = 3 * (9 + 200) + (9 + 70) + (9 + 410) + (9 + 400)
    assert (
        verdict.billed == standard + (2 * (9 + 200) * 2_100 + 1_000) // 2_000 + (2 * (9 + 120) * 2_100 + 1_000) // 2_000
    )
    store.close()


async def test_what_was_leased_and_not_spent_is_free_again(old_store_url: str, spool: Path) -> None:
    store = await taken_over(old_store_url, spool)
    ((spent,),) = rows(
        store, f"SELECT SUM(amount) FROM entries WHERE key = '{FRUGAL}' AND kind IN ('served', 'refunded')"
    )
    leased = rows(
        store, f"SELECT period, SUM(amount) FROM slices WHERE key = '{FRUGAL}' GROUP BY period ORDER BY period"
    )
    assert [(period, int(amount)) for period, amount in leased] == [("2026-11", spent), ("2026-11-19", spent)]
    verdict = verify(store.entries())
    verify_budgets(verdict, store.slices(), store.keys_since(0))
    assert verdict.problems == []
    store.close()


async def test_keys_that_0_1_cached_are_good_while_the_store_is_away(spool: Path) -> None:
    def away() -> Store:
        raise StoreUnavailable("away")

    books = Books(BooksSettings(spool, QUOTA, FOR_EVER_S), away)
    await asyncio.wait_for(books.start(Supervisor()), 20)
    assert books.find_key(key_hash(b"hw-of-0-1")) is not None
    await books.stop()
    assert sorted(Spool(spool, QUOTA).open) == []  # what was running is closed, in the spool


def test_0_1_does_not_start_on_a_spool_of_this_version_and_says_why(tmp_path: Path) -> None:
    Spool(tmp_path, QUOTA).stop()
    _, run = (tmp_path / "gateway").read_text().split("/")  # as version 0.1 reads it
    with pytest.raises(ValueError, match=r"1 of Headway 0\.2 or later.*set spool to an empty directory.*what is here"):
        int(run)
