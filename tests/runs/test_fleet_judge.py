"""The rules by which runs/fleet.sh judges what engines, callers and books recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.ledger.sqlite import SQLiteStore
from runs.ledger.torture_judge import Sent, Witness, judge
from tests.ledger.test_store import reserved


@pytest.mark.parametrize(
    ("received", "low"),
    [
        pytest.param({"c1": 12}, 3, id="what the client got counts"),
        pytest.param({"c1": 40}, 31, id="also if it is much"),
        pytest.param({}, -9, id="a client that never heard of its call got nothing"),
        pytest.param(None, 96, id="without clients, all that the engine wrote counts"),
    ],
)
def test_what_a_killed_gateway_did_not_bill(tmp_path: Path, received: Mapping[str, int] | None, low: int) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    first = reserved("c1")
    store.insert([first, *first.lost(1, "r0", (10, 9), 2_000)])
    witness = Witness("r0")
    witness.requests["c1"] = Sent(prompt_tokens=10, tokens_sent=105, state="cut")
    judged = judge(store, [witness], [], received)
    assert judged.killed_low == [low]
    assert not [*judged.lost, *judged.over_billed, *judged.problems]
    store.close()
