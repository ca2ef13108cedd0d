"""The commands. Each body only calls what does the work."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway import __version__
from headway.config import load
from headway.errors import HeadwayError
from headway.gateway.events import replay as replay_record
from headway.run import serve as run_serve

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Headway: fast mode for the models you run yourself, in front of vLLM.",
)
console = Console()
complaints = Console(stderr=True)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")


@app.command(epilog="Example: `headway serve --config headway.toml`")
def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    record: Annotated[
        Path | None, typer.Option(help="Write every event and action here, for `headway replay`.")
    ] = None,
) -> None:
    """Serve the models of a configuration until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings = load(config)
    raise typer.Exit(run_serve(settings, record, lambda port: console.print(f"Headway listens on port {port}.")))


@app.command(epilog="Example: `headway check --config headway.toml`")
def check(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Check a configuration without starting anything."""
    settings = load(config)
    for model in settings.models:
        seats = sum(replica.seats for replica in model.replicas)
        console.print(f"{model.name}: {len(model.replicas)} replica(s), {seats} seats")
    console.print(f"[green]{config} is fine.[/green]")


@app.command(epilog="Example: `headway serve --record run.jsonl`, then `headway replay run.jsonl`")
def replay(record: Annotated[Path, typer.Argument(help="A file written by `headway serve --record`.")]) -> None:
    """Run a recorded gateway through core again and compare every action."""
    result = replay_record(record)
    if result.first_difference:
        complaints.print(f"Different at {result.first_difference}", style="red", markup=False)
        raise typer.Exit(1)
    console.print(f"{result.events} events, {result.actions} actions: identical.")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        console.print(__version__)
        raise typer.Exit


def main() -> None:
    try:
        app()
    except HeadwayError as error:
        complaints.print(error.message, style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(2) from None
