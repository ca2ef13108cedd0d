"""`headway relay`: a process that serves calls and leaves the decisions to a dispatcher."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from headway.cli.options import (
    Authority,
    Certificate,
    CertificateKey,
    ParentPipe,
    SecretFile,
    log_to_stderr,
    security_of,
)
from headway.dispatch.address import parse_address
from headway.dispatch.asking import ask_config
from headway.dispatch.parent import end_with_parent, say_listening
from headway.run import RelayPlace, run_relay


def relay(
    dispatcher: Annotated[
        list[str],
        typer.Option(help="Where a dispatcher listens: tcp://HOST:PORT, or unix:PATH. Repeat it for each of them."),
    ],
    name: Annotated[str, typer.Option(help="Name of this relay, one of `relays` in [cell]. Its spool has it too.")],
    secret_file: SecretFile = None,
    certificate: Certificate = None,
    key: CertificateKey = None,
    ca: Authority = None,
    host: Annotated[str | None, typer.Option(help="Listen here instead of `host` in [gateway].")] = None,
    port: Annotated[int | None, typer.Option(help="Listen here instead of `port` in [gateway].")] = None,
    socket_fd: Annotated[
        list[int] | None, typer.Option("--socket", help="File descriptor of a socket that listens.", hidden=True)
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="What the dispatcher serves, if it need not be asked.", hidden=True)
    ] = None,
    parent_pipe: ParentPipe = None,
    stdout: Annotated[
        int | None, typer.Option(help="File descriptor of what is standard output once it listens.", hidden=True)
    ] = None,
) -> None:
    log_to_stderr(logging.INFO, name)
    end_with_parent(parent_pipe)
    security = security_of(secret_file, certificate, key, ca)
    place = RelayPlace(name, [parse_address(one) for one in dispatcher], security, host, port)
    if config is not None:
        text = config.read_text(encoding="utf-8")
    else:
        # The first process of a container gets only signals that it handles.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        text = uvloop.run(ask_config(place.dispatchers, security, name))
    sockets = [socket.socket(fileno=fd) for fd in socket_fd] if socket_fd else None

    def listens() -> None:
        say_listening()
        if stdout is not None:
            os.dup2(stdout, sys.stdout.fileno())

    code = uvloop.run(run_relay(text, place, sockets, listens))
    if code is None:
        os.execv(sys.executable, [sys.executable, "-m", "headway", *sys.argv[1:]])
    raise typer.Exit(code)
