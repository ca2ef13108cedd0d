"""Starts the processes of one box, a dispatcher and its relays, and starts again those that die.

The sockets that clients connect to belong to the parent. A relay inherits its own each time it is started, with the
connections that wait on it. The children hold a pipe of the parent's: when it closes, because the parent has died, even
by SIGKILL, they end themselves (`end_with_parent`). They are our own program, so they need no guard (local/guard.py).

Knows: processes, signals, sockets. Does not know: what the processes do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from headway.errors import SetupError

log = logging.getLogger("headway.processes")

FIRST_WAIT_S = 0.1  # before the first restart; doubled with each one
MAX_WAIT_S = 5.0
STEADY_S = 5.0  # a process that has run this long has recovered
END_S = 5.0  # for a dispatcher to end
BACKLOG = 2048


class Child:
    """A process that is started again until it is told to end. It prints one line when it listens."""

    def __init__(self, name: str, command: Callable[[int], Sequence[str]], keep_open: Sequence[int]) -> None:
        """`command` gives the arguments of `headway` for the first start, the second, and so on. `keep_open` are the
        files that the process inherits."""
        self.name = name
        self.has_listened = asyncio.Event()
        self._command = command
        self._keep_open = keep_open
        self._process: asyncio.subprocess.Process | None = None
        self._ending = asyncio.Event()
        self._is_listening = self._is_outdated = False

    async def run(self) -> int:
        """Returns the exit code of the process that was told to end; 0 if none was running then. Raises SetupError if
        it exits by itself before it has ever listened: to start it again would not help."""
        wait_s, number = FIRST_WAIT_S, 0
        while True:
            number += 1
            began_at = time.monotonic()
            code = await self._run_once(number)
            if self._ending.is_set():
                return code
            if code >= 0 and not self.has_listened.is_set():
                raise SetupError(f"The process {self.name} could not be started. It said why, above.")
            if time.monotonic() - began_at >= STEADY_S:
                wait_s = FIRST_WAIT_S
            log.error("%s ended (%s) and is started again in %.1f s", self.name, _reason(code), wait_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ending.wait()
                return 0
            wait_s = min(MAX_WAIT_S, 2 * wait_s)

    async def _run_once(self, number: int) -> int:
        command = [sys.executable, "-m", "headway", *self._command(number)]
        try:
            # In a session of its own, so that Ctrl-C reaches the parent alone, which ends the others in order.
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=self._keep_open,
                start_new_session=True,
            )
        except OSError as error:
            log.error("%s cannot be started: %s", self.name, error)
            return 1
        if self._ending.is_set():
            self._signal(signal.SIGTERM)
        assert process.stdout is not None
        if await process.stdout.readline():
            self.has_listened.set()
            self._is_listening = True
            if self._is_outdated:
                self._is_outdated = False
                self._signal(signal.SIGHUP)
        try:
            return await process.wait()
        finally:
            self._is_listening = False

    def end(self) -> None:
        self._ending.set()
        self._signal(signal.SIGTERM)

    def tell_to_read_again(self) -> None:
        """What it has read at its start has changed. A process that is starting is told once it listens."""
        if self._is_listening:
            self._signal(signal.SIGHUP)
        else:
            self._is_outdated = True

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Parent:
    def __init__(
        self,
        dispatcher: Child,
        relays: Sequence[Child],
        sockets: Sequence[socket.socket],
        drain_s: float,
        watch: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        """`sockets` are those that the relays listen on. A relay that has not ended `drain_s` after it was told to is
        killed. `watch` runs beside them."""
        self._dispatcher = dispatcher
        self._relays = relays
        self._sockets = sockets
        self._drain_s = drain_s
        self._watch = watch

    async def run(self, on_listening: Callable[[], None]) -> int:
        """Run until SIGTERM or SIGINT. Returns 0 if every relay served its calls to their end, else 1."""
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        dispatching = asyncio.create_task(self._dispatcher.run())
        relaying = [asyncio.create_task(relay.run()) for relay in self._relays]
        telling: list[asyncio.Task[Any]] = [
            asyncio.create_task(told.wait()),
            asyncio.create_task(self._announce(on_listening)),
            asyncio.create_task(self._watch()),
        ]
        # Until it is told to end, a child's task ends only if its setup is wrong.
        await asyncio.wait([telling[0], dispatching, *relaying], return_when=asyncio.FIRST_COMPLETED)
        for one in self._sockets:
            one.close()
        await self._end(self._relays, relaying, self._drain_s)
        await self._end([self._dispatcher], [dispatching], END_S)
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        dispatching.result()  # raises its SetupError
        # SIGTERM ends a relay by itself only while it starts, when it has no calls.
        return 0 if {task.result() for task in relaying} <= {0, -signal.SIGTERM} else 1

    async def _announce(self, on_listening: Callable[[], None]) -> None:
        for child in (self._dispatcher, *self._relays):
            await child.has_listened.wait()
        on_listening()

    @staticmethod
    async def _end(children: Sequence[Child], tasks: Sequence[asyncio.Task[int]], within_s: float) -> None:
        for child in children:
            child.end()
        _, late = await asyncio.wait(tasks, timeout=within_s)
        if late:
            for child in children:
                child.kill()
            await asyncio.wait(late)


def bind(host: str, port: int, count: int) -> list[list[socket.socket]]:
    """For each of `count` processes, sockets that listen on the same port, over which the kernel spreads connections.
    Port 0: a free one is picked. Raises SetupError if another program has the port."""
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = [(family, str(where[0])) for family, _, _, _, where in dict.fromkeys(found)]
        # Sockets with SO_REUSEPORT share the port also with those of another Headway, so first without it.
        for family, address in places:
            with socket.create_server((address, port), family=family) as trial:
                port = trial.getsockname()[1]
        return [
            [
                socket.create_server((address, port), family=family, backlog=BACKLOG, reuse_port=True)
                for family, address in places
            ]
            for _ in range(count)
        ]
    except OSError as error:
        raise SetupError(f"Cannot listen on {where}: the port may be in use. Choose another port.") from error


# --- in a child ---


def say_listening() -> None:
    print("listens", flush=True)


def end_with_parent(pipe: int | None) -> None:
    """End this process when the other end of the pipe closes. In a thread, so that nothing which keeps the event loop
    busy prevents it."""

    def wait(fd: int) -> None:
        os.read(fd, 1)
        os._exit(1)

    if pipe is not None:
        threading.Thread(target=wait, args=(pipe,), name="parent", daemon=True).start()
