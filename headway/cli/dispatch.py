"""`headway dispatch`: the process that decides for the relays of `headway serve --relays`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from headway.cli.options import DEFAULT_CONFIG, ConfigPath, ParentPipe, log_to_stderr
from headway.config import load
from headway.deciding import DISPATCHER, run_dispatcher
from headway.dispatch.address import parse_unix_address
from headway.dispatch.parent import end_with_parent, say_listening


def dispatch(
    listen: Annotated[str, typer.Option(help="Where to listen for relays, as unix:PATH.")],
    relay: Annotated[list[str], typer.Option(help="Name of a relay that there is. Repeat it for several.")],
    config: ConfigPath = DEFAULT_CONFIG,
    epoch: Annotated[int, typer.Option(min=1, help="Higher than that of each dispatcher before this one.")] = 1,
    record: Annotated[
        Path | None, typer.Option(help="Record every event and action in this file, for `headway replay`.")
    ] = None,
    parent_pipe: ParentPipe = None,
) -> None:
    log_to_stderr(logging.INFO, DISPATCHER)
    end_with_parent(parent_pipe)
    settings, text = load(config), config.read_text(encoding="utf-8")
    uvloop.run(run_dispatcher(settings, text, parse_unix_address(listen), epoch, relay, record, say_listening))
