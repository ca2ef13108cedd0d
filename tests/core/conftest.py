"""Core's tests may not touch the clock, a socket or an event loop: if one needs to, core does too, and that is the bug."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest


def _forbidden(*_args: object, **_kwargs: object) -> None:
    raise AssertionError("core is pure: time is an argument, and there is no I/O and no event loop (docs/design/0001)")


@pytest.fixture(autouse=True)
def core_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock itself cannot be taken away (pytest reads it); tests/test_architecture.py bans it by import.
    for module, name in ((socket, "socket"), (asyncio, "new_event_loop"), (time, "sleep")):
        monkeypatch.setattr(module, name, _forbidden)
