"""Keeps prompts for `headway distill collect`, if headway.toml enables it: JSON lines, one file per model and process.

Keeps only the `messages` and `tools` of OpenAI chat calls: no key, no answer, no time. Calls in other dialects and
calls with images are not kept.

Invariant: the file never grows beyond its limit, and a disk error never fails a call.
"""

from __future__ import annotations

import logging
import os
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.errors import SetupError
from headway.wire import Request

log = logging.getLogger("headway.gateway")
CHAT_PATH = "/v1/chat/completions"
ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class _Chat(msgspec.Struct, omit_defaults=True):
    """The raw parts of a body that make up a prompt."""

    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw()


_CHAT = msgspec.json.Decoder(_Chat)


@dataclass(frozen=True, slots=True)
class Keeping:
    path: Path
    share: float
    max_bytes: int
    keys: frozenset[str] = frozenset()  # ids of the keys whose prompts are kept; empty for all keys


class PromptFile:
    def __init__(self, keeping: Keeping, dice: random.Random | None = None) -> None:
        self._keeping = keeping
        self._dice = dice or random.Random()
        # Prompts are private: only the owner of the file may read them.
        try:
            self._file = os.open(keeping.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise SetupError(f"Cannot write prompts to {keeping.path} ({error}). Choose another file.") from error
        self._size = os.fstat(self._file).st_size

    def keep(self, request: Request) -> None:
        keeping = self._keeping
        if request.path != CHAT_PATH or request.images.pixels:
            return
        if keeping.keys and request.call.tenant not in keeping.keys:
            return
        if self._dice.random() >= keeping.share:
            return
        chat = _CHAT.decode(request.body)
        tools = b', "tools": ' + bytes(chat.tools) if bytes(chat.tools) else b""
        # A body may have line breaks, but never inside JSON strings.
        line = (b'{"messages": ' + bytes(chat.messages) + tools + b"}").translate(ONE_LINE) + b"\n"
        if self._size + len(line) > keeping.max_bytes:
            return
        try:
            self._size += os.write(self._file, line)
        except OSError as error:
            log.warning("cannot write a prompt to %s: %s", keeping.path, error)

    def close(self) -> None:
        os.close(self._file)
