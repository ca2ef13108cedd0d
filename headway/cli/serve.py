"""`headway serve`: run the gateway of a configuration."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import load
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


def log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
