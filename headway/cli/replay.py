"""`headway replay`: run a recorded gateway through core again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway.dispatch.record import replay as replay_record

console = Console()
errors = Console(stderr=True)


def replay(record: Annotated[Path, typer.Argument(help="File written by `headway serve --record`.")]) -> None:
    result = replay_record(record)
    if result.first_difference:
        errors.print(f"Different at {result.first_difference}", style="red", markup=False)
        raise typer.Exit(1)
    console.print(f"{result.events} events, {result.actions} actions: identical.")
