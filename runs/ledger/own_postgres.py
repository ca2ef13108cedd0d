"""Runs a private PostgreSQL server, on its own port and directory, that can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
START_S = 60.0


def find_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, reversed(DEBIAN))]))


class OwnPostgres:
    """A server, or the standby of another one. `start` may be called again after `kill` or `stop`. `remove` stops the
    server and deletes its files."""

    def __init__(self, standby_of: OwnPostgres | None = None) -> None:
        programs = [find_program(name) for name in ("initdb", "postgres", "pg_basebackup", "pg_ctl")]
        if None in programs:
            raise RuntimeError("PostgreSQL's server is not installed: apt-get install postgresql")
        initdb, self._postgres, copy, self._pg_ctl = (str(program) for program in programs)
        # PostgreSQL refuses to run as root: use the user that Debian's package creates.
        self._user = "postgres" if os.geteuid() == 0 else None
        self._home = Path(tempfile.mkdtemp(prefix="headway-pg-"))
        if self._user:
            shutil.chown(self._home, self._user)
        self._data = self._home / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"postgresql://headway@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (self._home / "log").open("ab")
        if standby_of is None:
            self._run(initdb, "-D", str(self._data), "-A", "trust", "-U", "headway", "--no-sync")
        else:
            self._run(copy, "-D", str(self._data), "-d", standby_of.url, "--write-recovery-conf", "--no-sync", "-cfast")

    def start(self) -> None:
        """Start the server. Returns when it accepts connections."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                # After a kill, the new server exits while children of the old one are still running.
                self._process = subprocess.Popen(
                    [self._postgres, "-D", self._data, *arguments], stdout=self._log, stderr=self._log, user=self._user
                )
            if self._is_ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start: see {self._log.name}")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run(self._pg_ctl, "promote", "-D", str(self._data))

    def kill(self, number: int = signal.SIGQUIT) -> None:
        """SIGQUIT ends the server and its children at once without a checkpoint; SIGKILL ends only the parent."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill(signal.SIGINT)

    def pause(self) -> list[int]:
        """Let the server and its children stand still. Returns their process ids, for `resume`."""
        if self._process is None:
            return []
        self._process.send_signal(signal.SIGSTOP)
        found = self.pids()
        for pid in found[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return found

    def pids(self) -> list[int]:
        """The server's, then its children's."""
        if self._process is None:
            return []
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def resume(self, paused: list[int]) -> None:
        for pid in reversed(paused):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        self._log.close()
        shutil.rmtree(self._home)

    def _is_ready(self) -> bool:
        """Whether the server answers a request for TLS, the first message of its protocol (it declines)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                startup = b"user\0headway\0database\0postgres\0\0"
                connection.sendall((len(startup) + 8).to_bytes(4, "big") + b"\0\3\0\0" + startup)
                return connection.recv(1) == b"R"
        except OSError:
            return False

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, stdout=self._log, stderr=self._log, user=self._user)
