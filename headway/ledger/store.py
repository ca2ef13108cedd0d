"""The store: the database of entries, keys and slices of budgets.

The SQL is shared; sqlite.py and postgres.py connect and lock.

Synchronous: one thread of a gateway (books.py) and the commands use it. Every method is one transaction and raises
StoreUnavailable if the database is lost, read-only or full; the caller decides what that means. All writes are
idempotent: an entry or a slice that exists stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from headway.ledger.entries import BILLED, Entry
from headway.ledger.identity import Claim
from headway.ledger.keys import Key
from headway.ledger.migrations import MIGRATIONS

COLUMNS = ("id", *Entry.__struct_fields__)
INSERT_ENTRY = (
    f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT (id) DO NOTHING"
)
IS_BILLED = f"kind IN ({', '.join(repr(kind) for kind in BILLED)})"


# A slice is at most one part in this many of what is left, so that little is tied up in gateways that do not need it.
PARTS_LEFT = 16


class StoreUnavailable(Exception):
    """The database cannot be reached, the connection was lost, or it takes no writes now: try again later."""


class StoreRefused(Exception):
    """The database can store nothing like this: to try again is of no use."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A gateway's request for a slice of a key's budget: at least `need`, at most `want`."""

    id: str
    key: str
    period: str
    gateway: str
    need: int
    want: int


@dataclass(frozen=True, slots=True)
class SpentRow:
    """What a key spent on one model and tier in one day."""

    day: str
    model: str
    tier: str
    calls: int
    prompt_tokens: int
    cached_tokens: int  # part of the prompt tokens
    output_tokens: int
    amount: int  # after refunds


@dataclass(frozen=True, slots=True)
class EarnedRow:
    """What the calls of one model and tier brought in one day, and the seat-time that they took."""

    model: str
    tier: str
    calls: int
    prompt_tokens: int
    output_tokens: int
    served: int
    refunded: int  # 0 or negative
    seat_us: int


