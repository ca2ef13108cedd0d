"""`headway demo`: an engine and a gateway with one command."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway.cli.options import log_to_stderr
from headway.config import load
from headway.local.demo import prepare_demo, run_demo
from headway.local.race.scripted import run_scripted
from headway.run import running_gateway
from headway.run import serve as run_gateway

console = Console()


def demo(
    scripted: Annotated[
        bool, typer.Option("--scripted", help="Race fast against standard on scripted engines, without a model.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="With --scripted: stop after this many rounds.", show_default="until Ctrl-C"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to serve with the vLLM installed here, such as Qwen/Qwen3-8B on a GPU.",
            show_default="SmolLM2-135M on the CPU",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the gateway.", show_default="8000; with --scripted, a free port")
    ] = None,
    engine_port: Annotated[int | None, typer.Option(help="Port of the engine.", show_default="a free port")] = None,
    seats: Annotated[int, typer.Option(help="Maximum number of concurrent streams of the engine.")] = 16,
    prepare_only: Annotated[bool, typer.Option(help="Install the engine and the model, then exit.")] = False,
) -> None:
    if scripted:
        raise typer.Exit(run_scripted(console, running_gateway, port=port or 0, rounds=rounds))
    if prepare_only:
        prepare_demo(console)
        return

    def serve_config(path: Path, on_ready: Callable[[], None]) -> int:
        return run_gateway(load(path), on_listening=lambda _port: on_ready())

    log_to_stderr(logging.WARNING)
    raise typer.Exit(
        run_demo(
            model=model, port=port or 8000, engine_port=engine_port, seats=seats, console=console, serve=serve_config
        )
    )
