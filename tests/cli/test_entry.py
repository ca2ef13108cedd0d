"""`headway` starts fast: a command's imports load when it runs, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway import __version__
from headway.cli import app

# Modules of ours that import nothing else, and heavy libraries, with what they are needed for.
OURS = {"headway", "headway.cli", "headway.cli.entry", "headway.cli.commands", "headway.errors"}
HEAVY = {
    "asyncio",  # anything that serves or calls
    "uvloop",
    "uvicorn",
    "httptools",
    "pydantic",  # headway.toml
    "tomlkit",
    "msgspec",  # request bodies, ledger entries
    "prometheus_client",
    "psycopg",  # [ledger] on PostgreSQL
    "sqlite3",
    "altair",  # charts
    "vl_convert",
    "inspect_ai",  # `headway eval`
    "multiprocessing",  # `headway simulate`
}
CONFIG = """\
[[models]]
name = "m"
[[models.replicas]]
url = "http://127.0.0.1:9"
"""


def loaded_by(*words: str, cwd: Path | None = None) -> set[str]:
    """Run a command in a new Python and return the modules that it loaded."""
    code = f"""
import sys
from headway.cli import main
sys.argv = ["headway", *{words!r}]
try:
    main()
finally:
    print("loaded:", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_no_command(option: str) -> None:
    loaded = loaded_by(option)
    assert {name for name in loaded if name.split(".")[0] == "headway"} == OURS
    assert loaded & HEAVY == set()


def test_the_version_needs_no_rich() -> None:
    assert "rich" not in loaded_by("--version")


def test_check_loads_only_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text(CONFIG)
    loaded = loaded_by("check", cwd=tmp_path)
    assert loaded & HEAVY == {"pydantic"}


def test_serve_loads_only_what_serving_needs() -> None:
    """What it loads decides how long a gateway takes to accept its first call."""
    loaded = loaded_by("serve", "--help")
    serving = {"asyncio", "uvloop", "uvicorn", "httptools", "pydantic", "msgspec", "prometheus_client", "sqlite3"}
    assert loaded & HEAVY <= serving | {"multiprocessing"}  # which uvicorn imports


@pytest.mark.parametrize("command", ["simulate", "engine"])
def test_commands_that_serve_nothing_load_no_server(command: str) -> None:
    loaded = loaded_by(command, "--help")
    assert loaded & {"uvicorn", "uvloop", "httptools", "prometheus_client", "sqlite3", "headway.run"} == set()


def test_the_help_of_one_command_loads_that_command_only() -> None:
    loaded = {name for name in loaded_by("mock-engine", "--help") if name.startswith("headway.cli.")}
    assert loaded == {"headway.cli.entry", "headway.cli.commands", "headway.cli.mock_engine"}


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{__version__}\n")


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(app, ["simulat"])
    assert result.exit_code == 2
    assert "Did you mean 'simulate'?" in " ".join(result.output.split())


def test_an_error_raised_on_purpose_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway", "check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "headway.toml: No such file or directory. Create the file, or choose another with --config."
    ]
