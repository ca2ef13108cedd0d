"""`headway check`: check a configuration without starting anything."""

from __future__ import annotations

from rich.console import Console

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import load

console = Console()


def check(config: ConfigPath = DEFAULT_CONFIG) -> None:
    settings = load(config)
    for model in settings.models:
        seats = sum(replica.seats for replica in model.replicas)
        if model.replicas_of is not None:
            console.print(f"{model.name}: shares the replicas of {model.replicas_of}")
        else:
            console.print(f"{model.name}: {len(model.replicas)} replica(s), {seats} seats")
    console.print(f"[green]{config} is valid.[/green]")
