"""The `headway` command. Each module holds one command or one group of commands; commands.py lists them all."""

from headway.cli.entry import app, main

__all__ = ["app", "main"]
