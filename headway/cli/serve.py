"""`headway serve`: run the gateway of a configuration."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import DEFAULT_CONFIG, ConfigPath, log_to_stderr
from headway.config import load
from headway.processes import serve_processes
from headway.run import serve as run_gateway


def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    record: Annotated[
        Path | None, typer.Option(help="Record every event and action in this file, for `headway replay`.")
    ] = None,
    relays: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Serve with this many processes that share the port and the seats. 1: one process does everything.",
        ),
    ] = 1,
) -> None:
    log_to_stderr(logging.INFO)
    settings = load(config)
    if relays == 1:
        raise typer.Exit(run_gateway(settings, record, _say_port, config))
    raise typer.Exit(serve_processes(settings, config, relays, record, _say_port))


def _say_port(port: int) -> None:
    typer.echo(f"Headway listens on port {port}.")
