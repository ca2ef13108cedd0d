"""Checks API keys. Keys are compared by their SHA-256; a key itself is never stored or logged."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from headway.api.dialect import Headers
from headway.errors import Forbidden, Unauthorized
from headway.ledger.keys import Key, key_hash

FindKey = Callable[[str], Key | None]

MAX_KEY_BYTES = 512


class Keys:
    """The owner's keys, whose hashes are in the configuration, and those of the ledger, if there is one. If there are
    neither, everyone may call; config/ then allows loopback addresses only."""

    def __init__(self, hashes: tuple[str, ...], find_key: FindKey | None = None) -> None:
        self._hashes = hashes
        self._find_key = find_key

    @property
    def anyone_may_call(self) -> bool:
        return not self._hashes and self._find_key is None

    def check(self, headers: Headers) -> Key | None:
        """Returns the caller's key; None if anyone may call. Raises Unauthorized."""
        if self.anyone_may_call:
            return None
        hashed = _hash_of(headers)
        key = self._owner_key(hashed) or (self._find_key(hashed) if self._find_key is not None else None)
        if key is None:
            raise Unauthorized("Unknown API key.")
        return key

    def check_owner(self, headers: Headers) -> None:
        """For pages that show all tenants. If there are no owner's keys, everyone may see them without a ledger, and
        nobody with one. Raises Unauthorized or Forbidden."""
        if self.anyone_may_call:
            return
        self.check(headers)
        if not self._owner_key(_hash_of(headers)):
            raise Forbidden("This page requires an owner's key: one of `key_hashes` in the configuration.")

    def _owner_key(self, hashed: str) -> Key | None:
        # Compares every hash in constant time, so that response times reveal nothing about the keys.
        matches = [hmac.compare_digest(hashed, known) for known in self._hashes]
        return Key(id=f"key-{matches.index(True)}", hash=hashed) if any(matches) else None


def _hash_of(headers: Headers) -> str:
    key = _key_from(headers)
    if not key:
        raise Unauthorized("Missing API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
    if len(key) > MAX_KEY_BYTES:
        raise Unauthorized("Unknown API key.")
    return key_hash(key)


def _key_from(headers: Headers) -> bytes:
    if key := headers.get(b"x-api-key"):
        return key.strip()
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
