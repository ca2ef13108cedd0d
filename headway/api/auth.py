"""Checks API keys. Keys are compared by their SHA-256; a key itself is never stored or logged."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from headway.api.dialect import Headers
from headway.errors import Forbidden, Unauthorized
from headway.ledger.keys import Key, key_hash

FindKey = Callable[[str], Key | None]

MAX_KEY_BYTES = 512


class Keys:
    """The owner's keys, whose hashes are in the configuration, and those of the ledger, if there is one. If there are
    neither, everyone may call; config/ then allows loopback addresses only."""

    def __init__(
        self, hashes: Sequence[str], find_key: FindKey | None = None, admin_hashes: Sequence[str] = ()
    ) -> None:
        self._hashes = hashes
        self._find_key = find_key
        self._admin_hashes = admin_hashes

    def change(self, hashes: Sequence[str], admin_hashes: Sequence[str]) -> None:
        """These keys are in the configuration from now on."""
        self._hashes, self._admin_hashes = hashes, admin_hashes

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

    def check_admin(self, headers: Headers) -> None:
        """For what changes a running gateway. Raises Unauthorized or Forbidden."""
        if not self._admin_hashes:
            raise Forbidden(
                "Nobody may change this gateway while it runs: there are no `admin_key_hashes` in its configuration."
            )
        if not any(_matches(_hash_of(headers), self._admin_hashes)):
            raise Forbidden("This endpoint requires an admin key: one of `admin_key_hashes` in the configuration.")

    def _owner_key(self, hashed: str) -> Key | None:
        matches = _matches(hashed, self._hashes)
        return Key(id=f"key-{matches.index(True)}", hash=hashed) if any(matches) else None


def _matches(hashed: str, known: Sequence[str]) -> list[bool]:
    # Compares every hash in constant time, so that response times reveal nothing about the keys.
    return [hmac.compare_digest(hashed, one) for one in known]


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
