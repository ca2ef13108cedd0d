"""Opens the access log that headway.toml asks for."""

from __future__ import annotations

from pathlib import Path

from headway.observe.access_log import AccessLog
from headway.observe.base import Observer

STDOUT = "-"


def open_observer(access_log: str | None) -> Observer:
    """`access_log` is a path, or "-" for standard output. Raises SetupError."""
    log = None
    if access_log is not None:
        log = AccessLog(Path(access_log) if access_log != STDOUT else None)
    return Observer(log)
