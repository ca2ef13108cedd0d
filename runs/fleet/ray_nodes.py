"""Nodes of a Ray cluster on one machine: each has its own network, processes and temporary files, so that it can die,
be cut off and come back like a machine. Needs root.

Ray's head keeps its state in Redis, as Ray's documentation advises for clusters that must outlive their head.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headway.admin_client import ask_admin
from headway.errors import SetupError

BRIDGE, NETWORK = "headwaybr", "10.87.0"
GATEWAY = f"{NETWORK}.1"  # this machine, as nodes see it
REDIS_PORT, HEAD_PORT = 6390, 6379
START_S = 120.0
RAY = Path(sys.executable).with_name("ray")


@dataclass(frozen=True)
class Placed:
    """An engine and the process of the actor that holds it; 0 if it is not found."""

    url: str
    engine_pid: int
    holder_pid: int


class Node:
    """One node. Node 0 has the head."""

    def __init__(self, number: int, folder: Path, env: dict[str, str], cpus: int) -> None:
        self.number = number
        self.address = f"{NETWORK}.{10 + number}"
        self.space = f"headway{number}"
        self._folder = folder
        self._env = env
        self._cpus = cpus
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def make_network(self) -> None:
        _ip("netns", "add", self.space)
        _ip("link", "add", f"{self.space}a", "type", "veth", "peer", "name", "eth0", "netns", self.space)
        _ip("link", "set", f"{self.space}a", "master", BRIDGE, "up")
        _ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.space, "link", "set", "eth0", "up")
        _ip("-n", self.space, "link", "set", "lo", "up")

    def remove_network(self) -> None:
        subprocess.run(["ip", "netns", "del", self.space], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.space}a"], check=False, capture_output=True)

    def start(self) -> None:
        """Start Ray's processes. Returns before they are ready."""
        role = f"--head --port {HEAD_PORT} --include-dashboard=false" if self.number == 0 else ""
        if self.number != 0:
            role = f"--address {NETWORK}.10:{HEAD_PORT}"
        ray = (
            f"{RAY} start --block --disable-usage-stats --node-ip-address {self.address} "
            f"--num-cpus {self._cpus} --object-store-memory 80000000 {role}"
        )
        script = f"mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && exec {ray}"
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        self.starts += 1
        with (self._folder / f"node-{self.number}.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, *inside], stdout=log, stderr=log, env=self._env
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """As if the power were cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            deadline = time.monotonic() + 10
            while self.pids("") and time.monotonic() < deadline:
                time.sleep(0.05)

    def cut(self, *, is_cut: bool) -> None:
        """Pull its cable, or plug it in again."""
        _ip("link", "set", f"{self.space}a", "down" if is_cut else "up")

    def pids(self, words: str) -> list[int]:
        """Its processes whose command has these words."""
        own = os.stat(f"/run/netns/{self.space}").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if (entry / "ns" / "net").stat().st_ino == own and words in _command(entry):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def placed(self, program: str, port_of: Callable[[list[str]], int]) -> list[Placed]:
        """The engines that run this program here; `port_of` finds the port in their command. A holder has the other
        end of the pipe that its guard reads."""
        guards, engines, holders = {}, {}, {}
        for pid in self.pids(""):
            command = _command(Path(f"/proc/{pid}")).split()
            if program in command and any(word.endswith("guard.py") for word in command):
                guards[port_of(command)] = pid
            elif program in command:
                engines[port_of(command)] = pid
            elif command and command[0].startswith("ray::ProcessHolder"):
                for pipe in _open_files(pid):
                    holders[pipe] = pid
        found = []
        for port, pid in engines.items():
            pipes = _open_files(guards[port]) if port in guards else set()
            holder = next((holders[pipe] for pipe in pipes if pipe in holders), 0)
            found.append(Placed(f"http://{self.address}:{port}", pid, holder))
        return found

    def signal(self, words: str, number: signal.Signals) -> int:
        """Returns how many processes got it."""
        pids = self.pids(words)
        for pid in pids:
            os.kill(pid, number)
        return len(pids)


class RayNodes:
    def __init__(self, folder: Path, count: int = 3, cpus: int = 8) -> None:
        self.folder = folder
        self._token = folder / "ray.token"
        self._token.write_text(secrets.token_hex(32))
        self._token.chmod(0o600)
        self.env = dict(
            os.environ,
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN_PATH=str(self._token),
            RAY_REDIS_ADDRESS=f"{GATEWAY}:{REDIS_PORT}",
            # Nodes wait so long for a head that is away.
            RAY_gcs_rpc_server_reconnect_timeout_s="3600",
            # Nobody looks at the dashboard.
            RAY_DISABLE_IMPORT_WARNING="1",
            HEADWAY_CACHE=str(folder / "cache"),
        )
        self.nodes = [Node(number, folder, self.env, cpus) for number in range(count)]
        self._redis: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._remove_network()
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for node in self.nodes:
            node.make_network()
        self._redis = subprocess.Popen(
            ["redis-server", "--bind", GATEWAY, "--port", str(REDIS_PORT), "--save", "", "--protected-mode", "no"],
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )
        for node in self.nodes:
            node.start()
            if node.number == 0:
                self.until(lambda: bool(self.nodes[0].pids("raylet/raylet")), "Ray's head does not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self.nodes):
            node.kill()
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
        self._remove_network()

    def _remove_network(self) -> None:
        for node in self.nodes:
            node.remove_network()
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)

    def restart_dead(self) -> list[int]:
        """As the supervisor of a machine would. Returns which were started."""
        dead = [node for node in self.nodes if not node.is_running]
        for node in dead:
            node.kill()
            node.start()
        return [node.number for node in dead]

    def headway(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command of Headway on the head's node."""
        pid = self.nodes[0].pids("raylet/raylet")[0]
        inside = ["nsenter", "--target", str(pid), "--net", "--mount", "--pid"]
        command = [*inside, sys.executable, "-m", "headway", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False)

    def fleet_up(self, fleet: Path) -> None:
        """Let the fleet be as this file says. Returns before it is. Tried again while the head is away, as an owner
        would."""

        def is_told() -> bool:
            has_head = bool(self.nodes[0].pids("raylet/raylet"))
            return has_head and self.headway("fleet", "up", str(fleet), "--no-wait").returncode == 0

        self.until(is_told, "headway fleet up fails")

    def until(self, is_so: Callable[[], bool], problem: str, within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"{problem}: look into {self.folder}")
            time.sleep(0.1)


def open_engines(port: int, admin_key: str) -> int:
    """How many take calls, as the gateway on this machine says; 0 if it does not answer."""
    try:
        rows = ask_admin(f"http://{GATEWAY}:{port}", admin_key, "/admin/replicas")["replicas"]
    except SetupError:
        return 0
    return sum(row["state"] == "open" for row in rows)


def _open_files(pid: int) -> set[str]:
    try:
        return {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()} - {"/dev/null"}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()


def _command(entry: Path) -> str:
    """Empty if the process is gone."""
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
