"""`headway status`: what it says of what dispatchers told, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.cli.status import Told, advice_for, as_record
from headway.dispatch.frames import RelayStatus, ReplicaStatus, Status

OPEN = ReplicaStatus("http://[::1]:8000", "m", is_open=True, seats=8, aboard=3, is_behind=False)
SILENT = ReplicaStatus("http://[::1]:8001", "m", is_open=False, seats=8, aboard=0, is_behind=False, is_silent=True)
RELAYS = [RelayStatus("relay-1", 3, 0.1), RelayStatus("relay-2", 0, None)]
LEADER = Status("leader", 7, RELAYS, [SILENT, OPEN], open_replicas=1, held=2, lag_s=0.004)
STANDBY = Told("tcp://b:1", Status("standby"))
AWAY = Told("tcp://c:1", None, "cannot connect")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([Told("tcp://a:1", LEADER), STANDBY, AWAY], ""),
        ([AWAY], "start `headway dispatch`"),
        ([STANDBY, AWAY], "No dispatcher leads"),
        ([STANDBY, Told("tcp://a:1", Status("candidate", 7, RELAYS))], "1 of 2 relays are connected"),
        ([Told("tcp://a:1", Status("leader", 7, RELAYS, []))], "check that the engines run"),
        ([Told("tcp://a:1", Status("leader", 7, RELAYS, [SILENT]))], "Let relays read their /metrics"),
        ([Told("tcp://a:1", Status("leader", 7, RELAYS[1:]))], "start `headway relay`"),
    ],
    ids=["serves", "nobody answers", "nobody leads", "too few relays", "no replica", "silent engines", "no relay"],
)
def test_the_advice(told: list[Told], words: str) -> None:
    advice = advice_for(told)
    assert words in advice
    assert bool(advice) == bool(words)


def test_the_record_for_scripts() -> None:
    record = as_record([STANDBY, Told("tcp://a:1", LEADER), AWAY], "")
    assert record["leader"] == "tcp://a:1"
    assert record["epoch"] == 7
    assert [one["role"] for one in record["dispatchers"]] == ["standby", "leader", None]
    assert [one["connected"] for one in record["relays"]] == [True, False]
    assert [(one["open"], one["silent"]) for one in record["replicas"]] == [(False, True), (True, False)]
    assert (record["open_replicas"], record["held"], record["lag_s"]) == (1, 2, 0.004)


def test_of_two_that_believe_to_lead_the_higher_epoch_counts() -> None:
    older = Told("tcp://b:1", Status("leader", 6))
    assert as_record([older, Told("tcp://a:1", LEADER)], "")["leader"] == "tcp://a:1"


def test_a_table_shows_what_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(*_: object) -> list[Told]:
        return [Told("tcp://a:1", LEADER), STANDBY]

    monkeypatch.setattr("headway.cli.status._ask_all", told)
    result = CliRunner().invoke(app, ["status", "--dispatcher", "tcp://a:1"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    for words in (
        "leads",
        "stands by",
        "100 ms ago",
        "lost",
        "http://[::1]:8000",
        "streams unknown",
        "Calls held: 2",
        "4 ms",
    ):
        assert words in result.output


def test_without_a_dispatcher_the_exit_code_is_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--dispatcher", f"unix:{tmp_path}/nobody", "--json"])
    assert result.exit_code == 1
    assert "start `headway dispatch`" in json.loads(result.output)["advice"]
