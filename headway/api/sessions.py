"""The session and the agent that a call belongs to, for the bill.

A client names its session in a header or in a field. Coding agents send headers; other clients have fields that were
made for something else (caching, abuse) and hold one value for each conversation or each user. Names are ids: a value
that looks like anything else may hold a text or a secret, and only its hash is kept. Calls with the same value then
still have one sum.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from headway.api.dialect import Headers
from headway.wire import Session

SESSION_HEADER, AGENT_HEADER = b"x-claude-code-session-id", b"x-claude-code-agent-id"
NOTHING = msgspec.Raw(b"null")
AN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/|+=-]{0,127}")


class SessionFields(msgspec.Struct):
    """The fields that can name a session. Raw: a value of another type names none, whatever its size and depth."""

    prompt_cache_key: msgspec.Raw = NOTHING
    user: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING


class UserFields(msgspec.Struct):
    """Of `metadata` in the Anthropic dialect."""

    user_id: msgspec.Raw = NOTHING


_read_fields = msgspec.json.Decoder(SessionFields).decode
_read_user = msgspec.json.Decoder(UserFields).decode
_read_text = msgspec.json.Decoder(str).decode


def read_session(body: bytes, headers: Headers) -> Session:
    """`body` is a valid request as it came; the request for the engine does not have all fields."""
    session, agent = (_id_of(headers.get(name, b"").decode("latin-1")) for name in (SESSION_HEADER, AGENT_HEADER))
    return Session(session or _session_in(body), agent)


def _session_in(body: bytes) -> str | None:
    fields = _read_fields(body)
    user_id = _read_user(fields.metadata).user_id if bytes(fields.metadata).startswith(b"{") else NOTHING
    named = (_text_of(value) for value in (fields.prompt_cache_key, fields.user, user_id))
    return next((found for text in named if (found := _id_of(text))), None)


def _text_of(value: msgspec.Raw) -> str:
    return _read_text(value) if bytes(value).startswith(b'"') else ""


def _id_of(value: str) -> str | None:
    """None if it is empty. The hash is short: it tells values apart, and proves nothing."""
    if not value:
        return None
    if AN_ID.fullmatch(value):
        return value
    return f"sha256:{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
