"""The cell of runs/overload.sh: two relays, two dispatchers, HAProxy, PostgreSQL and ten scripted replicas.

Capacity: a full replica gives 8 streams a token every 47 ms, a light one 5 streams every 37.6 ms. With 40 tokens an
answer, 7 full and 3 light replicas end 40 calls a second. The run measures what the cell really ends.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from headway.engines.scripted import parse_curve
from headway.engines.scripted.steps import Script
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from runs.failover.cell import Cell
from runs.failover.plan import DISPATCHERS

MODEL = "m"
RELAYS = ("relay-1", "relay-2")
REPLICAS, SEATS, LIGHT_REPLICAS = 10, 8, 3
FIRST_TOKEN_S, STEP_MS = 0.03, "1:25,8:47"
TOKENS = (30, 50)  # of an answer, even chances between
FLOOR_TPS = 24.0
FAST_SHARE = 0.25  # of the calls
MAX_HOLD_S = {"standard": 4.0, "fast": 4.0}
MAX_HELD = {"standard": 48, "fast": 16}
TENANTS = tuple(f"tenant-{letter}" for letter in "abcdefgh")
FLOODING, FORBIDDEN = "tenant-flood", "tenant-over"  # the second is always over its limit
REQUESTS_PM = 1_500  # of each tenant and kind of tier: 25 a second
SCRIPT = Script(step_s=parse_curve(STEP_MS))


def secret_of(tenant: str) -> str:
    return f"hw-{tenant}"


class OverloadCell(Cell):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, with_etcd=False, relays=RELAYS)
        self.replica_ports, spare = self.replica_ports[:REPLICAS], self.replica_ports[REPLICAS:]
        self.metrics_ports = dict(zip(DISPATCHERS, spare, strict=False))

    def _start_replicas(self) -> None:
        # More seats than Headway uses: a stream too many would run, and slow down those beside it.
        script = [MODEL, str(8 * SEATS), str(FIRST_TOKEN_S), STEP_MS, *map(str, self.replica_ports)]
        command = [sys.executable, "-m", "runs.failover.replicas", *script]
        self._add("replicas", lambda _: command, self.replica_ports[-1])

    def _start_stores(self) -> None:
        self.database.start()
        store = open_store(self.database.url)
        store.migrate()
        for tenant in (*TENANTS, FLOODING):
            hashed = key_hash(secret_of(tenant).encode())
            store.put_key(Key(id=tenant, hash=hashed, requests_pm=REQUESTS_PM, fast_requests_pm=REQUESTS_PM))
        store.put_key(Key(id=FORBIDDEN, hash=key_hash(secret_of(FORBIDDEN).encode()), requests_pm=1))
        store.close()

    def _write_config(self) -> None:
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        curve = [[batch, round(1 / SCRIPT.step_time_s(batch), 4)] for batch in (1, 2, SEATS)]
        tiers = "".join(
            f'[[models.tiers]]\nname = "{tier}"\nmax_hold_s = {MAX_HOLD_S[tier]}\nmax_held = {MAX_HELD[tier]}\n'
            + (f"floor_tps = {FLOOR_TPS}\n" if tier == "fast" else "")
            for tier in MAX_HOLD_S
        )
        replicas = "".join(
            f'[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\ncurve = {curve}\n' for url in self.replica_urls
        )
        self.config.write_text(
            f'[gateway]\ndrain_timeout_s = 30.0\n[ledger]\nstore = "{self.database.url}"\nspool = "{self.spool}"\n'
            f'[cell]\nrelays = {list(RELAYS)}\nlease = "ledger"\n'
            f'[[models]]\nname = "{MODEL}"\nstandard_share = {1 - LIGHT_REPLICAS / REPLICAS}\n'
            f"[models.price]\ninput = 1.0\noutput = 10.0\n{tiers}{replicas}"
        )

    def _dispatch_command(self, name: str, port: int) -> Callable[[int], list[str]]:
        command = super()._dispatch_command(name, port)
        metrics = ["--metrics", f"127.0.0.1:{self.metrics_ports[name]}"]
        return lambda number: [*command(number), *metrics]

    @property
    def relay_ports(self) -> list[int]:
        return [relay.port for relay in self.relays.values()]


async def open_sockets(ports: list[int]) -> int:
    """Established TCP connections to these ports of this machine."""
    ends = {f"{port:04X}" for port in ports}
    lines = await asyncio.to_thread(Path("/proc/net/tcp").read_text)
    rows = [line.split() for line in lines.splitlines()[1:]]
    return sum(row[3] == "01" and row[1].rpartition(":")[2] in ends for row in rows)
