"""What core knows about a prompt: a hash of its beginning, and its estimated length. Core never sees the prompt."""

from __future__ import annotations

from hashlib import blake2b

BEGINNING_BYTES = 1024
# Counted over the whole request body, JSON included. English text has about four bytes per token; a prompt in a
# language with fewer is estimated too short.
BYTES_PER_TOKEN = 4


def describe_prompt(body: bytes, session: object, *fields: bytes, image_chars: int = 0) -> tuple[str, int]:
    """Returns (affinity, prompt tokens). Calls with the same affinity share a prompt prefix: they name the same
    session, or the given fields have the same beginning. The token count is estimated from the body's length
    without its images."""
    if isinstance(session, str) and session:
        beginning = session.encode()
    else:
        starts = [body.find(b'"%b":' % field) for field in fields]
        beginning = b"".join(body[start : start + BEGINNING_BYTES] for start in starts if start >= 0)
    return blake2b(beginning, digest_size=8).hexdigest(), (len(body) - image_chars) // BYTES_PER_TOKEN
