"""Find the line of a setting in a TOML text, which the standard library's parser does not report.

Recognises tables, arrays of tables and `key =` at the start of a line, as people write them. For anything else, such as
a setting in an inline table, it returns the line of the nearest enclosing setting.
"""

from __future__ import annotations

import re

HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
KEY = re.compile(r"^\s*([A-Za-z0-9_\"'.-]+)\s*=")


def line_of(text: str, location: tuple[int | str, ...]) -> int:
    """Return the line of a location such as ("models", 0, "replicas", 1, "url"), or of its deepest part in the text."""
    lines = _lines_by_location(text)
    for length in range(len(location), 0, -1):
        if found := lines.get(tuple(location[:length])):
            return found
    return 1


def _lines_by_location(text: str) -> dict[tuple[int | str, ...], int]:
    lines: dict[tuple[int | str, ...], int] = {}
    count: dict[tuple[int | str, ...], int] = {}  # array of tables -> entries seen so far
    table: tuple[int | str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            table = ()
            names = [name.strip().strip("\"'") for name in header[2].split(".")]
            for position, name in enumerate(names):
                table = (*table, name)
                if header[1] == "[[" and position == len(names) - 1:
                    count[table] = count.get(table, 0) + 1
                if table in count:
                    lines.setdefault(table, number)
                    table = (*table, count[table] - 1)
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault((*table, *key[1].strip("\"'").split(".")), number)
    return lines
