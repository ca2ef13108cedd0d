"""Which calls begin alike, so that boarding can send them where such a prompt has been read before."""

from __future__ import annotations

from hashlib import blake2b

BEGINNING_BYTES = 1024


def affinity_of(body: bytes, session: object, *fields: bytes) -> str:
    """A short name for the beginning of a prompt: the session's, where the client names one, else a digest of how the
    given fields of the encoded request begin."""
    if isinstance(session, str) and session:
        beginning = session.encode()
    else:
        starts = [body.find(b'"%b":' % field) for field in fields]
        beginning = b"".join(body[start : start + BEGINNING_BYTES] for start in starts if start >= 0)
    return blake2b(beginning, digest_size=8).hexdigest()
