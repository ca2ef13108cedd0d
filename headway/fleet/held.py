"""One process on this node, which is started, watched, and started again when it ends or does not answer.

It does not outlive its HeldProcess, nor the process that holds that (local/guard.py). Knows nothing of Ray.
"""

from __future__ import annotations

import http.client
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headway.fleet.tables import ProcessTable, Times
from headway.local.engine_process import cache_dir
from headway.local.guard import GuardedProcess

log = logging.getLogger("headway.fleet")

LOOK_S = 0.5
HEALTH_TIMEOUT_S = 2.0
LONGEST_PAUSE_S = 60.0  # between two starts of a process that does not stay ready
# A process is ready once it has answered for so long: a load balancer that looks every second or two has found it by
# then, and the next one may be replaced.
SETTLE_S = 3.0
STEADY_S = 10.0  # a process that is ready so long after its start is not one that fails again and again

# `away` is said of a holder that does not answer.
Phase = Literal["starting", "ready", "unhealthy", "stopped", "away"]


@dataclass(frozen=True)
class Report:
    """What a holder says of its process; or what is known without asking it: all that has no default."""

    group: str
    index: int
    version: str
    model: str | None  # None if it is no engine
    port: int
    phase: Phase
    url: str = ""  # empty if the holder's node is not known
    is_leaving: bool = False
    starts: int = 0
    why: str = ""  # it was started again, or is not started
    grace_s: float = 0.0

    @property
    def name(self) -> str:
        return name_of(self.group, self.index)


def name_of(group: str, index: int) -> str:
    return f"{group}-{index}"


@dataclass
class HeldProcess:
    table: ProcessTable
    index: int
    host: str
    version: str
    times: Times
    is_leaving: bool = False
    _phase: Phase = "starting"
    _starts: int = 0
    _why: str = ""
    _process: GuardedProcess | None = None
    _started_at: float = 0.0
    _answered_at: float = 0.0
    _settled_at: float = 0.0
    _failed: int = 0  # starts in a row after which it did not stay ready
    _not_before: float = 0.0
    _is_stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def port(self) -> int:
        return self.table.port + self.index

    def report(self) -> Report:
        # An address with colons is of IPv6.
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Report(
            self.table.name,
            self.index,
            self.version,
            self.table.model,
            self.port,
            self._phase,
            f"http://{host}:{self.port}",
            self.is_leaving,
            self._starts,
            self._why,
            self.times.grace_s,
        )

    def run(self) -> None:
        """Keep the process running until `stop`."""
        while not self._is_stopped.is_set():
            with self._lock:
                if not self._is_stopped.is_set():
                    self.look(time.monotonic())
            self._is_stopped.wait(LOOK_S)

    def look(self, now: float) -> None:
        """Start the process if it does not run, and see whether it can serve."""
        if self._process is None:
            if now >= self._not_before and self._is_port_free():
                self._start(now)
            return
        if self._process.has_exited():
            self._restart(f"it ended with the exit code {self._process.end()}", now)
        elif self._is_healthy():
            if self._phase == "starting" and not self._settled_at:
                self._settled_at = now + SETTLE_S
            if now >= self._settled_at:
                self._phase, self._answered_at = "ready", now
            if now - self._started_at > STEADY_S:
                self._failed = 0
        elif self._phase == "starting":
            self._settled_at = 0.0
            if now - self._started_at > self.times.start_s:
                self._end()
                self._restart(f"it was not ready after {self.times.start_s:g} s", now)
        else:
            self._phase = "unhealthy"
            if now - self._answered_at > self.times.unhealthy_s:
                self._end()
                self._restart(f"it did not answer for {self.times.unhealthy_s:g} s", now)

    def stop(self) -> None:
        """End the process for good. Returns when it has ended."""
        self._is_stopped.set()
        with self._lock:
            self._phase = "stopped"
            if self._process is not None:
                self._end()
                self._process = None

    def _start(self, now: float) -> None:
        words = self.table.words(self.host, self.index)
        # The secrets of the cluster are none of the engine's business.
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = log_path(self.table.name, self.index)
        self._started_at = now
        self._settled_at = 0.0
        self._starts += 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                path.replace(path.with_suffix(".previous.log"))  # it says why the process ended
            with path.open("wb") as output:
                self._process = GuardedProcess(words, env=env | self.table.env, output=output.fileno())
        except OSError as error:  # there is no such program, the disk is full, ...
            self._restart(str(error), now)

    def _restart(self, why: str, now: float) -> None:
        pause_s = min(LONGEST_PAUSE_S, 2.0 ** min(self._failed, 10)) if self._failed else 0.0
        log.warning("%s: %s; it is started again in %g s", name_of(self.table.name, self.index), why, pause_s)
        self._process = None
        self._phase = "starting"
        self._why = why
        self._failed += 1
        self._not_before = now + pause_s

    def _end(self) -> None:
        assert self._process is not None
        self._process.end(self.times.grace_s)

    def _is_port_free(self) -> bool:
        """The process of a holder that was killed may still be ending."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                self._why = f"port {self.port} cannot be used: {error.strerror}"
                return False
        return True

    def _is_healthy(self) -> bool:
        if not self.table.ready:
            return True
        connection = http.client.HTTPConnection(self.host, self.port, timeout=HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", self.table.ready)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def log_path(group: str, index: int) -> Path:
    """Where the output of a process is, on its node."""
    return cache_dir() / "logs" / f"fleet-{name_of(group, index)}.log"
