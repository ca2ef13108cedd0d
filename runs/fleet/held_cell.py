"""The cell of runs/fleet.sh: relays, two dispatchers, HAProxy and PostgreSQL on this machine; engines that Ray holds on
three nodes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from headway.admin_client import ask_admin
from headway.errors import SetupError
from headway.fleet.tables import load_fleet
from runs.failover.cell import FIRST_TOKEN_S, MODEL, REPLICA_LINES, REPLICAS, SEATS, STEP_MS, Cell
from runs.fleet.ray_nodes import GATEWAY, RayNodes

ADMIN = "hw-fleet-admin"
FIRST_PORT = 9100
WHOLE_S = 240.0  # on a busy machine


class HeldCell(Cell):
    def __init__(self, folder: Path, relays: Iterable[str]) -> None:
        super().__init__(folder, with_etcd=False, relays=tuple(relays))
        self.journals = folder / "journals"
        self.journals.mkdir()
        self.nodes = RayNodes(folder, cpus=REPLICAS // 2)  # any two nodes can hold all
        self.fleet = folder / "fleet.toml"
        self.count = REPLICAS

    def _start_replicas(self) -> None:
        """Nodes only: engines register at a gateway that runs."""
        self.nodes.__enter__()

    async def _open_replicas(self) -> None:
        self.write_fleet(self.count)
        await self.place()
        if not await self.until_open(self.count):
            raise SystemExit(f"the engines do not open: see {self.folder}")

    def remove(self) -> None:
        self.nodes.__exit__(None, None, None)
        super().remove()

    def _replica_tables(self) -> str:
        return f"[models.discover]\nregistered = true\n{REPLICA_LINES}"

    def _gateway_lines(self) -> str:
        hashed = hashlib.sha256(ADMIN.encode()).hexdigest()
        return f'probe_interval_s = 0.5\nadmin_key_hashes = ["{hashed}"]\n'

    def _hosts(self) -> Iterable[str]:
        return ["127.0.0.1", GATEWAY]

    def write_fleet(self, count: int, more: str = "") -> None:
        """`more` changes the command, so that all engines are replaced."""
        key = self.folder / "admin.key"
        key.write_text(ADMIN)
        key.chmod(0o600)
        self.count = count
        words = [sys.executable, "-m", "runs.fleet.journal_engine", str(self.journals), "{host}", "{port}"]
        words += [MODEL, str(8 * SEATS), str(FIRST_TOKEN_S), STEP_MS]
        self.fleet.write_text(
            f'[gateway]\nurl = "http://{GATEWAY}:{self.port}"\nadmin_key_file = "{key}"\n'
            f'[[processes]]\nname = "engine"\nmodel = "{MODEL}"\ncommand = {json.dumps(words)}\n'
            f"count = {count}\nport = {FIRST_PORT}\nstart_s = 60\nunhealthy_s = 20\n"
            f"[processes.env]\nCHANGE = {json.dumps(more)}\n"
        )
        load_fleet(self.fleet)

    async def place(self) -> None:
        """Let the fleet be as its file says. Returns before it is."""
        await asyncio.to_thread(self.nodes.fleet_up, self.fleet)

    async def rows(self) -> dict[str, str]:
        """The state of each replica, by URL. Raises SetupError if the gateway does not say."""
        answer = await asyncio.to_thread(ask_admin, f"http://{GATEWAY}:{self.port}", ADMIN, "/admin/replicas")
        return {row["url"]: row["state"] for row in answer["replicas"]}

    async def drain(self, url: str, *, is_undone: bool) -> None:
        order = json.dumps({"url": url, "undo": is_undone}).encode()
        await asyncio.to_thread(ask_admin, f"http://{GATEWAY}:{self.port}", ADMIN, "/admin/drain", order)

    async def until_open(self, count: int) -> bool:
        """Whether so many replicas are open within the time. Nodes that have died are started again meanwhile."""
        deadline = time.monotonic() + WHOLE_S
        while time.monotonic() < deadline:
            await asyncio.to_thread(self.nodes.restart_dead)
            try:
                rows = await self.rows()
            except SetupError:
                rows = {}
            if sum(state == "open" for state in rows.values()) >= count:
                return True
            await asyncio.sleep(0.2)
        return False
