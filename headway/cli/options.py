"""What several commands share: options, and how they log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="Path of the configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")
ApiKey = Annotated[
    str | None, typer.Option("--key", envvar="HEADWAY_KEY", help="API key, if the gateway requires one.")
]
ParentPipe = Annotated[
    int | None,
    typer.Option(help="File descriptor of a pipe: when its other end closes, end.", show_default="run on"),
]


def log_to_stderr(level: int, process: str = "") -> None:
    """`process` is the name of this one, if several write to the same file."""
    of_process = f"{process} " if process else ""
    logging.basicConfig(level=level, format=f"%(asctime)s %(levelname)s {of_process}%(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
