"""Keys: who may call. A key is compared by the SHA-256 of all of it; the key itself is stored and logged nowhere."""

from __future__ import annotations

import hashlib
import hmac

from headway.errors import Unauthorized

Headers = dict[bytes, bytes]

MAX_KEY_BYTES = 512


def key_hash(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


class Keys:
    """The owner's keys, by their hashes. With none configured every caller is let in (then Headway listens on
    loopback only: config.py sees to that)."""

    def __init__(self, hashes: tuple[str, ...]) -> None:
        self._hashes = hashes

    def check(self, headers: Headers) -> str:
        """Who is calling: a name for the key, which says nothing of it. Raises Unauthorized."""
        if not self._hashes:
            return ""
        key = _key_from(headers)
        if not key:
            raise Unauthorized("No API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
        given = key_hash(key[:MAX_KEY_BYTES])
        # Every hash is compared, in constant time each, so that an answer's time says nothing about the keys.
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        if len(key) > MAX_KEY_BYTES or not any(matches):
            raise Unauthorized("This API key is not known here.")
        return f"key-{matches.index(True)}"


def _key_from(headers: Headers) -> bytes:
    if key := headers.get(b"x-api-key"):
        return key.strip()
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
