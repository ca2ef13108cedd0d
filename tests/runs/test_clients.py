"""The clients that most callers use, unchanged and at the versions of the catalogue, through a gateway on a scripted engine.

A client that cannot be installed fails its test with the reason. `make clients` runs these tests; runs/clients.sh drives
all clients.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.clients.catalog import CLIENTS, Client
from runs.clients.run import MUST_BE_THERE, Attempt
from runs.clients.scenarios import write_answers
from runs.clients.service import running_service

CHOSEN = [client for client in CLIENTS if client.name in MUST_BE_THERE]


def test_the_clients_that_must_be_there_are_in_the_catalogue() -> None:
    assert {client.name for client in CHOSEN} == MUST_BE_THERE == {"openai-python", "anthropic-python", "claude-code"}


@pytest.mark.clients
@pytest.mark.parametrize("client", [pytest.param(client, id=client.name) for client in CHOSEN])
def test_every_scenario_of_the_client_passes(client: Client, tmp_path: Path) -> None:
    attempts = [Attempt(client, scenario, tmp_path / str(number)) for number, scenario in enumerate(client.scenarios)]
    answers = tmp_path / "answers.toml"
    write_answers(answers, [(one.mark, one.work, one.scenario) for one in attempts])
    with running_service(tmp_path, answers) as service:
        rows = [attempt.run(service) for attempt in attempts]
    assert [row for row in rows if row.outcome != "passed"] == []
    assert {row.scenario for row in rows} == {scenario.name for scenario in client.scenarios}
