"""Prompts that the owner opted in to keep, for `headway distill collect`: a file of JSON lines for a model.

Knows the OpenAI chat dialect's `messages` and `tools`; calls of other dialects are not kept. What a client sent is all
that is kept: no key, no answer, no time. Nothing is kept unless headway.toml says so.

Invariant: the file never grows beyond its limit, and a disk that refuses costs no call anything.
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
    """The parts of a body that make up a prompt, as they are."""

    messages: msgspec.Raw
    tools: msgspec.Raw = msgspec.Raw()


_CHAT = msgspec.json.Decoder(_Chat)


@dataclass(frozen=True, slots=True)
class Keeping:
    path: Path
    share: float
    max_bytes: int
    keys: frozenset[str] = frozenset()  # by their ids; none: everybody's


class PromptFile:
    def __init__(self, keeping: Keeping, dice: random.Random | None = None) -> None:
        self._keeping = keeping
        self._dice = dice or random.Random()
        # Prompts are nobody else's: the owner alone may read them.
        try:
            self._file = os.open(keeping.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise SetupError(f"Prompts can not be kept in {keeping.path} ({error}): choose another file.") from error
        self._size = os.fstat(self._file).st_size

    def keep(self, request: Request) -> None:
        keeping = self._keeping
        if request.path != CHAT_PATH or (keeping.keys and request.call.tenant not in keeping.keys):
            return
        if self._dice.random() >= keeping.share:
            return
        chat = _CHAT.decode(request.body)
        tools = b', "tools": ' + bytes(chat.tools) if bytes(chat.tools) else b""
        # A body may be laid out over several lines; inside JSON strings there are none.
        line = (b'{"messages": ' + bytes(chat.messages) + tools + b"}").translate(ONE_LINE) + b"\n"
        if self._size + len(line) > keeping.max_bytes:
            return
        try:
            self._size += os.write(self._file, line)
        except OSError as error:
            log.warning("a prompt could not be kept in %s: %s", keeping.path, error)

    def close(self) -> None:
        os.close(self._file)
