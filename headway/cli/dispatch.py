"""`headway dispatch`: the process that decides for relays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from headway.cli.options import (
    DEFAULT_CONFIG,
    Authority,
    Certificate,
    CertificateKey,
    ConfigPath,
    ParentPipe,
    SecretFile,
    log_to_stderr,
    security_of,
)
from headway.deciding import DISPATCHER, run_candidate, run_dispatcher
from headway.dispatch.address import TcpAddress, parse_address
from headway.dispatch.parent import end_with_parent, say_listening
from headway.errors import SetupError


def dispatch(
    listen: Annotated[str, typer.Option(help="Where to listen for relays: tcp://HOST:PORT, or unix:PATH.")],
    config: ConfigPath = DEFAULT_CONFIG,
    secret_file: SecretFile = None,
    certificate: Certificate = None,
    key: CertificateKey = None,
    ca: Authority = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve this dispatcher's Prometheus metrics at http://HOST:PORT/metrics, without a key."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Record every event and action in this file, for `headway replay`.")
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(min=1, help="Decide at once, without a lease; higher than each before.", hidden=True),
    ] = None,
    relay: Annotated[list[str] | None, typer.Option(help="With --epoch: name of a relay.", hidden=True)] = None,
    parent_pipe: ParentPipe = None,
) -> None:
    log_to_stderr(logging.INFO, DISPATCHER)
    end_with_parent(parent_pipe)
    address = parse_address(listen)
    if epoch is not None:
        uvloop.run(run_dispatcher(config, address, epoch, relay or [], record, say_listening))
        return
    security = security_of(secret_file, certificate, key, ca)
    metrics_at = _metrics_address(metrics) if metrics is not None else None
    uvloop.run(run_candidate(config, address, security, record, metrics_at, say_listening))


def _metrics_address(text: str) -> TcpAddress:
    try:
        address = parse_address(f"tcp://{text}")
    except SetupError:
        raise SetupError(f"--metrics {text}: write HOST:PORT or [IPV6]:PORT.") from None
    assert isinstance(address, TcpAddress)
    return address
