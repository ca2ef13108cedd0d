"""Runs a private etcd, on its own ports and directory, that can be killed and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

START_S = 60.0


class OwnEtcd:
    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="headway-etcd-"))
        client, peer = _free_ports(2)
        self.port = client
        self.url = f"http://127.0.0.1:{client}"
        peer_url = f"http://127.0.0.1:{peer}"
        self._command = [
            *("etcd", "--data-dir", str(self._home / "data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}"),
        ]
        self._log = (self._home / "log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server. Returns when it serves requests."""
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._is_ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"etcd did not start: see {self._log.name}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        self._log.close()
        shutil.rmtree(self._home)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1.0) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
