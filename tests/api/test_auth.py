from __future__ import annotations

import hashlib

import pytest

from headway.api.auth import Keys
from headway.errors import Forbidden, Unauthorized
from headway.ledger.keys import Key

HASH = hashlib.sha256(b"hw-secret").hexdigest()
KEYS = Keys((hashlib.sha256(b"another").hexdigest(), HASH))


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer hw-secret"},
        {b"authorization": b"bearer hw-secret "},
        {b"x-api-key": b"hw-secret"},
    ],
)
def test_a_known_key_is_let_in(headers: dict[bytes, bytes]) -> None:
    key = KEYS.check(headers)
    assert key is not None
    assert key.id == "key-1"
    KEYS.check_owner(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"hw-secret"},
        {b"authorization": b"Basic hw-secret"},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Bearer hw-secre"},
        {b"authorization": b"Bearer hw-secret2"},
        {b"authorization": b"Bearer " + HASH.encode()},
        {b"x-api-key": b"' OR 1=1 --"},
        {b"x-api-key": b"hw-secret" + b"\x00" * 600},
    ],
)
def test_anything_else_is_not(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(Unauthorized) as refused:
        KEYS.check(headers)
    assert "secret" not in refused.value.message


def test_without_keys_everyone_is_let_in() -> None:
    assert Keys(()).check({}) is None
    Keys(()).check_owner({})


def test_the_ledgers_keys_are_callers_and_not_owners() -> None:
    tenant = Key(id="t", hash=HASH)
    keys = Keys((), lambda hashed: tenant if hashed == HASH else None)
    assert keys.check({b"x-api-key": b"hw-secret"}) == tenant
    with pytest.raises(Unauthorized):
        keys.check({b"x-api-key": b"other"})
    with pytest.raises(Forbidden):
        keys.check_owner({b"x-api-key": b"hw-secret"})
