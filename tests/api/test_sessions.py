"""Which session and agent a call is billed to, and what of a client's text can get into the ledger."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from headway.api.dialect import Headers
from headway.api.sessions import read_session
from headway.wire import Session

CLAUDE_CODE: Headers = {b"x-claude-code-session-id": b"0f3a-11", b"x-claude-code-agent-id": b"agent-7"}
LONG = "user_" + "a" * 64 + "_account__session_" + "b" * 64


def hashed(text: str) -> str:
    return "sha256:" + sha256(text.encode()).hexdigest()[:32]


def session_of(headers: Headers | None = None, **fields: Any) -> Session:
    return read_session(msgspec.json.encode({"model": "m", **fields}), headers or {})


def test_a_header_names_the_session_before_any_field() -> None:
    assert session_of(CLAUDE_CODE, prompt_cache_key="cache", user="u") == Session("0f3a-11", "agent-7")


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"prompt_cache_key": "cache-1", "user": "u", "metadata": {"user_id": "m"}}, "cache-1"),
        ({"prompt_cache_key": None, "user": "ada@example.org"}, "ada@example.org"),
        ({"prompt_cache_key": "", "metadata": {"user_id": "user-5", "other": [1]}}, "user-5"),
        ({"metadata": {"other": "x"}}, None),
        ({}, None),
    ],
)
def test_without_a_header_a_field_names_it(fields: dict[str, Any], session: str | None) -> None:
    assert session_of(**fields) == Session(session)


@pytest.mark.parametrize("text", [LONG, "my secret plan", "=HYPERLINK(1)", "[red]", "naïve", "a\nb", "\x00", "x" * 129])
def test_what_is_no_id_is_hashed_so_that_no_text_is_stored(text: str) -> None:
    assert session_of(user=text) == Session(hashed(text))
    assert session_of(user=text) != session_of(user=text + "'")


@pytest.mark.parametrize("value", [7, True, ["a"], {"user_id": "a"}, None, 1.5])
def test_a_value_of_another_type_names_nothing(value: Any) -> None:
    assert session_of(prompt_cache_key=value, user=value) == Session()
    assert session_of(metadata={"user_id": value}) == Session()
    assert session_of(metadata=[value]) == Session()


def test_bytes_that_are_no_text_are_hashed_too() -> None:
    session = session_of({b"x-claude-code-session-id": b"\xff\xfe", b"x-claude-code-agent-id": b"a b"})
    assert session == Session(hashed("ÿþ"), hashed("a b"))
