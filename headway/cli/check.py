"""`headway check`: check a configuration without starting anything, or compare it with the one that is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from headway.admin_client import ask_admin
from headway.cli.admin import AdminKey
from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import ModelTable, load
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
        console.print(f"{model.name}: {', '.join(_served_by(model))}", highlight=False, markup=False)
    console.print(f"[green]{config} is valid.[/green]")
    if against is not None:
        answer = ask_admin(against, key, "/admin/differences", config.read_bytes())
        found = [Difference(**one) for one in answer["differences"]]
        for one in found:
            console.print(str(one), highlight=False, markup=False, soft_wrap=True)
        console.print(f"{len(found)} differences from what {against} serves." if found else f"{against} serves it.")


def _served_by(model: ModelTable) -> Iterator[str]:
    if model.replicas_of is not None:
        yield f"shares the replicas of {model.replicas_of}"
    if model.replicas:
        yield f"{len(model.replicas)} replica(s), {sum(replica.seats for replica in model.replicas)} seats"
    if model.discover is not None:
        dns = model.discover.dns
        yield f"replicas by DNS: {dns}" if dns is not None else "replicas are registered at /admin/registered"
    if model.hosted is not None:
        yield f"overflow to {model.hosted.host}"
