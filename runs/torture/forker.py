"""Starts processes of Headway by forking one that has imported everything, which takes 30 ms instead of a second.

Ten thousand faults end thousands of processes. A forked one runs the same code from its `main`; only its imports are
warm. `python -m runs.torture.forker MODULE [MODULE ...]` imports the modules and reads orders from standard input.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import runpy
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec


class Order(msgspec.Struct):
    """Start `python -m MODULE ARGUMENTS`, with its output in `log`."""

    module: str
    arguments: list[str]
    log: str


class Born(msgspec.Struct, tag=True):
    pid: int


class Ended(msgspec.Struct, tag=True):
    pid: int
    code: int  # negative: the signal


_read_event = msgspec.json.Decoder(Born | Ended).decode


class Forked:
    """One process, with the methods of subprocess.Popen that a cell's members need."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self.pid = pid
        self._forker = forker

    def poll(self) -> int | None:
        return self._forker.poll(self.pid)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.01)
        return code


class Forker:
    """The parent of processes that share an environment."""

    def __init__(
        self, modules: Sequence[str], env: Mapping[str, str] | None = None, resolv: Path | None = None
    ) -> None:
        """`resolv`: what these processes have as /etc/resolv.conf."""
        command = [sys.executable, "-m", "runs.torture.forker", *modules]
        if resolv is not None:
            bound = f"mount --bind {resolv} /etc/resolv.conf && exec {shlex.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", bound]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        self.pid = self._process.pid
        self._codes: dict[int, int] = {}
        self._unread = b""

    def start(self, command: Sequence[str], log: Path) -> Forked:
        """`command` is as for subprocess: the interpreter, `-m`, a module, its arguments."""
        module, arguments = command[2], command[3:]
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(Order(module, [*arguments], str(log))) + b"\n")
        self._process.stdin.flush()
        while (pid := self._take(wait=True)) is None:
            pass
        return Forked(self, pid)

    def poll(self, pid: int) -> int | None:
        """The exit code, or None while it runs."""
        self._take(wait=False)
        return self._codes.get(pid)

    def remove(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _take(self, *, wait: bool) -> int | None:
        """Read what the parent says, up to the next start."""
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                event = _read_event(line)
                if isinstance(event, Born):
                    return event.pid
                self._codes[event.pid] = event.code
                continue
            if not wait and not select.select([file], [], [], 0)[0]:
                return None
            data = os.read(file, 65_536)
            if not data:
                raise RuntimeError("the parent of the processes has ended")
            self._unread += data


def _run(order: Order) -> None:
    """In the child. Does not return."""
    code = 1
    try:
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number in (1, 2):
            os.dup2(log, number)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.closerange(3, 256)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        random.seed()  # or all children draw the same numbers
        sys.argv = [order.module, *order.arguments]
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 (it is told, and the child must not go on as its parent)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children, unread = set[int](), b""
    while True:
        ready = select.select([0, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            for pid in tuple(children):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    children.discard(pid)
                    _tell(Ended(pid, os.waitstatus_to_exitcode(status)))
        if 0 in ready:
            data = os.read(0, 65_536)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = msgspec.json.decode(line, type=Order)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _run(order)
                children.add(pid)
                _tell(Born(pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _tell(event: Born | Ended) -> None:
    os.write(1, msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
