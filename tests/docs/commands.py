"""The `headway` commands in a shell script: their names and options, compared with the command line of the package.

Knows the parts of shell that the documentation uses: continued lines, here documents, comments, pipes, assignments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from typer.core import TyperCommand

from headway.cli.commands import COMMANDS
from headway.cli.entry import LoadedCommand, load_command

HERE_DOCUMENT = re.compile(r"<<-? *'?(\w+)'?(.*?\n)(?:.*?\n)??\1$", re.MULTILINE | re.DOTALL)
ALWAYS = ("--help", "--version")


def headway_calls(script: str) -> Iterator[list[str]]:
    """The words after `headway` of each call, without redirections."""
    script = HERE_DOCUMENT.sub(r"\2", script).replace("\\\n", " ")
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                yield from _called(words)
                words = []
            else:
                words.append(word)


def _called(words: list[str]) -> Iterator[list[str]]:
    """What comes after `headway` in a simple command, if that is what it runs: itself, or by `kubectl exec`."""
    before = next((number for number, word in enumerate(words) if word == "headway"), len(words))
    if before < len(words) and ("exec" in words[:before] or all("=" in word for word in words[:before])):
        yield words[before + 1 :]


def problem(words: list[str]) -> str:
    """What is wrong with a call of `headway`. Empty if nothing is."""
    if not words or words[0] in ALWAYS:
        return ""
    command, rest = _command(words[0]), words[1:]
    if command is None:
        return f"there is no command `headway {words[0]}`"
    name = words[0]
    while not isinstance(command, TyperCommand):
        if not rest:
            return ""  # the group itself is named
        inner = command.commands.get(rest[0])
        if inner is None:
            return f"there is no command `headway {name} {rest[0]}`"
        command, name, rest = inner, f"{name} {rest[0]}", rest[1:]  # type: ignore[assignment]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("-") and len(option) > 1 and option not in known and option not in ALWAYS:
            return f"`headway {name}` has no option {option}"
    return ""


@cache
def _command(name: str) -> LoadedCommand | None:
    return next((load_command(info) for info in COMMANDS if info.name == name), None)
