"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="Path of the configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")
ApiKey = Annotated[
    str | None, typer.Option("--key", envvar="HEADWAY_KEY", help="API key, if the gateway requires one.")
]
