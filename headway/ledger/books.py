"""The books of one gateway: accounts of calls under way, the spool they are written to, the thread that ships it.

    gateway/serve.py ──► Account ──► Spool (local disk) ──► one thread ──► Store

The gateway never waits for the store: entries are durable in the spool, keys are looked up in a table that is refreshed
beside it, budgets are spent from leased slices. Only a slice that is used up asks the store. With the store away calls
are served into the spool until that is full, then refused with 503: never 401, never unbilled.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.core.types import Call
from headway.errors import Refused
from headway.ledger.budget import Budgets
from headway.ledger.entries import Entry, day_of, now_us
from headway.ledger.keys import Key, KeyCache, KeyTable, cache_salt, read_secret
from headway.ledger.spool import Spool
from headway.ledger.store import Lease, Store, StoreAway
from headway.price import Price
from headway.wire import Grant, Meter, Receipt, Usage

log = logging.getLogger("headway.ledger")

CHECKPOINT_S = 0.1  # a gateway that is killed bills what its streams had given this long before, or more
KEYS_REFRESH_S = 2.0
CACHE_REFRESH_S = 60.0
SHIP_S = 0.2
RECONNECT_S = 1.0
LAST_SHIPPING_S = 10.0
LEASE_S = 5.0  # a call waits no longer for an answer about its budget
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class BooksSettings:
    spool: Path
    spool_bytes: int
    key_cache_s: float
    secret: Path | None = None  # None: beside the spool


class Account:
    """The money of one call."""

    def __init__(self, books: Books, call: Call, tenant: Key | None, worst: int, day: str) -> None:
        self._books = books
        self._call = call
        self._tenant = tenant
        self._worst = worst
        self._day = day
        self.reserved: Entry | None = None  # written when the call is first sent to an engine
        self.attempt = 0
        self.replica = ""
        self.counted = Usage()  # as last noted in the spool
        self.is_over = False
        self._meter: Meter | None = None
        self._served: Entry | None = None

    def boards(self, grant: Grant, meter: Meter | None) -> None:
        """It is sent to an engine."""
        assert grant.price is not None
        self.attempt += 1
        self.replica, self._meter = grant.replica, meter
        if self.reserved is None:
            self.reserved = self._books.reserve(self, self._call, grant, grant.price, self._worst, self._day)

    def usage(self) -> Usage:
        """What was delivered until now."""
        return self._meter.usage() if self._meter is not None else Usage()

    def close(self, receipt: Receipt) -> None:
        """It is over: write what it cost."""
        assert not self.is_over
        self.is_over = True
        spent = 0
        if self.reserved is not None:
            spent = receipt.paid_micro
            closing = self.reserved.closing(receipt, now_us())
            self._served = closing[0]
            self._books.close_call(closing)
        self._books.settle(self._tenant, self._day, self._worst, spent)

    def add_seat_time(self, seat_us: int) -> None:
        """The receipt had no seat-time: core has told it since."""
        if self._served is not None and seat_us:
            self._books.spool.add(self._served.followed_by("seated", seat_us=seat_us))

    async def durable(self) -> None:
        """Until what was written is on the disk. Raises Refused if it cannot be."""
        try:
            await asyncio.shield(self._books.spool.durable())  # others wait for the same
        except OSError as error:
            log.error("the spool cannot be written: %s", error)
            raise Refused("books_full", RETRY_AFTER_S) from error


class Books:
    def __init__(self, settings: BooksSettings, open_store: Callable[[], Store]) -> None:
        self.spool = Spool(settings.spool, settings.spool_bytes)
        self.keys = KeyTable()
        self.gateway = self.spool.gateway
        self.is_away = True
        self._key_cache_us = int(settings.key_cache_s * 1e6)
        self._secret = read_secret(settings.secret or settings.spool / "secret")
        self._cache = KeyCache(settings.spool / "keys", self._secret)
        self._open_store = open_store
        self._accounts: dict[str, Account] = {}
        self._jobs: queue.SimpleQueue[Callable[[Store], None]] = queue.SimpleQueue()
        self._budgets = Budgets(self.gateway, self._ask, self._give_back, time.monotonic)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._tasks: list[asyncio.Task[None]] = []
        self._salts: dict[str, str] = {}
        self._saved_us = 0
        self._close_what_the_last_run_left()

    # --- life ---

    async def start(self) -> None:
        """Returns when the keys are known: from the store, or from the last time it was seen."""
        self._loop = asyncio.get_running_loop()
        first_look: asyncio.Future[None] = self._loop.create_future()
        self._first_look = first_look
        self._thread.start()
        self._tasks = [self._loop.create_task(self._checkpoint())]
        await first_look
        if self.is_away:
            self._cache.load(self.keys)
            log.warning("the store of the ledger is away; %d keys known from before", len(self.keys.all()))

    async def stop(self) -> None:
        """Every call is over. Ship what can be shipped; the rest stays in the spool for the next run."""
        for task in self._tasks:
            task.cancel()
        self._stopping.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, LAST_SHIPPING_S + 5.0)
        self.spool.stop()

    # --- keys ---

    def find_key(self, hashed: str) -> Key | None:
        """None: there is no such key. Raises Refused while that cannot be said."""
        now = now_us()
        if now - self.keys.as_of_us > self._key_cache_us:
            raise Refused("books_away", RETRY_AFTER_S)
        key = self.keys.find(hashed, now)
        if key is None and self.is_away:
            raise Refused("books_away", RETRY_AFTER_S)  # it may have been made since
        return key

    def salt(self, tenant: str) -> str:
        if (salt := self._salts.get(tenant)) is None:
            salt = self._salts[tenant] = cache_salt(self._secret, tenant)
        return salt

    # --- calls ---

    async def open(self, call: Call, worst: int) -> Account:
        """Take the worst case out of the key's budgets. Raises Refused: over the budget, or no room in the books."""
        if self.spool.is_full:
            self.spool.retry()
            if self.spool.is_full:
                raise Refused("books_full", RETRY_AFTER_S)
        day = day_of(now_us())
        key = self.keys.by_id(call.tenant)
        if key is not None:
            try:
                has_money = await self._budgets.reserve(key, day, worst)
            except StoreAway:
                raise Refused("books_away", RETRY_AFTER_S) from None
            if not has_money:
                raise Refused("over_budget", _seconds_left_of_day())
        return Account(self, call, key, worst, day)

    def reserve(self, account: Account, call: Call, grant: Grant, price: Price, worst: int, day: str) -> Entry:
        entry = Entry(
            call_id=call.id,
            attempt=account.attempt,
            kind="reserved",
            at_us=now_us(),
            day=day,
            gateway=self.gateway,
            key=call.tenant,
            model=call.model,
            replica=account.replica,
            tier_asked=call.tier,
            tier=grant.tier,
            input_price=price.input_micro,
            output_price=price.output_micro,
            multiple_milli=price.multiple_milli,
            amount=worst,
            auto=grant.rung.auto if grant.rung is not None else "",
        )
        self.spool.reserve(entry)
        self._accounts[call.id] = account
        return entry

    def close_call(self, closing: list[Entry]) -> None:
        del self._accounts[closing[0].call_id]
        self.spool.close_call(closing)

    def settle(self, key: Key | None, day: str, reserved: int, spent: int) -> None:
        if key is not None:
            self._budgets.settle(key, day, reserved, spent)

    async def _checkpoint(self) -> None:
        """Note how far the streams under way have come, should this process be killed; and give back idle money."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            rows = []
            for call_id, account in self._accounts.items():
                usage = account.usage()
                if usage != account.counted:
                    account.counted = usage
                    tokens = (usage.prompt_tokens, usage.output_tokens)
                    rows.append((call_id, account.attempt, account.replica, *tokens))
            if rows:
                self.spool.seen(rows)
            self._budgets.give_back_idle()

    def _close_what_the_last_run_left(self) -> None:
        lost = list(self.spool.open.values())
        for call in lost:
            usage = (call.prompt_tokens, call.output_tokens)
            self.spool.close_call(call.reserved.lost(call.attempt, call.replica, usage, now_us()))
        if lost:
            log.warning("the last run of this gateway was killed with %d calls under way: closed", len(lost))

    # --- the store, from the event loop's side ---

    async def _ask(self, lease: Lease, budget: int) -> int:
        if self.is_away:
            raise StoreAway
        answer: asyncio.Future[int] = self._loop.create_future()

        def job(store: Store) -> None:
            try:
                given = store.lease(lease, budget, now_us())
            except StoreAway as error:
                self._loop.call_soon_threadsafe(_fail, answer, error)
                raise
            self._loop.call_soon_threadsafe(_answer, answer, given)

        self._jobs.put(job)
        try:
            async with asyncio.timeout(LEASE_S):
                return await answer
        except TimeoutError:  # the store went away before it came to this: the same question is asked again later
            raise StoreAway from None

    def _give_back(self, slice_id: str, key: str, period: str, amount: int) -> None:
        def job(store: Store) -> None:
            try:
                store.give_back(slice_id, key, period, self.gateway, amount, now_us())
            except StoreAway:
                self._jobs.put(job)  # perhaps it was written: its id makes that the same
                raise

        self._jobs.put(job)

    # --- the store, from its thread ---

    def _work(self) -> None:
        while True:
            try:
                store = self._open_store()
                try:
                    store.migrate()
                    self._serve(store)
                    return
                finally:
                    store.close()
            except StoreAway as error:
                if not self.is_away:
                    log.warning("the store of the ledger is away: %s", str(error).strip())
            except Exception:
                # Whatever it is, calls are served into the spool as if the store were away, and it is tried again.
                log.exception("the store of the ledger failed")
            self._tell_loop(self._store_is_away)
            if self._stopping.wait(RECONNECT_S):
                return

    def _serve(self, store: Store) -> None:
        """Ship, refresh the keys and do what calls ask for, until told to stop."""
        refreshed_at = -KEYS_REFRESH_S
        is_settled = False
        stop_at: float | None = None
        while True:
            now = time.monotonic()
            if now - refreshed_at >= KEYS_REFRESH_S:
                self._refresh_keys(store)
                refreshed_at = now
            is_empty = self._ship(store)
            if is_empty and not is_settled:
                store.settle_runs_before(self.gateway, now_us())
                is_settled = True
            if self._stopping.is_set():
                stop_at = stop_at or now + LAST_SHIPPING_S
                if is_empty or now > stop_at:
                    return
            elif is_empty:
                self._do_jobs(store, SHIP_S)
            else:
                self._do_jobs(store, 0.0)

    def _ship(self, store: Store) -> bool:
        batch = self.spool.next_batch()
        if batch is None:
            return True
        store.insert(batch.entries)
        self.spool.shipped(batch)
        return False

    def _do_jobs(self, store: Store, wait_s: float) -> None:
        try:
            job = self._jobs.get(timeout=wait_s) if wait_s else self._jobs.get_nowait()
            while True:
                job(store)
                job = self._jobs.get_nowait()
        except queue.Empty:
            return

    def _refresh_keys(self, store: Store) -> None:
        as_of_us = now_us()
        changed = store.keys_since(self.keys.version)
        self._tell_loop(self._take_keys, changed, as_of_us)

    # --- back in the event loop ---

    def _tell_loop(self, what: Callable[..., None], *values: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *values)

    def _take_keys(self, changed: list[Key], as_of_us: int) -> None:
        self.keys.take(changed, as_of_us)
        if changed or as_of_us - self._saved_us > CACHE_REFRESH_S * 1e6:
            self._cache.save(self.keys)
            self._saved_us = as_of_us
        self.is_away = False
        self._looked()

    def _store_is_away(self) -> None:
        self.is_away = True
        self._looked()

    def _looked(self) -> None:
        if not self._first_look.done():
            self._first_look.set_result(None)


def _answer(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[int], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _seconds_left_of_day() -> int:
    return 86_400 - int(time.time()) % 86_400
