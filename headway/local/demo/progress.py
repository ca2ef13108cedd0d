"""Numbered steps on the console. The current step shows its elapsed time and what it does."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Say(Protocol):
    """Shows what a step does now, in one of its lines."""

    def __call__(self, doing: str, line: int = 0) -> None: ...


class Steps:
    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.number = 0

    def announce(self, title: str, how_long: str = "") -> None:
        self.number += 1
        hint = f" [dim]({how_long})[/dim]" if how_long else ""
        self.console.print(f"[bold]{self.number}/{self.total}[/bold] {title}{hint}", highlight=False)

    @contextmanager
    def step(self, title: str, how_long: str, lines: int = 1) -> Iterator[Say]:
        self.announce(title, how_long)
        began = time.monotonic()
        columns = (
            TextColumn("   "),
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", markup=False),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            tasks = [progress.add_task("", total=None, doing="") for _ in range(lines)]

            def say(doing: str, line: int = 0) -> None:
                # Always one line: a display that changes its height flickers.
                progress.update(tasks[line], doing=textwrap.shorten(doing, max(20, self.console.width - 20)))

            yield say
        self.console.print(f"    ready after {time.monotonic() - began:.1f} s", highlight=False)
