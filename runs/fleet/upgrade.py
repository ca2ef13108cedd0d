"""All that a fleet holds is replaced under load: engines, relays and dispatchers. See runs/rolling-upgrade.sh."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from runs.fleet.ray_nodes import GATEWAY, RayNodes, open_engines
from runs.fleet.rolling import Callers, Load
from runs.measure.fetch import fetch
from runs.measure.streams import process
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
PORT, ADMIN = 8780, "hw-admin"
ENGINES, RELAYS, DISPATCHERS = 6, 2, 2
RELAY_PORT, DISPATCHER_PORT, PAGES_PORT, ENGINE_PORT = 8001, 7400, 7410, 9100
WITHIN_S = 900.0
LOAD = Load("m", 24, 6, (20, 80), 25.0, "[[1, 50.0], [16, 50.0]]", 16)
MIN_KEPT = 0.995

BALANCER = """
global
    nbthread 1
defaults
    mode http
    option redispatch 1
    retries 3
    timeout connect 1s
    timeout client 120s
    timeout server 120s
    timeout check 800ms
frontend cell
    bind {gateway}:{port}
    monitor-uri /balancer
    use_backend admins if {{ path_beg /admin/ }}
    default_backend relays
backend relays
    balance roundrobin
    option httpchk GET /ready
{servers}
# A relay without an open replica is not ready, and a fleet must reach it to register one.
backend admins
    option httpchk GET /health
{servers}
"""


@dataclass(frozen=True)
class UpgradeFigures:
    replaced: int  # processes
    served: int
    failed: int  # calls that got an error, or nothing
    cut: int  # streams that began and were not complete
    fast: int  # streams that were served as fast
    missed: int  # of these, below their floor by their proof
    seconds: float


def verdict(figures: UpgradeFigures) -> Verdict:
    kept = 1 - figures.missed / figures.fast if figures.fast else float("nan")
    bars = (
        at_least("processes replaced", figures.replaced, ENGINES + RELAYS + DISPATCHERS, "d"),
        none_of("calls failed", figures.failed),
        none_of("streams cut", figures.cut),
        at_least("fast streams", figures.fast, 200, "d"),
        at_least("floors kept", kept, MIN_KEPT, ".2%"),
        at_most("time for all", figures.seconds, WITHIN_S, ".0f", " s"),
    )
    figure = (
        f"{figures.replaced} processes replaced under {figures.served:,} calls, engines, relays and dispatchers: "
        f"{figures.failed} failed, {figures.cut} cut (bars 0), floors kept {kept:.2%} of {figures.fast} (bar 99.5 %)"
    )
    return Verdict(figure, bars)


def write_config(folder: Path) -> None:
    (folder / "admin.key").write_text(ADMIN)
    secret = folder / "cell.secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    key, admin = (hashlib.sha256(one.encode()).hexdigest() for one in ("none", ADMIN))
    relays = json.dumps([f"relay-{index}" for index in range(RELAYS)])
    (folder / "headway.toml").write_text(
        f'[gateway]\nhost = "0.0.0.0"\nkey_hashes = ["{key}"]\nadmin_key_hashes = ["{admin}"]\n'
        f'unready_s = 3.0\ndrain_timeout_s = 60.0\n[cell]\nrelays = {relays}\nlease = "file:{folder}/lease"\n'
        f'[[models]]\nname = "{LOAD.model}"\n[[models.tiers]]\nname = "standard"\nmax_hold_s = 60.0\n'
        f'[[models.tiers]]\nname = "fast"\nfloor_tps = {LOAD.floor_tps}\nmax_hold_s = 60.0\n'
        f"[models.discover]\nregistered = true\nseats = {LOAD.seats}\ncurve = {LOAD.curve}\n"
    )


def write_fleet(folder: Path, release: str, nodes: RayNodes) -> Path:
    """Another release: all processes must be replaced."""
    python, secret = [sys.executable, "-m", "headway"], ["--secret-file", str(folder / "cell.secret")]
    listen, pages = f"tcp://{{host}}:{DISPATCHER_PORT // 10}{{index}}", "{host}:{port}"
    dispatch = [*python, "dispatch", "--config", str(folder / "headway.toml"), "--listen", listen, *secret]
    dispatch += ["--metrics", pages]
    relay = [*python, "relay", "--name", "relay-{index}", "--host", "{host}", "--port", "{port}", *secret]
    for node in nodes.nodes:
        for index in range(DISPATCHERS):
            relay += ["--dispatcher", f"tcp://{node.address}:{DISPATCHER_PORT + index}"]
    engine = [*python, "mock-engine", "--host", "{host}", "--port", "{port}", "--model", LOAD.model]
    engine += ["--step-ms", "1:20", "--max-num-seqs", "64"]
    tables = [
        ("dispatcher", dispatch, DISPATCHERS, PAGES_PORT, 'ready = "/metrics"\n'),
        ("relay", relay, RELAYS, RELAY_PORT, "grace_s = 90\n"),
        ("engine", engine, ENGINES, ENGINE_PORT, f'model = "{LOAD.model}"\n'),
    ]
    text = f'[gateway]\nurl = "http://{GATEWAY}:{PORT}"\nadmin_key_file = "{folder}/admin.key"\n'
    for name, command, count, port, more in tables:
        text += f'[[processes]]\nname = "{name}"\ncommand = {json.dumps(command)}\ncount = {count}\nport = {port}\n'
        text += f'{more}[processes.env]\nRELEASE = "{release}"\n'
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def balancer(folder: Path, nodes: RayNodes) -> list[str]:
    servers = "\n".join(
        f"    server relay-{index}-{node.number} {node.address}:{RELAY_PORT + index} check inter 1s fall 2 rise 1"
        for node in nodes.nodes
        for index in range(RELAYS)
    )
    config = folder / "haproxy.cfg"
    config.write_text(BALANCER.format(gateway=GATEWAY, port=PORT, servers=servers))
    command = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if command is None:
        raise SystemExit("HAProxy is not installed: apt-get install haproxy")
    return [command, "-db", "-f", str(config)]


def is_serving() -> bool:
    """Whether the load balancer has found a relay."""
    with suppress(OSError):
        fetch(f"http://{GATEWAY}:{PORT}/ready", timeout_s=2)
        return True
    return False


def of_release(nodes: RayNodes, release: str) -> int:
    """The processes of the fleet that run with this release."""
    pids = {pid for node in nodes.nodes for word in ("dispatch", "relay", "mock-engine") for pid in node.pids(word)}
    found = 0
    for pid in pids:
        with suppress(OSError):
            is_guard = b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
            found += not is_guard and f"RELEASE={release}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return found


async def upgrade(folder: Path, nodes: RayNodes) -> UpgradeFigures:
    callers, done = Callers(f"http://{GATEWAY}:{PORT}", LOAD), asyncio.Event()
    tiers = ["default"] * LOAD.standard + ["fast"] * LOAD.fast
    tasks = [asyncio.create_task(callers.keep_calling(f"{number}", tier, done)) for number, tier in enumerate(tiers)]
    await asyncio.sleep(5.0)
    before_s = time.monotonic()
    path = str(write_fleet(folder, "two", nodes))
    ran = await asyncio.to_thread(nodes.headway, "fleet", "up", path, timeout_s=WITHIN_S)
    if ran.returncode:
        console.print(ran.stdout + ran.stderr, markup=False)
    seconds = time.monotonic() - before_s
    replaced = of_release(nodes, "two")
    await asyncio.sleep(5.0)
    done.set()
    await asyncio.gather(*tasks)
    if callers.failures:
        console.print(f"failed, by status (0: no answer): {dict(callers.failures)}")
    return UpgradeFigures(replaced, callers.served, callers.failed, callers.cut, callers.fast, callers.missed, seconds)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="headway-upgrade-"))
    write_config(folder)
    with RayNodes(folder, cpus=6) as nodes, process(balancer(folder, nodes), f"http://{GATEWAY}:{PORT}/balancer"):
        nodes.fleet_up(write_fleet(folder, "one", nodes))
        nodes.until(lambda: open_engines(PORT, ADMIN) == ENGINES and is_serving(), "the engines do not open", 240)
        console.print(f"{of_release(nodes, 'one')} processes of the first release run on 3 nodes")
        figures = uvloop.run(upgrade(folder, nodes))
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
