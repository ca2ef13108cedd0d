"""Keys: who may call. A key is compared by the SHA-256 of all of it; the key itself is stored and logged nowhere."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from headway.api.dialect import Headers
from headway.errors import Forbidden, Unauthorized
from headway.ledger.keys import Key, key_hash

FindKey = Callable[[str], Key | None]

MAX_KEY_BYTES = 512


class Keys:
    """The owner's keys, which the configuration has by their hashes, and those of the ledger, if there is one. With
    neither every caller is let in (then Headway listens on loopback only: config.py sees to that)."""

    def __init__(self, hashes: tuple[str, ...], find_key: FindKey | None = None) -> None:
        self._hashes = hashes
        self._find_key = find_key

    def check(self, headers: Headers) -> Key | None:
        """Who is calling; None where anyone may. Raises Unauthorized."""
        if not self._hashes and self._find_key is None:
            return None
        hashed = _hash_of(headers)
        key = self._owners(hashed) or (self._find_key(hashed) if self._find_key is not None else None)
        if key is None:
            raise Unauthorized("This API key is not known here.")
        return key

    def check_owner(self, headers: Headers) -> None:
        """For pages that tell of all tenants. Without owner's keys they are for whoever can reach the address, where
        there is no ledger, and for nobody where there is one."""
        if not self._hashes and self._find_key is None:
            return
        self.check(headers)
        if not self._owners(_hash_of(headers)):
            raise Forbidden("This page is for a key of the owner: one of `key_hashes` in the configuration.")

    def _owners(self, hashed: str) -> Key | None:
        # Every hash is compared, in constant time each, so that an answer's time says nothing about the keys.
        matches = [hmac.compare_digest(hashed, known) for known in self._hashes]
        return Key(id=f"key-{matches.index(True)}", hash=hashed) if any(matches) else None


def _hash_of(headers: Headers) -> str:
    key = _key_from(headers)
    if not key:
        raise Unauthorized("No API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
    if len(key) > MAX_KEY_BYTES:
        raise Unauthorized("This API key is not known here.")
    return key_hash(key)


def _key_from(headers: Headers) -> bytes:
    if key := headers.get(b"x-api-key"):
        return key.strip()
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
