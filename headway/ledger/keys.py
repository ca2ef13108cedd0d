"""Keys: who may call which models and tiers, within which limits. A key is shown once, when it is created; only its
SHA-256 is stored.

A key is 32 random bytes, too many to guess, so it needs no slow hash. A lookup is one access to a table by hash, so its
duration reveals nothing about existing keys.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from headway.errors import SetupError
from headway.ledger.entries import steady_now_us

log = logging.getLogger("headway.ledger")

PREFIX = "hw-"
SECRET_BYTES = 32


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For limits and budgets None means no limit; for `models` and `tiers` it means all."""

    id: str
    hash: str
    name: str = ""
    models: list[str] | None = None
    tiers: list[str] | None = None
    default_tier: str | None = None  # of calls that ask for none; standard if not set
    requests_pm: int | None = None
    input_tpm: int | None = None
    output_tpm: int | None = None
    fast_requests_pm: int | None = None
    fast_input_tpm: int | None = None
    fast_output_tpm: int | None = None
    budget_day: int | None = None  # micro-units
    budget_month: int | None = None
    created_us: int = 0
    revoked_us: int | None = None
    old_hash: str | None = None  # before the last rotation; valid until `old_hash_until_us`
    old_hash_until_us: int = 0
    version: int = 0  # of the table of keys when this key last changed


def key_hash(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def new_key_id() -> str:
    return f"key-{secrets.token_hex(5)}"


class KeyTable:
    """All keys by hash, as of `as_of_us` on this machine's clock and `store_us` on the store's.

    Keys are revoked and replaced at a time of the store's clock."""

    def __init__(self) -> None:
        self.as_of_us = 0
        self.store_us = 0
        self.version = 0
        self._keys: dict[str, Key] = {}  # by id
        self._by_hash: dict[str, Key] = {}

    def take(self, keys: list[Key], as_of_us: int, store_us: int | None = None) -> None:
        """Add or replace keys."""
        for key in keys:
            if (was := self._keys.get(key.id)) is not None:
                for known in (was.hash, was.old_hash):
                    self._by_hash.pop(known or "", None)
            self._keys[key.id] = key
            self._by_hash[key.hash] = key
            if key.old_hash:
                self._by_hash[key.old_hash] = key
            self.version = max(self.version, key.version)
        self.as_of_us = as_of_us
        self.store_us = as_of_us if store_us is None else store_us

    def find(self, hashed: str, now_us: int) -> Key | None:
        key = self._by_hash.get(hashed)
        # This machine's clock only says how long ago the table was read.
        store_now_us = self.store_us + max(0, now_us - self.as_of_us)
        if key is None or (key.revoked_us is not None and key.revoked_us <= store_now_us):
            return None
        if hashed == key.old_hash and key.old_hash_until_us <= store_now_us:
            return None
        return key

    def by_id(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    def all(self) -> list[Key]:
        return list(self._keys.values())


class _Cached(msgspec.Struct):
    as_of_us: int
    keys: list[Key]
    store_us: int | None = None


class KeyCache:
    """A copy of the table on the local disk, so that a gateway can start while the store is unavailable. It is signed:
    a file that was written without the secret is ignored."""

    def __init__(self, path: Path, secret: bytes) -> None:
        self._path = path
        self._secret = secret

    def save(self, table: KeyTable) -> None:
        """Keeps the last copy if the disk takes no new one."""
        body = msgspec.json.encode(_Cached(table.as_of_us, table.all(), table.store_us))
        new = self._path.with_suffix(".new")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self._sign(body) + b"\n" + body)
            new.replace(self._path)
        except OSError as error:
            log.warning("cannot save the keys for a start without the store: %s", error)

    def load(self, table: KeyTable) -> None:
        """Fill an empty table. Leaves it empty if there is no cache or its signature is wrong."""
        try:
            signature, _, body = self._path.read_bytes().partition(b"\n")
            if hmac.compare_digest(signature, self._sign(body)):
                cached = msgspec.json.decode(body, type=_Cached)
                # If the clock was set back since, they are taken as new, and not as valid for longer than that.
                table.take(cached.keys, min(cached.as_of_us, steady_now_us()), cached.store_us)
        except (OSError, msgspec.MsgspecError):
            return

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._secret, b"keys\n" + body, hashlib.sha256).hexdigest().encode()


def read_secret(path: Path) -> bytes:
    """Read the owner's secret, or create it. Raises SetupError if it is too short."""
    try:
        secret = path.read_bytes().strip()
    except FileNotFoundError:
        return _create_secret(path)
    if len(secret) < SECRET_BYTES:
        raise SetupError(
            f"The secret in {path} has {len(secret)} bytes, at least {SECRET_BYTES} are needed. Make one with "
            f"`openssl rand -hex {SECRET_BYTES} > {path}`, or delete the file and it is made."
        )
    return secret


def _create_secret(path: Path) -> bytes:
    """Another gateway may do the same now: the first one wins. There is never a file with a part of a secret."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_hex(SECRET_BYTES).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()
    return read_secret(path)


def cache_salt(secret: bytes, tenant: str) -> str:
    """Return the salt that separates a tenant's prompts from other tenants' in an engine's prefix cache."""
    return hmac.new(secret, b"cache\n" + tenant.encode(), hashlib.sha256).hexdigest()[:32]
