"""Both stores: writes are idempotent, budgets are never leased twice, and a lost database raises StoreUnavailable."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from headway.errors import SetupError
from headway.ledger.entries import Entry
from headway.ledger.identity import Claim
from headway.ledger.keys import Key
from headway.ledger.migrations import MIGRATIONS
from headway.ledger.opening import open_store
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import Lease, Store, StoreRefused, StoreUnavailable
from headway.price import Bill
from headway.wire import Grant, Receipt, Usage
from runs.ledger.own_postgres import OwnPostgres


def reserved(call_id: str = "c1", gateway: str = "gw/1", amount: int = 900, key: str = "k") -> Entry:
    return Entry(
        call_id=call_id,
        attempt=1,
        kind="reserved",
        at_us=1_000,
        day="2026-11-15",
        gateway=gateway,
        key=key,
        model="m",
        replica="r0",
        tier_asked="fast",
        tier="fast",
        input_price=1_000_000,
        output_price=2_000_000,
        multiple_milli=3_000,
        amount=amount,
    )


REFUNDED = Bill(900, 600)


def whole_call(call_id: str = "c1", gateway: str = "gw/1", due: Bill = REFUNDED) -> list[Entry]:
    first = reserved(call_id, gateway)
    grant = Grant("fast", "fast", "r1", None, 50.0, first.price)
    usage = Usage(100, 10, (100,))
    return [
        first,
        *first.closing(
            Receipt(grant, "finished", usage, 60.0, kept=True, bill=due, seat_us=5_000, answer_s=1.0, boardings=2),
            2_000,
        ),
    ]


def ask(number: int, need: int, want: int = 0, gateway: str = "gw/1", period: str = "2026-11-15") -> Lease:
    return Lease(f"{gateway}:k:{period}:{number}", "k", period, gateway, need, want)


def test_entries_come_back_as_they_went_in_and_once(store: Store) -> None:
    first, *others = whole_call()
    entries = [first, *(msgspec.structs.replace(entry, session="s", agent="a") for entry in others)]
    store.insert(entries)
    store.insert(entries)
    store.insert(entries[:2])
    assert sorted(store.entries(), key=lambda entry: entry.id) == sorted(entries, key=lambda entry: entry.id)
    assert [entry.id for entry in entries] == ["c1:1:reserved", "c1:2:served", "c1:2:refunded", "c1:2:released"]


def test_migrations_are_done_once(store: Store) -> None:
    assert store.migrate() == []


def test_keys_are_read_by_what_changed(store: Store) -> None:
    first = store.put_key(Key(id="a", hash="1", tiers=["fast"], budget_day=5))
    second = store.put_key(Key(id="b", hash="2"))
    assert store.keys_since(0) == [first, second]
    changed = store.put_key(Key(id="a", hash="3", revoked_us=7))
    assert store.keys_since(second.version) == [changed]


def test_a_budget_is_leased_in_slices_until_there_is_no_more(store: Store) -> None:
    assert store.lease(ask(1, need=100, want=1_000), budget=3_200, at_us=0) == 200  # a sixteenth
    assert store.lease(ask(1, need=100, want=1_000), budget=3_200, at_us=0) == 200  # the same question
    assert store.lease(ask(2, need=2_900), budget=3_200, at_us=0) == 2_900
    assert store.lease(ask(3, need=101), budget=3_200, at_us=0) == 0
    assert store.lease(ask(4, need=100), budget=3_200, at_us=0) == 100
    store.give_back("gw/1:k:2026-11-15:5", "k", "2026-11-15", "gw/1", 150, 0)
    store.give_back("gw/1:k:2026-11-15:5", "k", "2026-11-15", "gw/1", 150, 0)
    assert store.lease(ask(6, need=151), budget=3_200, at_us=0) == 0
    assert store.lease(ask(7, need=150), budget=3_200, at_us=0) == 150


def test_what_a_run_that_is_over_did_not_spend_is_free_again(store: Store) -> None:
    for period in ("2026-11-15", "2026-11"):
        assert store.lease(ask(1, need=1_000, period=period), budget=1_000, at_us=0) == 1_000
    store.insert([entry for entry in whole_call() if entry.kind != "refunded"])  # spent 900
    store.settle_previous_runs("gw/1", 0)  # the run itself is not over
    assert store.lease(ask(2, need=1), budget=1_000, at_us=0) == 0
    store.settle_previous_runs("gw/2", 0)
    store.settle_previous_runs("gw/3", 0)
    assert store.lease(ask(1, need=101, gateway="gw/3"), budget=1_000, at_us=0) == 0
    assert store.lease(ask(2, need=100, gateway="gw/3"), budget=1_000, at_us=0) == 100
    assert store.lease(ask(1, need=100, gateway="gw/3", period="2026-11"), budget=1_000, at_us=0) == 100


def test_gateways_that_ask_at_once_get_no_more_than_there_is(store_url: str, store: Store) -> None:
    given: list[int] = []

    def gateway(name: str) -> None:
        own = open_store(store_url)
        given.extend(own.lease(ask(n, need=7, want=20, gateway=name), budget=500, at_us=0) for n in range(40))
        own.close()

    threads = [threading.Thread(target=gateway, args=(f"gw{number}/1",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(given) == sum(amount for *_, amount in store.slices())
    assert 493 < sum(given) <= 500


def test_a_lost_database_raises_store_unavailable(postgres: OwnPostgres) -> None:
    store = open_store(postgres.url)
    store.migrate()
    postgres.kill()
    try:
        with pytest.raises(StoreUnavailable):
            store.keys_since(0)
        with pytest.raises(StoreUnavailable):
            open_store(postgres.url)
    finally:
        postgres.start()
        store.close()
    again = open_store(postgres.url)
    assert again.keys_since(0) is not None
    again.close()


@pytest.fixture
def read_only(postgres: OwnPostgres) -> Iterator[OwnPostgres]:
    """A server that takes no writes, as one that is being taken over by its standby."""
    yield postgres
    set_read_only(postgres, value=False)


def set_read_only(postgres: OwnPostgres, *, value: bool) -> None:
    settings = "-c default_transaction_read_only=off"
    with psycopg.connect(postgres.url, autocommit=True, options=settings) as db:
        db.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if value else 'off'}")
        db.execute("SELECT pg_reload_conf()")
    with psycopg.connect(postgres.url, autocommit=True) as db:
        while (db.execute("SHOW default_transaction_read_only").fetchone() == ("on",)) != value:
            time.sleep(0.01)


def test_a_database_that_takes_no_writes_is_unavailable_and_no_error_of_ours(read_only: OwnPostgres) -> None:
    store = open_store(read_only.url)
    store.migrate()
    set_read_only(read_only, value=True)
    with pytest.raises(StoreUnavailable):
        store.give_back("s", "k", "2026-11-15", "gw/1", 1, 0)
    with pytest.raises(StoreUnavailable):
        store.insert(whole_call())
    with pytest.raises(StoreUnavailable, match="read-only"):
        open_store(read_only.url)
    store.close()


def test_a_full_database_is_unavailable(postgres: OwnPostgres) -> None:
    store = open_store(postgres.url)
    store.migrate()
    with store.transaction() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger AS $$ BEGIN "
            "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$ LANGUAGE plpgsql"
        )
        cursor.execute("CREATE TRIGGER full_disk BEFORE INSERT ON entries EXECUTE FUNCTION full_disk()")
    try:
        with pytest.raises(StoreUnavailable, match="extend"):
            store.insert(whole_call())
    finally:
        with store.transaction() as cursor:
            cursor.execute("DROP TRIGGER full_disk ON entries")
    assert store.insert(whole_call()) == []
    store.close()


def test_an_entry_that_the_database_can_not_store_is_named_and_the_others_are_stored(store: Store) -> None:
    entries = whole_call()
    null: Any = None
    wrong = msgspec.structs.replace(entries[2], model=null)
    [(number, why)] = store.insert([*entries[:2], wrong, *entries[3:]])
    assert number == 2
    assert isinstance(why, StoreRefused)
    assert {entry.id for entry in store.entries()} == {"c1:1:reserved", "c1:2:served", "c1:2:released"}


def test_the_store_confirms_one_successor_of_a_claim(store: Store) -> None:
    first, mine, other = Claim(1, "a"), Claim(2, "b"), Claim(2, "c")
    none = Claim(0, "-")
    assert store.claim("gw", [none], first)
    assert store.claim("gw", [first], mine)
    assert store.claim("gw", [first], mine)  # a gateway that runs
    assert not store.claim("gw", [first], other)
    assert store.claim("gw", [first, mine], other)  # the answer was lost
    assert not store.claim("gw", [first, mine], Claim(2, "d"))
    assert not store.claim("gw", [none], first)  # it has a successor
    assert store.claim("gw", [Claim(7, "g")], Claim(8, "h")), "a restored store knows only an older claim"
    assert store.claim("another", [none], Claim(1, "a"))


@pytest.mark.parametrize("user_info", ["user:pass@CANARY", "user:CAN%ARY", "user:CANARY@[", "user:CANARY?x=CANARY"])
def test_a_wrong_url_of_the_store_does_not_show_its_password(user_info: str) -> None:
    with pytest.raises((SetupError, StoreUnavailable)) as error:
        open_store(f"postgresql://{user_info}@127.0.0.1:1/name")
    assert not re.search("CAN.?ARY", "".join(traceback.format_exception(error.value)))


def test_only_the_owner_can_read_the_database(tmp_path: Path) -> None:
    for name in ("books.db", "old.db"):
        path = tmp_path / "made" / name
        if name == "old.db":
            path.touch(0o644)
        store = open_store(f"sqlite:///{path}")
        store.migrate()
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob(f"{name}*")}
        assert modes == {name: 0o600, f"{name}-wal": 0o600, f"{name}-shm": 0o600}
        store.close()
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_tables_only_gain_nullable_columns() -> None:
    """So that a gateway of the version before can go on writing while a new one is rolled out."""
    first = ["2026-11-15-entries", "2026-11-15-keys", "2026-11-15-slices", "2026-11-15-auto"]
    for name, steps in MIGRATIONS.items():
        if name not in first:
            for step in steps:
                if step.startswith(("CREATE TABLE ", "CREATE INDEX ")):  # the version before does not notice them
                    continue
                added = re.fullmatch(r"ALTER TABLE \w+ ADD COLUMN \w+ (TEXT|INTEGER|BIGINT)", step)
                assert added, f"{name}: {step!r} is not a new nullable column"


def test_what_is_committed_stays_when_another_process_closes_the_database(tmp_path: Path) -> None:
    """This process has two connections, as a gateway with books and audits. POSIX drops its locks on a file when it
    closes any descriptor of it."""
    path = tmp_path / "books.db"
    one = SQLiteStore(path)
    one.migrate()
    two = SQLiteStore(path)

    def count_elsewhere() -> str:
        ask = f"import sqlite3; db = sqlite3.connect({str(path)!r}); print(*db.execute('SELECT name FROM gateways'))"
        return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()

    assert count_elsewhere() == ""
    with one.transaction() as cursor:
        cursor.execute("INSERT INTO gateways (name, number, nonce) VALUES ('gw-a', 1, 'x')")
    assert count_elsewhere() == "('gw-a',)"
    one.close()
    two.close()
