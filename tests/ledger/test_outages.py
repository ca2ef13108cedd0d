"""The books of a gateway while PostgreSQL is read-only, full, or taken over by its standby."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headway.core.types import Call
from headway.ledger import books as books_module
from headway.ledger import budget as budget_module
from headway.ledger.books import Account, Books, BooksSettings
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.store import Store, StoreUnavailable
from headway.ledger.verify import verify, verify_budgets
from headway.price import Bill, Price
from headway.supervise import Supervisor
from headway.wire import Grant, Receipt, Usage
from runs.ledger.own_postgres import OwnPostgres
from tests.conftest import DROP_TABLES
from tests.ledger.test_store import set_read_only

pytestmark = pytest.mark.anyio
BUDGET, WORST, COST = 16_000, 900, 300
KEY = Key(id="k", hash=key_hash(b"hw-k"), budget_day=BUDGET)
GRANT = Grant("standard", "standard", "r0", None, 0.0, Price(1_000_000, 2_000_000))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books_module, "RECONNECT_S", 0.1)
    monkeypatch.setattr(books_module, "KEYS_REFRESH_S", 0.1)
    monkeypatch.setattr(budget_module, "IDLE_S", 0.2)


@pytest.fixture
def clean(postgres: OwnPostgres) -> Iterator[OwnPostgres]:
    with psycopg.connect(postgres.url) as db:
        db.execute(DROP_TABLES)
    prepare(postgres.url)
    yield postgres
    set_read_only(postgres, value=False)


def prepare(url: str) -> None:
    store = open_store(url)
    store.migrate()
    store.put_key(KEY)
    store.close()


async def begin(books: Books, call_id: str) -> Account:
    call = Call(id=call_id, model="m", tier="standard", tenant="k")
    account = await books.open(call, WORST)
    account.boards(GRANT, None)
    return account


async def end(account: Account) -> None:
    usage = Usage(100, 0, (100,))
    bill = Bill(COST)
    account.close(Receipt(GRANT, "finished", usage, 9.0, kept=None, bill=bill, seat_us=1, answer_s=1.0, boardings=1))
    await account.durable()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.05)


def leased(store: Store) -> int:
    return sum(amount for *_, amount in store.slices())


def check(store: Store, calls: int) -> None:
    verdict = verify(store.entries())
    verify_budgets(verdict, store.slices(), store.keys_since(0))
    assert (verdict.problems, verdict.calls, verdict.open_calls, verdict.billed) == ([], calls, 0, calls * COST)


async def test_what_is_given_back_to_a_read_only_database_arrives_when_it_can_be_written(
    tmp_path: Path, clean: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_module, "IDLE_S", 1_000.0)
    books = Books(BooksSettings(tmp_path / "spool", 2**20, 3600.0), lambda: open_store(clean.url))
    await books.start(Supervisor())
    store = open_store(clean.url)
    await end(await begin(books, "c1"))
    await until(lambda: any(entry.kind == "released" for entry in store.entries()))
    assert leased(store) >= WORST
    set_read_only(clean, value=True)
    monkeypatch.setattr(budget_module, "IDLE_S", 0.2)
    await until(lambda: books.is_store_unavailable)  # it was told to take something back
    set_read_only(clean, value=False)
    await until(lambda: leased(store) == COST)
    await until(lambda: not books.is_store_unavailable)
    await end(await begin(books, "c2"))
    await until(lambda: leased(store) == 2 * COST)
    await books.stop()
    check(store, calls=2)
    store.close()


async def test_a_full_database_loses_and_doubles_nothing(tmp_path: Path, clean: OwnPostgres) -> None:
    books = Books(BooksSettings(tmp_path / "spool", 2**20, 3600.0), lambda: open_store(clean.url))
    await books.start(Supervisor())
    with psycopg.connect(clean.url) as db:
        db.execute(
            "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger AS $$ BEGIN "
            "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$ LANGUAGE plpgsql"
        )
    account = await begin(books, "c1")
    with psycopg.connect(clean.url) as db:
        for table in ("entries", "slices"):
            db.execute(f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION full_disk()")
    await end(account)
    await until(lambda: books.is_store_unavailable)
    with psycopg.connect(clean.url) as db:
        for table in ("entries", "slices"):
            db.execute(f"DROP TRIGGER full_disk ON {table}")
    store = open_store(clean.url)
    await until(lambda: leased(store) == COST)
    await books.stop()
    check(store, calls=1)
    store.close()


async def test_a_standby_takes_over_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    primary = OwnPostgres()
    primary.start()
    standby = OwnPostgres(standby_of=primary)
    standby.start()
    try:
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"  # the standby first: it must not be written to
        url = f"postgresql://headway@{hosts}/postgres"
        prepare(url)
        books = Books(BooksSettings(tmp_path / "spool", 2**20, 3600.0), lambda: open_store(url))
        await books.start(Supervisor())
        await end(await begin(books, "c1"))
        waiting = await begin(books, "c2")
        await asyncio.to_thread(until_standby_has_all, primary)
        primary.kill()
        await end(waiting)
        await until(lambda: books.is_store_unavailable)
        standby.promote()
        await until(lambda: not books.is_store_unavailable)
        await end(await begin(books, "c3"))
        store = open_store(url)
        await until(lambda: leased(store) == 3 * COST)
        await books.stop()
        check(store, calls=3)
        store.close()
    finally:
        standby.remove()
        primary.remove()


def until_standby_has_all(primary: OwnPostgres) -> None:
    with psycopg.connect(primary.url, autocommit=True) as db:
        deadline = time.monotonic() + 30
        same = "SELECT pg_current_wal_lsn() <= replay_lsn FROM pg_stat_replication"
        while db.execute(same).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise StoreUnavailable("the standby does not follow")
            time.sleep(0.02)
