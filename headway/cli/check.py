"""`headway check`: check a configuration without starting anything, or compare it with the one that is served."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from headway.cli.admin import AdminKey, ask_admin
from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import load
from headway.config.differences import Difference

console = Console()


def check(
    config: ConfigPath = DEFAULT_CONFIG,
    against: Annotated[
        str | None, typer.Option(help="URL of a running gateway: show what differs from what it serves.")
    ] = None,
    key: AdminKey = "",
) -> None:
    settings = load(config)
    for model in settings.models:
        seats = sum(replica.seats for replica in model.replicas)
        if model.replicas_of is not None:
            console.print(f"{model.name}: shares the replicas of {model.replicas_of}")
        else:
            console.print(f"{model.name}: {len(model.replicas)} replica(s), {seats} seats")
    console.print(f"[green]{config} is valid.[/green]")
    if against is not None:
        answer = asyncio.run(ask_admin(against, key, "/admin/differences", config.read_bytes()))
        found = msgspec.convert(answer["differences"], list[Difference])
        for one in found:
            console.print(str(one), highlight=False, markup=False, soft_wrap=True)
        console.print(f"{len(found)} differences from what {against} serves." if found else f"{against} serves it.")
