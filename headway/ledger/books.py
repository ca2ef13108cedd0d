"""The books of one gateway: an account for each running call, the spool, and the thread that ships it to the store.

    gateway/serve.py ──► Account ──► Spool (local disk) ──► one thread ──► Store

The gateway does not wait for the store: the spool makes entries durable, keys are looked up in a local table that is
refreshed in the background, and budgets are spent from leased slices. Only a call that finds its slice used up waits
for the store. While the store is unavailable, calls are served and billed into the spool until it is full, then refused
with 503. They are never refused with 401 and never left unbilled.
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
from headway.errors import Refused, SetupError
from headway.ledger.budget import Budgets
from headway.ledger.entries import Entry, day_of, now_us, seconds_left, steady_now_us
from headway.ledger.keys import Key, KeyCache, KeyTable, cache_salt, read_secret
from headway.ledger.reading import StoreReader
from headway.ledger.spool import Spool
from headway.ledger.store import Lease, Store, StoreRefused, StoreUnavailable
from headway.price import Price
from headway.supervise import Supervisor
from headway.wire import NO_SESSION, Grant, Meter, Receipt, Session, Usage

log = logging.getLogger("headway.ledger")

CHECKPOINT_S = 0.1  # a killed gateway bills at least what its streams had delivered this long before
KEYS_REFRESH_S = 2.0
CACHE_REFRESH_S = 60.0
SHIP_S = 0.2
RECONNECT_S = 1.0
LAST_SHIPPING_S = 10.0
LEASE_S = 5.0  # how long a call waits for the store to lease budget
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class BooksSettings:
    spool: Path
    spool_bytes: int
    key_cache_s: float
    secret: Path | None = None  # None: in the spool's directory


class Account:
    """The money of one call."""

    def __init__(self, books: Books, call: Call, session: Session, tenant: Key | None, worst: int, day: str) -> None:
        self._books = books
        self._call = call
        self.session = session
        self._tenant = tenant
        self._worst = worst
        self._day = day
        self.reserved: Entry | None = None  # written when the call is first sent to an engine
        self.attempt = 0
        self.replica = ""
        self.counted = Usage()  # as last written to the spool
        self.is_over = False
        self._meter: Meter | None = None
        self._served: Entry | None = None

    def boards(self, grant: Grant, meter: Meter | None) -> None:
        """Record that the call is sent to an engine, the first time with its maximum cost. Raises Refused if the disk
        does not take that."""
        assert grant.price is not None
        self.attempt += 1
        self.replica, self._meter = grant.replica, meter
        if self.reserved is None:
            self.reserved = self._books.reserve(self, self._call, grant, grant.price, self._worst, self._day)

    def usage(self) -> Usage:
        """Return what was delivered so far."""
        return self._meter.usage() if self._meter is not None else Usage()

    def close(self, receipt: Receipt) -> None:
        """Write what the call cost. Called once, when it has ended."""
        assert not self.is_over
        self.is_over = True
        spent = 0
        if self.reserved is not None:
            spent = receipt.paid_micro
            closing = self.reserved.closing(receipt, now_us())
            self._served = closing[0]
            self._books.close_call(closing)
        self._books.settle(self._tenant, self._day, self._worst, spent)

    def add_seat_time(self, seat_us: int, estimated_tokens: int) -> None:
        """Add what core reports after the receipt was written: seat-time, and an estimate of the output tokens that
        were neither counted nor delivered."""
        if self._served is not None and seat_us:
            undelivered = self._served.price.amount(0, estimated_tokens) if estimated_tokens else None
            self._books.spool.add(self._served.followed_by("seated", seat_us=seat_us, undelivered=undelivered))

    async def durable(self) -> None:
        """Wait until all that was written is on disk. Raises Refused if writing fails."""
        try:
            await asyncio.shield(self._books.spool.durable())  # other calls wait for the same sync
        except OSError as error:
            log.error("cannot write to the spool: %s", error)
            raise Refused("books_full", RETRY_AFTER_S) from error


class Books:
    def __init__(self, settings: BooksSettings, open_store: Callable[[], Store]) -> None:
        self.spool = Spool(settings.spool, settings.spool_bytes)
        self.keys = KeyTable()
        self.gateway = self.spool.gateway
        self.is_store_unavailable = True
        self.setup_error: SetupError | None = None  # found while running; no new calls until it is fixed
        self._key_cache_us = int(settings.key_cache_s * 1e6)
        self.secret = read_secret(settings.secret or settings.spool / "secret")
        self._cache = KeyCache(settings.spool / "keys", self.secret)
        self._open_store = open_store
        self.reader = StoreReader(open_store, lambda: self.is_store_unavailable)
        self._accounts: dict[str, Account] = {}
        self._jobs: queue.SimpleQueue[Callable[[Store], None]] = queue.SimpleQueue()
        self.budgets = Budgets(self.gateway, self._lease, self._give_back, time.monotonic)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._checkpoints: asyncio.Task[None] | None = None
        self._salts: dict[str, str] = {}
        self._saved_us = 0
        self._close_calls_of_last_run()

    # --- start and stop ---

    async def start(self, supervisor: Supervisor) -> None:
        """Return when the keys are loaded: from the store, or from the local cache if the store is unavailable.

        Raises SetupError if the store's URL is wrong, or if the spool is a copy."""
        self._loop = asyncio.get_running_loop()
        self._first_try: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        self._checkpoints = supervisor.start("checkpoint", self._checkpoint, matters=True)
        await self._first_try
        if self.setup_error is not None:
            await self.stop()
            raise self.setup_error
        if self.is_store_unavailable:
            self._cache.load(self.keys)
            log.warning("the ledger's store is unavailable: using %d cached keys", len(self.keys.all()))

    async def stop(self) -> None:
        """Ship what can be shipped; the rest stays in the spool for the next run. All calls must have ended."""
        if self._checkpoints is not None:
            self._checkpoints.cancel()
        self._stopping.set()
        self.reader.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, LAST_SHIPPING_S + 5.0)
        self.spool.stop()

    # --- keys ---

    def find_key(self, hashed: str) -> Key | None:
        """Return None if there is no such key. Raises Refused if the local table is too old to tell."""
        now = steady_now_us()
        if now - self.keys.as_of_us > self._key_cache_us:
            raise Refused("books_away", RETRY_AFTER_S)
        key = self.keys.find(hashed, now)
        if key is None and self.is_store_unavailable:
            raise Refused("books_away", RETRY_AFTER_S)  # it may have been created since
        return key

    def salt(self, tenant: str) -> str:
        if (salt := self._salts.get(tenant)) is None:
            salt = self._salts[tenant] = cache_salt(self.secret, tenant)
        return salt

    # --- calls ---

    async def open(self, call: Call, worst: int, session: Session = NO_SESSION) -> Account:
        """Reserve the maximum cost in the key's budgets. Raises Refused if a budget or the spool has no room."""
        if self.setup_error is not None:
            raise Refused("books_away", RETRY_AFTER_S)
        if self.spool.is_full:
            self.spool.retry()
            if self.spool.is_full:
                raise Refused("books_full", RETRY_AFTER_S)
        day = day_of(now_us())
        key = self.keys.by_id(call.tenant)
        if key is not None:
            try:
                lacking = await self.budgets.reserve(key, day, worst)
            except StoreUnavailable:
                raise Refused("books_away", RETRY_AFTER_S) from None
            if lacking is not None:
                raise Refused("over_budget", seconds_left(lacking, now_us()))
        return Account(self, call, session, key, worst, day)

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
            cached_price=price.cached_micro,
            amount=worst,
            auto=grant.rung.auto if grant.rung is not None else "",
            session=account.session.id,
            agent=account.session.agent,
        )
        if not self.spool.reserve(entry):
            raise Refused("books_full", RETRY_AFTER_S)
        self._accounts[call.id] = account
        return entry

    def close_call(self, closing: list[Entry]) -> None:
        del self._accounts[closing[0].call_id]
        self.spool.close_call(closing)

    def settle(self, key: Key | None, day: str, reserved: int, spent: int) -> None:
        if key is not None:
            self.budgets.settle(key, day, reserved, spent)

    async def _checkpoint(self) -> None:
        """Write the progress of running streams, in case this process is killed, and give back idle slices."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            rows = []
            for call_id, account in self._accounts.items():
                usage = account.usage()
                if usage != account.counted:
                    account.counted = usage
                    tokens = (usage.prompt_tokens, usage.output_tokens)
                    rows.append((call_id, account.attempt, account.replica, *tokens))
            self.spool.seen(rows)
            self.budgets.give_back_idle()

    def _close_calls_of_last_run(self) -> None:
        lost = list(self.spool.open.values())
        for call in lost:
            self.spool.close_call(call.closing(now_us()))
        if lost:
            log.warning("closed %d calls that were running when this gateway was killed", len(lost))

    # --- requests to the store, from the event loop ---

    async def _lease(self, lease: Lease, budget: int) -> int:
        if self.is_store_unavailable:
            raise StoreUnavailable
        answer: asyncio.Future[int] = self._loop.create_future()

        def job(store: Store) -> None:
            try:
                given = store.lease(lease, budget, now_us())
            except (StoreUnavailable, StoreRefused):
                self._loop.call_soon_threadsafe(_answer, answer, StoreUnavailable())
                raise
            self._loop.call_soon_threadsafe(_answer, answer, given)

        self._jobs.put(job)
        try:
            async with asyncio.timeout(LEASE_S):
                return await answer
        except TimeoutError:  # the connection was lost first: Budgets repeats the same request later
            raise StoreUnavailable from None

    def _give_back(self, slice_id: str, key: str, period: str, amount: int) -> None:
        def job(store: Store) -> None:
            try:
                store.give_back(slice_id, key, period, self.gateway, amount, now_us())
            except StoreUnavailable:
                self._jobs.put(job)  # it may have been written: the id makes the retry safe
                raise

        self._jobs.put(job)

    # --- in the store's thread ---

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
            except (StoreUnavailable, OSError) as error:  # OSError: the spool cannot be read
                if not self.is_store_unavailable:
                    log.warning("the ledger's store is unavailable: %s", str(error).strip())
            except SetupError as error:
                self._call_in_loop(self._stop_taking_calls, error)
            except Exception:
                # Treat any other error like an unavailable store: serve into the spool and retry.
                log.exception("the ledger's store failed")
            self._call_in_loop(self._mark_unavailable)
            if self._stopping.wait(RECONNECT_S):
                return

    def _serve(self, store: Store) -> None:
        """Ship entries, refresh the keys and run the jobs of calls, until `stop`."""
        refreshed_at = -KEYS_REFRESH_S
        is_settled = False
        stop_at: float | None = None
        while True:
            now = time.monotonic()
            if now - refreshed_at >= KEYS_REFRESH_S:
                self._claim(store)  # also while running: another gateway may have started with a copy of the spool
                self._refresh_keys(store)
                refreshed_at = now
            is_empty = self._ship(store)
            if is_empty and not is_settled:
                store.settle_previous_runs(self.gateway, now_us())
                is_settled = True
            if self._stopping.is_set():
                stop_at = stop_at or now + LAST_SHIPPING_S
                if is_empty or now > stop_at:
                    return
            elif is_empty:
                self._do_jobs(store, SHIP_S)
            else:
                self._do_jobs(store, 0.0)

    def _claim(self, store: Store) -> None:
        identity = self.spool.identity
        if not store.claim(identity.name, identity.known, identity.claim):
            raise identity.is_taken()
        identity.confirm()

    def _ship(self, store: Store) -> bool:
        """Ship the next entries. Returns True if there are none."""
        batch = self.spool.next_batch()
        if batch is None:
            return True
        for number, why in store.insert(batch.entries):
            self.spool.set_aside(batch, number, why)
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
        as_of_us = steady_now_us()
        changed = store.keys_since(self.keys.version)
        self._call_in_loop(self._update_keys, changed, as_of_us, store.now_us())

    # --- back in the event loop ---

    def _call_in_loop(self, function: Callable[..., None], *values: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *values)

    def _update_keys(self, changed: list[Key], as_of_us: int, store_us: int) -> None:
        self.keys.take(changed, as_of_us, store_us)
        if changed or as_of_us - self._saved_us > CACHE_REFRESH_S * 1e6:
            self._cache.save(self.keys)
            self._saved_us = as_of_us
        self.is_store_unavailable = False
        self.setup_error = None
        self._mark_tried()

    def _stop_taking_calls(self, error: SetupError) -> None:
        if self.setup_error is None and self._first_try.done():
            log.error("no new calls are taken: %s", error)
        self.setup_error = error

    def _mark_unavailable(self) -> None:
        self.is_store_unavailable = True
        self._mark_tried()

    def _mark_tried(self) -> None:
        if not self._first_try.done():
            self._first_try.set_result(None)


def _answer(future: asyncio.Future[int], value: int | Exception) -> None:
    if isinstance(value, int) and not future.done():
        future.set_result(value)
    elif isinstance(value, Exception) and not future.done():
        future.set_exception(value)
