"""`headway engine`: print the commands that start the engines of a configuration."""

from __future__ import annotations

import typer

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import load
from headway.config.engine_commands import engine_commands
from headway.errors import SetupError


def engine(config: ConfigPath = DEFAULT_CONFIG) -> None:
    commands = list(engine_commands(load(config)))
    if not commands:
        raise SetupError(f'{config} describes no engine. Add [models.engine] with weights = "..." to a model.')
    for one in commands:
        typer.secho(f"# {one.url}" + (f" (profile {one.profile})" if one.profile else ""), dim=True)
        typer.echo(one.command)
