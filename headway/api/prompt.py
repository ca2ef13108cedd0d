"""What boarding is told of a prompt: how it begins, and about how long it is. The prompt itself stays here."""

from __future__ import annotations

from hashlib import blake2b

from headway.core.types import Call

BEGINNING_BYTES = 1024
# Of the request as it is sent on, JSON and all. English has about four to a token; where there are fewer, a prompt is
# taken for shorter than it is.
BYTES_PER_TOKEN = 4


def describe_prompt(call: Call, body: bytes, session: object, *fields: bytes) -> None:
    """Calls of one session, where the client names it, are alike; else those whose given fields begin alike."""
    if isinstance(session, str) and session:
        beginning = session.encode()
    else:
        starts = [body.find(b'"%b":' % field) for field in fields]
        beginning = b"".join(body[start : start + BEGINNING_BYTES] for start in starts if start >= 0)
    call.affinity = blake2b(beginning, digest_size=8).hexdigest()
    call.prompt_tokens = len(body) // BYTES_PER_TOKEN
