"""A shell in a terminal, for runs that do what a reader of the documentation does. Needs nothing but Python."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time
from contextlib import suppress
from pathlib import Path
from select import select

CTRL_C = b"\x03"
PROMPT = re.compile(r"::(\d+)::")  # the exit code of the last command; also said by Python, see `python`
ROWS, COLUMNS = 30, 110
KEPT_CHARACTERS = 8_000_000  # a race draws a hundred thousand in a few seconds
STOP_S = 15.0


def without_environment() -> dict[str, str]:
    """The environment of a user who has not activated one for Python."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


class TimedOut(Exception):
    """A command took too long, or has ended before it said what it was waited for."""


class Terminal:
    """`output` is what the last command has said so far."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.output = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored if the run is a shell's background job
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--noprofile", "--norc", "-i"], {**env, "TERM": "xterm-256color"})
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.run(r"bind 'set enable-bracketed-paste off'; PS1='::$?::\n'", 10.0)

    def run(self, line: str, limit_s: float) -> int:
        """Paste a line and wait until it is done. Returns its exit code."""
        self.begin(line)
        return self.wait_done(limit_s)

    def begin(self, line: str) -> None:
        self.output = ""
        self._write(f"{line}\n".encode())

    def wait_done(self, limit_s: float) -> int:
        return int(self.wait_for(PROMPT, limit_s)[1])

    def python(self, block: str, limit_s: float) -> bool:
        """Paste a block into Python's prompt. Returns False if it raised."""
        self.begin(f"{block.rstrip()}\n\nprint('::' + '0::')")
        self.wait_done(limit_s)
        return "Traceback (most recent call last)" not in self.output

    def wait_for(self, pattern: re.Pattern[str], limit_s: float) -> re.Match[str]:
        until = time.monotonic() + limit_s
        while (found := pattern.search(self.output)) is None:
            if pattern is not PROMPT and PROMPT.search(self.output) is not None:
                raise TimedOut(f"the command has ended, and said nothing like {pattern.pattern!r}")
            if time.monotonic() > until:
                raise TimedOut(f"nothing said {pattern.pattern!r} within {limit_s:.0f} s")
            if select([self._terminal], [], [], 0.1)[0]:
                try:
                    self.output = (self.output + os.read(self._terminal, 65536).decode(errors="replace"))[
                        -KEPT_CHARACTERS:
                    ]
                except OSError:  # the other end is closed
                    raise TimedOut("the shell has ended") from None
        return found

    def interrupt(self) -> int:
        """Press Ctrl-C. Returns the exit code of what ran."""
        self._write(CTRL_C)
        return self.wait_done(STOP_S)

    def close(self) -> None:
        """End the shell and what runs in it. A server would take the end of its terminal for an order to read its
        configuration again."""
        with suppress(TimedOut, OSError):
            self.output = ""
            self.interrupt()
        os.close(self._terminal)  # the kernel sends SIGHUP to what runs there
        until = time.monotonic() + STOP_S
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.05)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._terminal, data) :]
