"""`headway serve` and `headway engine`: run the gateway of a configuration, and start its engines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import load
from headway.errors import SetupError
from headway.run import engine_commands
from headway.run import serve as run_gateway


def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    record: Annotated[
        Path | None, typer.Option(help="Record every event and action in this file, for `headway replay`.")
    ] = None,
) -> None:
    log_to_stderr(logging.INFO)
    settings = load(config)
    raise typer.Exit(run_gateway(settings, record, lambda port: typer.echo(f"Headway listens on port {port}.")))


def engine(config: ConfigPath = DEFAULT_CONFIG) -> None:
    commands = engine_commands(load(config))
    if not commands:
        raise SetupError(f'{config} describes no engine. Add [models.engine] with weights = "..." to a model.')
    for url, command in commands.items():
        typer.secho(f"# {url}", dim=True)
        typer.echo(command)


def log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
