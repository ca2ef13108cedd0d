"""Stored responses on both databases: by tenant, sealed, bounded in bytes and age."""

from __future__ import annotations

import pytest

from headway.errors import Refused, TooLarge
from headway.ledger.opening import open_store
from headway.ledger.responses import ResponseLimits, ResponseRows, ResponseStore
from headway.ledger.store import Store, StoreUnavailable

pytestmark = pytest.mark.anyio
SECRET = b"s" * 32
LIMITS = ResponseLimits(keep_us=10**12, max_response_bytes=1_000, max_bytes_per_key=1_000)


async def test_each_tenant_has_its_own(store_url: str) -> None:
    store = ResponseStore(lambda: open_store(store_url), SECRET, LIMITS)
    await store.keep("ada", {"resp_1": b"of ada"})
    await store.keep("bob", {"resp_1": b"of bob"})
    await store.keep("ada", {"resp_1": b"a second time"})  # what is there stays
    assert await store.read("ada", "resp_1") == b"of ada"
    assert await store.read("bob", "resp_1") == b"of bob"
    assert await store.read("eve", "resp_1") is None
    assert not await store.delete("eve", ["resp_1"])
    assert await store.delete("bob", ["resp_1"])
    assert await store.read("bob", "resp_1") is None
    assert await store.read("ada", "resp_1") == b"of ada"
    await store.stop()


async def test_a_row_is_readable_only_as_what_it_was_sealed_for(store_url: str) -> None:
    store = ResponseStore(lambda: open_store(store_url), SECRET, LIMITS)
    await store.keep("ada", {"resp_1": b"of ada"})
    books = open_store(store_url)
    with books.transaction() as cursor:
        cursor.execute("UPDATE responses SET tenant = 'eve'")
    books.close()
    assert await store.read("eve", "resp_1") is None
    await store.stop()
    other = ResponseStore(lambda: open_store(store_url), b"t" * 32, LIMITS)
    assert await other.read("eve", "resp_1") is None
    await other.stop()


def test_the_oldest_make_room_and_others_keep_theirs(store: Store) -> None:
    rows = ResponseRows(store, LIMITS)
    rows.keep("bob", {"resp_0": "x" * 900})
    for number in range(1, 6):
        rows.keep("ada", {f"resp_{number}": "x" * 300})
    assert rows.sealed("ada", [f"resp_{number}" for number in range(1, 6)]).keys() == {"resp_3", "resp_4", "resp_5"}
    assert rows.sealed("bob", ["resp_0"])
    rows.keep("ada", {"resp_6": "x" * 1_001})  # it leaves room for nothing, not even for itself
    assert not rows.sealed("ada", ["resp_6"])


def test_what_is_old_is_gone_before_it_is_deleted(store: Store) -> None:
    ResponseRows(store, LIMITS).keep("ada", {"resp_1": "x"})
    old = ResponseRows(store, ResponseLimits(-(10**9), 1_000, 1_000))
    assert not old.sealed("ada", ["resp_1"])
    old.expire()
    assert not ResponseRows(store, LIMITS).sealed("ada", ["resp_1"])


async def test_rows_that_are_kept_together_are_read_and_deleted_together(store_url: str) -> None:
    store = ResponseStore(lambda: open_store(store_url), SECRET, LIMITS)
    await store.keep("ada", {"resp_1": b"a response", "msg_1": b"an item"})
    assert await store.read_many("ada", ["msg_1", "msg_2", "resp_1"], 17) == {
        "resp_1": b"a response",
        "msg_1": b"an item",
    }
    with pytest.raises(TooLarge):
        await store.read_many("ada", ["msg_1", "msg_2", "resp_1"], 16)
    assert await store.read_many("bob", ["msg_1"], 17) == {}
    assert await store.delete("ada", ["resp_1", "msg_1"])
    assert await store.read_many("ada", ["msg_1", "resp_1"], 17) == {}
    await store.stop()


async def test_a_store_that_is_away_is_refused_and_used_again_when_it_is_back(store_url: str) -> None:
    is_away = True

    def opened() -> Store:
        if is_away:
            raise StoreUnavailable("away")
        return open_store(store_url)

    store = ResponseStore(opened, SECRET, LIMITS)
    with pytest.raises(Refused):
        await store.keep("ada", {"resp_1": b"of ada"})
    is_away = False
    await store.keep("ada", {"resp_1": b"of ada"})
    assert await store.read("ada", "resp_1") == b"of ada"
    await store.stop()
    with pytest.raises(Refused):
        await store.read("ada", "resp_1")