class Cursor(Protocol):
    """The methods that the cursors of both drivers have."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any: ...
    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Store:
    def transaction(self, *, lock: str | None = None) -> AbstractContextManager[Cursor]:
        """A transaction, committed at its end or rolled back. Transactions with the same `lock` exclude each other."""
        raise NotImplementedError

    def rows(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the rows of a query without loading all of them."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def now_us(self) -> int:
        """Return the time on the store's clock. Gateways' clocks may differ."""
        raise NotImplementedError

    def migrate(self) -> list[str]:
        """Run the migrations that are missing and return their names."""
        done = []
        with self.transaction(lock="migrations") as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
            cursor.execute("SELECT name FROM migrations")
            known = {name for (name,) in cursor.fetchall()}
            for name, steps in MIGRATIONS.items():
                if name not in known:
                    for step in steps:
                        cursor.execute(step)
                    cursor.execute("INSERT INTO migrations (name) VALUES (?)", (name,))
                    done.append(name)
        return done

    # --- entries ---

    def insert(self, entries: list[Entry]) -> list[tuple[int, StoreRefused]]:
        """Insert entries. Returns the places of those that the database can not store, which it does without."""
        try:
            self._insert(entries)
        except StoreRefused as error:
            if len(entries) == 1:
                return [(0, error)]
            return [(number, why) for number, entry in enumerate(entries) for _, why in self.insert([entry])]
        return []

    def _insert(self, entries: list[Entry]) -> None:
        rows = [(entry.id, *msgspec.structs.astuple(entry)) for entry in entries]
        with self.transaction() as cursor:
            cursor.executemany(INSERT_ENTRY, rows)

    def entries(self, first_day: str = "", last_day: str = "9999") -> Iterator[Entry]:
        """Yield entries ordered by call."""
        columns = ", ".join(Entry.__struct_fields__)
        sql = f"SELECT {columns} FROM entries WHERE day >= ? AND day <= ? ORDER BY call_id, at_us, id"
        for row in self.rows(sql, (first_day, last_day)):
            yield Entry(**dict(zip(Entry.__struct_fields__, row, strict=True)))

    def spent(self, key: str, days: Sequence[str]) -> list[SpentRow]:
        """Return what a key spent on these days. Days are listed, because an index finds each of them with the key; in
        a range of days it would go through the entries of all keys."""
        with self.transaction() as cursor:
            cursor.execute(
                "SELECT day, model, tier, SUM(CASE WHEN kind = 'served' THEN 1 ELSE 0 END), SUM(prompt_tokens), "
                "SUM(COALESCE(cached_tokens, 0)), SUM(output_tokens), SUM(amount) FROM entries "
                f"WHERE key = ? AND day IN ({', '.join('?' * len(days))}) AND {IS_BILLED} GROUP BY day, model, tier",
                (key, *days),
            )
            return [SpentRow(*row[:3], *map(int, row[3:])) for row in cursor.fetchall()]

    def earned(self, day: str) -> list[EarnedRow]:
        """Return what the calls of one day brought, by model and tier."""
        with self.transaction() as cursor:
            cursor.execute(
                "SELECT model, tier, SUM(CASE WHEN kind = 'served' THEN 1 ELSE 0 END), SUM(prompt_tokens), "
                "SUM(output_tokens), SUM(CASE WHEN kind = 'served' THEN amount ELSE 0 END), "
                "SUM(CASE WHEN kind = 'refunded' THEN amount ELSE 0 END), SUM(seat_us) FROM entries "
                f"WHERE day = ? AND ({IS_BILLED} OR kind = 'seated') GROUP BY model, tier",
                (day,),
            )
            return [EarnedRow(*row[:2], *map(int, row[2:])) for row in cursor.fetchall()]

    def spent_by_key(self, day: str) -> list[tuple[str, int, int]]:
        """Return (key, calls, amount) of one day."""
        with self.transaction() as cursor:
            cursor.execute(
                "SELECT key, SUM(CASE WHEN kind = 'served' THEN 1 ELSE 0 END), SUM(amount) FROM entries "
                f"WHERE day = ? AND {IS_BILLED} GROUP BY key",
                (day,),
            )
            return [(key, int(calls), int(amount)) for key, calls, amount in cursor.fetchall()]

    # --- gateways (identity.py) ---

    def claim(self, name: str, known: Sequence[Claim], claim: Claim) -> bool:
        """Make `claim` the last claim of a gateway's name, if one of `known` is, of which the first one was confirmed.
        Returns whether it is now, or was already.

        A store that was restored, or a standby that took over, may know only an older claim."""
        with self.transaction(lock=f"gateway {name}") as cursor:
            cursor.execute("SELECT number, nonce FROM gateways WHERE name = ?", (name,))
            row = cursor.fetchone()
            last = Claim(int(row[0]), str(row[1])) if row is not None else None
            if last == claim:
                return True
            if last is not None and last not in known and last.number >= known[0].number:
                return False
            cursor.execute(
                "INSERT INTO gateways (name, number, nonce) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET number = excluded.number, nonce = excluded.nonce",
                (name, claim.number, claim.nonce),
            )
            return True

    # --- keys ---

    def keys_since(self, version: int) -> list[Key]:
        """Return the keys created or changed after `version` of the table."""
        with self.transaction() as cursor:
            cursor.execute("SELECT key_json FROM keys WHERE version > ? ORDER BY version", (version,))
            return [msgspec.json.decode(text, type=Key) for (text,) in cursor.fetchall()]

    def put_key(self, key: Key) -> Key:
        """Create or change a key and return it with its version. Locked, so that versions become visible in order."""
        with self.transaction(lock="keys") as cursor:
            cursor.execute("SELECT COALESCE(MAX(version), 0) + 1 FROM keys")
            key = msgspec.structs.replace(key, version=int(cursor.fetchone()[0]))
            cursor.execute(
                "INSERT INTO keys (id, hash, version, key_json) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET hash = excluded.hash, version = excluded.version, key_json = excluded.key_json",
                (key.id, key.hash, key.version, msgspec.json.encode(key).decode()),
            )
        return key

    # --- slices of budgets (budget.py) ---

    def lease(self, ask: Lease, budget: int, at_us: int) -> int:
        """Lease a slice of what is left of a budget and return its amount, or 0 if less is left than needed. A repeated
        request (the first answer was lost) gets the first answer again."""
        with self.transaction(lock=f"budget {ask.key} {ask.period}") as cursor:
            cursor.execute("SELECT amount FROM slices WHERE id = ?", (ask.id,))
            if (before := cursor.fetchone()) is not None:
                return int(before[0])
            cursor.execute(
                "SELECT COALESCE(SUM(amount), 0) FROM slices WHERE key = ? AND period = ?", (ask.key, ask.period)
            )
            left = budget - int(cursor.fetchone()[0])
            if left < ask.need:
                return 0
            amount = max(ask.need, min(ask.want, left // PARTS_LEFT))
            self._put_slice(cursor, ask.id, ask.key, ask.period, ask.gateway, amount, at_us)
            return amount

    def give_back(self, slice_id: str, key: str, period: str, gateway: str, amount: int, at_us: int) -> None:
        with self.transaction() as cursor:
            self._put_slice(cursor, slice_id, key, period, gateway, -amount, at_us)

    def settle_previous_runs(self, gateway: str, at_us: int) -> None:
        """Free what earlier runs of this gateway leased and did not spend. All their entries must be in the store."""
        name, _, run = gateway.partition("/")
        with self.transaction(lock=f"gateway {name}") as cursor:  # SQLite fails one that reads, waits, and writes
            cursor.execute(
                "SELECT gateway, key, period, SUM(amount) FROM slices WHERE gateway LIKE ? AND NOT EXISTS "
                "(SELECT 1 FROM slices AS s WHERE s.id = slices.gateway || ':' || slices.key || ':' || slices.period "
                "|| ':settled') GROUP BY gateway, key, period",
                (f"{name}/%",),
            )
            for before, key, period, leased in cursor.fetchall():
                if int(before.partition("/")[2]) >= int(run):
                    continue
                cursor.execute(
                    f"SELECT COALESCE(SUM(amount), 0) FROM entries "
                    f"WHERE gateway = ? AND (key = ? OR replica = ?) AND day >= ? AND day <= ? AND {IS_BILLED}",
                    (before, key, key, period, period + "-99"),
                )
                unspent = int(leased) - int(cursor.fetchone()[0])
                slice_id = f"{before}:{key}:{period}:settled"
                self._put_slice(cursor, slice_id, key, period, before, -unspent, at_us)

    @staticmethod
    def _put_slice(cursor: Cursor, slice_id: str, key: str, period: str, gateway: str, amount: int, at_us: int) -> None:
        cursor.execute(
            "INSERT INTO slices (id, key, period, gateway, amount, at_us) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO NOTHING",
            (slice_id, key, period, gateway, amount, at_us),
        )

    def leased_by_key(self, period: str) -> dict[str, int]:
        """Return what was leased of each key's budget of this day or month, spent or not."""
        with self.transaction() as cursor:
            cursor.execute("SELECT key, SUM(amount) FROM slices WHERE period = ? GROUP BY key", (period,))
            return {key: int(amount) for key, amount in cursor.fetchall()}

    def slices(self) -> list[tuple[str, str, str, int]]:
        """Return (key, period, gateway, amount leased)."""
        with self.transaction() as cursor:
            cursor.execute("SELECT key, period, gateway, SUM(amount) FROM slices GROUP BY key, period, gateway")
            return [(key, period, gateway, int(amount)) for key, period, gateway, amount in cursor.fetchall()]
