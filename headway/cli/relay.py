"""`headway relay`: a process that serves calls for `headway serve --relays`."""

from __future__ import annotations

import logging
import socket
from typing import Annotated

import typer
import uvloop

from headway.cli.options import DEFAULT_CONFIG, ConfigPath, ParentPipe, log_to_stderr
from headway.config import load
from headway.dispatch.address import parse_unix_address
from headway.dispatch.parent import end_with_parent, say_listening
from headway.run import run_relay


def relay(
    dispatcher: Annotated[str, typer.Option(help="Where the dispatcher listens, as unix:PATH.")],
    name: Annotated[str, typer.Option(help="Name of this relay, and of its folder in the spool.")],
    socket_fd: Annotated[
        list[int], typer.Option("--socket", help="File descriptor of a socket that listens. Repeat it for several.")
    ],
    config: ConfigPath = DEFAULT_CONFIG,
    parent_pipe: ParentPipe = None,
) -> None:
    log_to_stderr(logging.INFO, name)
    end_with_parent(parent_pipe)
    sockets = [socket.socket(fileno=fd) for fd in socket_fd]
    raise typer.Exit(uvloop.run(run_relay(load(config), parse_unix_address(dispatcher), name, sockets, say_listening)))
