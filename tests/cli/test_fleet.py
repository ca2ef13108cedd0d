"""`headway fleet` without a cluster: what it shows, and what it says when something is missing. tests/fleet/test_ray.py
has it with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import fleet as commands
from headway.cli.fleet import fleet
from headway.errors import SetupError
from headway.fleet.held import Report
from tests.fleet.simulated import engines

TABLE = engines()
READY = Report("engine", 0, TABLE.version, "m", 9000, "ready", "http://10.0.0.1:9000", starts=2, why="it ended [137]")
FILE = f"""
[gateway]
url = "http://gateway"
admin_key_file = "key"
[[processes]]
name = "engine"
model = "m"
command = ["a"]
port = {TABLE.port}
"""


class FakeFleet:
    """Stands for headway/fleet/ray.py. `told` is what status says, one after the other."""

    def __init__(self, *told: tuple[list[Report], str] | SetupError) -> None:
        self.told = list(told)
        self.done: list[str] = []

    def status(self) -> tuple[list[Report], str]:
        told = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if isinstance(told, SetupError):
            raise told
        return told

    def __getattr__(self, name: str) -> object:
        return lambda *_: self.done.append(name)


def run(monkeypatch: pytest.MonkeyPatch, there: FakeFleet, *words: str) -> tuple[int, str]:
    monkeypatch.setattr(commands, "cluster", there)
    monkeypatch.setattr(commands, "LOOK_S", 0.001)
    result = CliRunner().invoke(fleet, list(words))
    if isinstance(result.exception, SetupError):
        return 2, result.exception.message
    return result.exit_code, result.output


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_help_says_what_it_does(command: str) -> None:
    said = CliRunner().invoke(fleet, [command, "--help"]).output
    assert "Example: headway fleet" in said or "Example: `headway fleet" in said
    assert "RAY_ADDRESS" in said
    assert "None" not in said


def test_status_shows_each_process_and_why_it_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        Report("engine", 1, TABLE.version, "m", 9001, "away"),
        Report("engine", 2, TABLE.version, "m", 9002, "away", "http://10.0.0.2:9002"),
        Report("relay", 0, "v", None, 7000, "ready", "http://10.0.0.2:7000", is_leaving=True),
    ]
    code, said = run(monkeypatch, FakeFleet(([*reversed(others), READY], "The gateway does not answer")), "status")
    assert code == 1
    rows = [line for line in said.splitlines() if "engine-" in line or "relay-" in line]
    for row, words in zip(
        rows,
        [
            ["engine-0", "ready", "http://10.0.0.1:9000", " 2 ", "it ended [137]"],
            ["engine-1", "no node has room for it, or it does not answer"],
            ["engine-2", "does not answer"],
            ["relay-0", "leaving"],
        ],
        strict=True,
    ):
        assert all(word in row for word in words), row
    assert "The gateway does not answer" in said
    assert run(monkeypatch, FakeFleet(([READY], "")), "status")[0] == 0


def test_up_waits_until_all_are_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FILE)
    old = Report("engine", 0, "old", "m", 9000, "ready")
    there = FakeFleet(
        ([], "The fleet's processes have not been asked yet."),
        SetupError("The fleet's actor does not answer"),
        ([old], ""),
        ([READY, Report("engine", 1, "old", "m", 9001, "ready", is_leaving=True)], ""),
        ([READY], "The gateway does not answer"),
        ([READY], ""),
    )
    code, said = run(monkeypatch, there, "up", str(tmp_path / "fleet.toml"))
    assert (code, there.done, len(there.told)) == (0, ["connect", "up"], 1), said
    assert "engine-0" in said


def test_up_need_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FILE)
    code, said = run(monkeypatch, FakeFleet(([], "")), "up", str(tmp_path / "fleet.toml"), "--no-wait")
    assert (code, "`headway fleet status` shows it" in said) == (0, True)


def test_a_file_that_is_wrong_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FILE + "gpu = 1")
    there = FakeFleet(([], ""))
    assert run(monkeypatch, there, "up", str(tmp_path / "fleet.toml")) == (
        2,
        f"{tmp_path}/fleet.toml:10: unknown setting `processes.gpu`: did you mean `gpus`?",
    )
    assert there.done == []


def test_down_waits_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    there = FakeFleet(([], "The fleet's processes have not been asked yet."), ([READY], ""), ([], ""))
    code, said = run(monkeypatch, there, "down")
    assert (code, there.done, "The fleet is down." in said) == (0, ["connect", "end", "forget"], True)
    there = FakeFleet(([READY], ""))
    assert run(monkeypatch, there, "down", "--now")[0] == 0
    assert there.done == ["connect", "end_now"]
