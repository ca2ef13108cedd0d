"""The clients that most callers use, unchanged and at the versions of the catalogue, through a gateway on a scripted engine.
And what is told of clients that cannot be installed.

A client that cannot be installed fails its test with the reason. `make clients` runs these tests; runs/clients.sh drives
all clients.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.clients.catalog import CLIENTS, Client
from runs.clients.environments import NotInstalled, ensure_client
from runs.clients.pasted import read_blocks
from runs.clients.run import MUST_BE_THERE, Attempt, scenarios_of
from runs.clients.scenarios import write_answers
from runs.clients.service import running_service

CHOSEN = [client for client in CLIENTS if client.name in MUST_BE_THERE]


def test_the_clients_that_must_be_there_are_in_the_catalogue() -> None:
    assert {client.name for client in CHOSEN} == MUST_BE_THERE


def test_every_client_has_its_block_in_the_how_to() -> None:
    # A web page is not one block: it needs a setting of the gateway and a page.
    assert read_blocks().keys() == {client.name for client in CLIENTS} - {"browser"}


@pytest.mark.clients
@pytest.mark.parametrize("client", [pytest.param(client, id=client.name) for client in CHOSEN])
def test_every_scenario_of_the_client_passes(client: Client, tmp_path: Path) -> None:
    attempts = [
        Attempt(client, scenario, tmp_path / str(number)) for number, scenario in enumerate(scenarios_of(client))
    ]
    answers = tmp_path / "answers.toml"
    write_answers(answers, [(one.mark, one.work, one.scenario) for one in attempts])
    with running_service(tmp_path, answers) as service:
        rows = [attempt.run(service) for attempt in attempts]
    assert [row for row in rows if row.outcome != "passed"] == []
    assert {row.scenario for row in rows} == {scenario.name for scenario in scenarios_of(client)}


COMMAND_CLIENT = Client(
    "some-agent",
    "npm",
    ("some-agent@1.0.0",),
    scenarios=(),
    command=("$environment/node_modules/.bin/some-agent", "-p"),
)
# Installs a program that ends with 1, as one without its binary does. The third argument is the folder.
BROKEN_PROGRAM = """#!/bin/sh
mkdir -p "$3/node_modules/.bin"
printf '#!/bin/sh\necho its binary is missing >&2; exit 1\n' > "$3/node_modules/.bin/some-agent"
chmod +x "$3/node_modules/.bin/some-agent"
"""
NO_PACKAGE = """#!/bin/sh
echo 'npm ERR! 404 some-agent is not in this registry.' >&2
echo 'npm ERR! A complete log of this run can be found in: a file' >&2
exit 1
"""


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        pytest.param("", "npm: .*No such file", id="no npm"),
        pytest.param(NO_PACKAGE, "npm ended with 1: .*404 some-agent is not in this registry", id="no package"),
        pytest.param(BROKEN_PROGRAM, "some-agent ended with 1: its binary is missing", id="no program"),
    ],
)
def test_a_client_that_cannot_be_installed_says_why_each_time(
    npm: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if npm:
        (programs / "npm").write_text(npm)
        (programs / "npm").chmod(0o755)
        for name in ("mkdir", "chmod"):
            (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # a folder without the program is not kept
        with pytest.raises(NotInstalled, match=reason):
            ensure_client(COMMAND_CLIENT)
