"""What boarding is told of a prompt: how it begins, and about how long it is. The prompt itself stays here."""

from __future__ import annotations

from hashlib import blake2b

BEGINNING_BYTES = 1024
# Of the request as it is sent on, JSON and all. English has about four to a token; where there are fewer, a prompt is
# taken for shorter than it is.
BYTES_PER_TOKEN = 4


def describe_prompt(body: bytes, session: object, *fields: bytes) -> tuple[str, int]:
    """(affinity, prompt tokens). Calls with the same affinity share a prompt prefix: they name the same session, or
    the given fields begin alike. The token count is estimated from the body's length."""
    if isinstance(session, str) and session:
        beginning = session.encode()
    else:
        starts = [body.find(b'"%b":' % field) for field in fields]
        beginning = b"".join(body[start : start + BEGINNING_BYTES] for start in starts if start >= 0)
    return blake2b(beginning, digest_size=8).hexdigest(), len(body) // BYTES_PER_TOKEN
