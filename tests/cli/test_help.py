"""Help texts: every command is in a panel, every option is described, and every example can be pasted."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from headway.cli import app
from headway.cli.commands import COMMANDS
from headway.cli.entry import LoadedCommand, load_command
from headway.cli.reference import leaves

TOP = {info.name: load_command(info) for info in COMMANDS}
LEAVES = {name: one for top, command in TOP.items() for name, one in leaves(top, command)}
EVERY: dict[str, LoadedCommand] = {**TOP, **LEAVES}


def help_of(name: str) -> str:
    result = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "400"})
    assert result.exit_code == 0
    return result.output


def test_commands_are_listed_in_panels() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "160"}).output
    panels = re.split(r"╭─ (\w+) ─*╮", text)
    listed = {
        panel: re.findall(r"^│ ([a-z-]+) ", rows, re.MULTILINE)
        for panel, rows in zip(panels[1::2], panels[2::2], strict=True)
    }
    assert listed == {
        "Options": ["--version", "--help"],
        "Serve": [
            "demo",
            "serve",
            "dispatch",
            "relay",
            "status",
            "check",
            "drain",
            "fleet",
            "engine",
            "replay",
            "mock-engine",
        ],
        "Measure": ["calibrate", "bench", "eval"],
        "Plan": ["plan", "simulate"],
        "Money": ["fares", "keys", "bill", "ledger"],
        "Models": ["distill", "auto"],
    }


@pytest.mark.parametrize("name", ["", *EVERY])
def test_no_help_shows_none(name: str) -> None:
    assert not re.search(r"\bnone\b", help_of(name), re.IGNORECASE)


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_is_described(name: str) -> None:
    for parameter in LEAVES[name].params:
        assert isinstance(parameter, TyperOption | TyperArgument)
        assert parameter.help, f"headway {name}: {parameter.name} has no help"
        assert parameter.help.endswith("."), f"headway {name}: {parameter.name}: not a sentence"


@pytest.mark.parametrize("name", EVERY)
def test_every_command_has_help_and_an_example(name: str) -> None:
    command = EVERY[name]
    assert command.help
    assert command.help.endswith(".")
    assert f"{_example(command)} ".startswith(f"headway {name} ")


@pytest.mark.parametrize("name", EVERY)
def test_every_example_is_accepted(name: str) -> None:
    """Its options exist and its values are valid. Nothing runs."""
    group = get_command(app)
    words = shlex.split(_example(EVERY[name]))[1:]
    context = group.make_context("headway", words)
    while isinstance(group, TyperGroup):
        called, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(called, rest, parent=context)
        group = command
    assert isinstance(group, TyperCommand)


def _example(command: LoadedCommand) -> str:
    found = re.fullmatch(r"Example: `(headway [^`]+)`", command.epilog or "")
    assert found, command.epilog
    return found[1]
