"""`headway demo`: engines and a gateway with one command, and a race of fast against standard on them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway.cli.options import log_to_stderr
from headway.config import load
from headway.gateway.serve import Gateway
from headway.local.demo.run import DemoOptions, prepare_demo, run_demo
from headway.local.race.scripted import run_scripted
from headway.run import running_gateway

console = Console()


@asynccontextmanager
async def _open_gateway(path: Path) -> AsyncIterator[tuple[Gateway, int]]:
    async with running_gateway(load(path), source=path) as opened:
        yield opened


def demo(
    scripted: Annotated[
        bool, typer.Option("--scripted", help="Race fast against standard on scripted engines, without a model.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of the race. Ctrl-C ends it early.", show_default="3; with --scripted, until Ctrl-C"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to serve with the vLLM installed here, such as Qwen/Qwen3-8B: one engine on each of the first "
            "two GPUs. With a single GPU there is no race.",
            show_default="SmolLM2-135M on two cores of the CPU",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the gateway.", show_default="8000; with --scripted, a free port")
    ] = None,
    engine_port: Annotated[
        int | None,
        typer.Option(help="Port of the first engine; the second one has the next port.", show_default="free ports"),
    ] = None,
    seats: Annotated[int, typer.Option(min=4, help="Maximum number of concurrent streams of each engine.")] = 64,
    prepare_only: Annotated[bool, typer.Option(help="Install the engine and the model, then exit.")] = False,
) -> None:
    if scripted:
        raise typer.Exit(run_scripted(console, running_gateway, port=port or 0, rounds=rounds))
    if prepare_only:
        prepare_demo(console)
        return
    log_to_stderr(logging.WARNING)
    options = DemoOptions(model=model, port=port or 8000, engine_port=engine_port, seats=seats, rounds=rounds)
    raise typer.Exit(run_demo(options, console, _open_gateway))
