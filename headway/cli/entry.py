"""The entry point: the `headway` app, which loads a command when it runs.

Imports nothing heavy, so that `headway --version` and `headway --help` answer at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from headway import __version__
from headway.cli.commands import COMMANDS, CommandInfo
from headway.errors import HeadwayError

LoadedCommand = TyperCommand | TyperGroup


class LazyGroup(TyperGroup):
    """Lists the commands from the table and loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, LoadedCommand, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        [info] = [one for one in COMMANDS if one.name == name]
        return name, load_command(info), rest


def load_command(info: CommandInfo) -> LoadedCommand:
    """Import the module of a command and build the command."""
    module, _, attribute = info.target.partition(":")
    target = getattr(import_module(module), attribute)
    parent = typer.Typer(rich_markup_mode="markdown")
    epilog = f"Example: `{info.example}`"
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=info.name, help=info.help, epilog=epilog, no_args_is_help=True)
    else:
        parent.command(info.name, help=info.help, epilog=epilog)(target)
    return cast(LoadedCommand, get_group(parent).commands[info.name])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Headway: fast mode for the models you run yourself, in front of vLLM.",
    epilog="Example: `headway demo`",
)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


def _listed() -> None:
    """Stands for a command in `headway --help`. LazyGroup loads the real one."""


for _info in COMMANDS:
    app.command(_info.name, help=_info.help, rich_help_panel=_info.panel)(_listed)


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(__version__)  # without typer, which loads pydantic to parse even one flag
        return
    try:
        app()
    except HeadwayError as error:
        from rich.console import Console  # only a failed run needs it

        Console(stderr=True).print(error.message, style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(2) from None
