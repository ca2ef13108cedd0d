"""Runs a private etcd cluster of three, whose members can be killed and started again."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from runs.failover.ports import free_ports
from runs.measure.fetch import fetch

START_S = 60.0
MEMBERS = 3


class EtcdCluster:
    def __init__(self, folder: Path) -> None:
        command = shutil.which("etcd")
        if command is None:
            raise SystemExit("etcd is not installed: apt-get install etcd-server")
        urls = [f"http://127.0.0.1:{port}" for port in free_ports(2 * MEMBERS)]
        self.urls, peers = urls[:MEMBERS], urls[MEMBERS:]
        cluster = ",".join(f"etcd-{number}={peer}" for number, peer in enumerate(peers))
        self._commands = [
            [
                *(command, "--name", f"etcd-{number}", "--data-dir", str(folder / f"etcd-{number}")),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
            ]
            for number, (url, peer) in enumerate(zip(self.urls, peers, strict=True))
        ]
        self._log = (folder / "etcd.log").open("ab")
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * MEMBERS

    def start(self) -> None:
        """Start the members that do not run. Returns when all serve requests."""
        for number, process in enumerate(self._processes):
            if process is None:
                self._processes[number] = subprocess.Popen(self._commands[number], stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + START_S
        while not all(self._is_healthy(url) for url in self.urls):
            if time.monotonic() > deadline:
                raise SystemExit(f"etcd did not start: see {self._log.name}")
            time.sleep(0.05)

    def kill_leader(self) -> str:
        number = self._leader()
        process = self._processes[number]
        assert process is not None
        process.kill()
        process.wait()
        self._processes[number] = None
        return f"etcd-{number}"

    def remove(self) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()
        self._log.close()

    def _leader(self) -> int:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for number, url in enumerate(self.urls):
                with suppress(OSError):
                    status: dict[str, Any] = msgspec.json.decode(fetch(f"{url}/v3/maintenance/status", b"{}", 2.0))
                    if status.get("leader") == status["header"]["member_id"]:
                        return number
            time.sleep(0.05)
        raise SystemExit("etcd has no leader")

    def _is_healthy(self, url: str) -> bool:
        try:
            return b'"true"' in fetch(f"{url}/health", timeout_s=1.0)
        except OSError:
            return False
