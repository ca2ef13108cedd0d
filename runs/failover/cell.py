"""The cell under test: relays, two dispatchers, replicas, the load balancer, the database, and perhaps etcd.

Knows how each process is started and when it is ready. Does not know what is done to it (faults.py).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headway.engines.scripted import parse_curve
from headway.engines.scripted.steps import Script
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.segments import NAMES, read_line
from runs.failover.callers import Load
from runs.failover.judge import Limits
from runs.failover.links import CuttableLink, leader_of
from runs.failover.own_etcd import EtcdCluster
from runs.failover.plan import DISPATCHERS, RELAYS
from runs.failover.ports import free_ports
from runs.ledger.own_postgres import OwnPostgres
from runs.torture.forker import Forked, Forker

START_S = 180.0  # on a busy machine
END_S = 60.0
MODEL, KEY = "m", "hw-failover"
REPLICAS, SEATS = 24, 4
FIRST_TOKEN_S, STEP_MS = 0.03, "1:40,4:70"
FLOOR_TPS, MARGIN = 17.0, 0.1
MAX_HOLD_S = {"standard": 12.0, "fast": 6.0}
LOAD = Load(MODEL, KEY, standard_per_s=13.0, fast_per_s=4.0, standard_tokens=45, fast_tokens=25)
SCRIPT = Script(step_s=parse_curve(STEP_MS))
# The largest batch that keeps the floor with its margin, from the replicas' script, not from Headway's code.
EXPRESS = max(batch for batch in range(1, SEATS + 1) if 1 / SCRIPT.step_time_s(batch) >= FLOOR_TPS * (1 + MARGIN))
CURVE = [[batch, round(1 / SCRIPT.step_time_s(batch), 4)] for batch in (1, 2, SEATS)]
REPLICA_LINES = f"seats = {SEATS}\ncurve = {CURVE}\n"
LIMITS = Limits(SEATS, EXPRESS, MAX_HOLD_S, SCRIPT.step_time_s(SEATS), answer_s=1.0)

# Only what no relay has read is sent to another one.
BALANCER = """
global
    maxconn 4096
    nbthread 1
defaults
    mode http
    option http-no-delay
    option redispatch 1
    retries 3
    timeout connect 1s
    timeout client 90s
    timeout server 90s
    timeout check 800ms
frontend cell
{binds}
    http-after-response set-header x-relay %s
    use_backend admins if {{ path_beg /admin/ }}
    default_backend relays
# A relay without an open replica is not ready, and a fleet must reach it to register one.
backend admins
    option httpchk GET /health
{servers}
backend relays
    balance roundrobin
    option httpchk GET /ready
{servers}
"""


class Member:
    """A process that can be killed, stopped, and started again with the same address."""

    def __init__(
        self, name: str, command: Callable[[int], list[str]], port: int, log: Path, forker: Forker | None = None
    ) -> None:
        """`command` gives the arguments of the first start, the second, and so on. `forker` starts it quickly."""
        self.name = name
        self.port = port
        self.starts = 0
        self._command = command
        self._log_path = log
        self._log = log.open("ab")
        self._forker = forker
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.starts += 1
        command = self._command(self.starts)
        if self._forker is not None:
            self._process = self._forker.start(command, self._log_path)
        else:
            self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self._wait()

    async def end(self) -> int:
        """Returns the exit code. A process that does not end in time is killed."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_S):
                return await self._wait()
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    def ended_by_itself(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    async def _wait(self) -> int:
        assert self._process is not None
        while (code := self._process.poll()) is None:
            await asyncio.sleep(0.01)
        self._process = None
        return code

    def remove(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Cell:
    def __init__(
        self, folder: Path, *, with_etcd: bool, relays: Sequence[str] = RELAYS, replicas: int = REPLICAS
    ) -> None:
        self.folder = folder
        self._relay_names = list(relays)
        self.port, *self._ports = free_ports(1 + replicas + len(DISPATCHERS) + len(relays))
        self.database = OwnPostgres()
        self.etcd = EtcdCluster(folder) if with_etcd else None
        self.replica_ports = [self._ports.pop() for _ in range(replicas)]
        self.links: list[CuttableLink] = []
        self.dispatchers: dict[str, Member] = {}
        self.relays: dict[str, Member] = {}
        self._others: list[Member] = []
        self.config = folder / "headway.toml"
        self.secret = folder / "cell.secret"
        self.spool = folder / "spool"

    @property
    def replica_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.replica_ports]

    @property
    def members(self) -> list[Member]:
        return [*self.relays.values(), *self.dispatchers.values(), *self._others]

    def leader(self) -> str | None:
        return leader_of(self.links)

    def links_of(self, *names: str) -> list[CuttableLink]:
        return [link for link in self.links if {link.relay, link.dispatcher} >= set(names)]

    async def start(self) -> None:
        await asyncio.to_thread(self._start_stores)
        self._start_replicas()
        self._write_config()
        for name in DISPATCHERS:
            port = self._ports.pop()
            self.dispatchers[name] = self._member(name, self._dispatch_command(name, port), port)
        for name in self._relay_names:
            for dispatcher in self.dispatchers.values():
                link = CuttableLink(name, dispatcher.name, dispatcher.port)
                await link.start()
                self.links.append(link)
            port = self._ports.pop()
            self.relays[name] = self._member(name, self._relay_command(name, port), port)
        for member in [*self.dispatchers.values(), *self.relays.values()]:
            member.start()
        for relay in self.relays.values():
            await until_listening(relay)
        self._start_balancer()
        await until_listening(self._others[-1])
        await self._open_replicas()
        for relay in self.relays.values():
            await until_ready(relay)

    async def stop(self) -> dict[str, int]:
        """Let all streams end and all books close. Returns the exit codes."""
        relays = list(self.relays.values())
        codes = await asyncio.gather(*[relay.end() for relay in relays])
        dispatchers = list(self.dispatchers.values())
        codes += await asyncio.gather(*[dispatcher.end() for dispatcher in dispatchers])
        for link in self.links:
            await link.stop()
        return {member.name: code for member, code in zip([*relays, *dispatchers], codes, strict=True)}

    def remove(self) -> None:
        for member in self.members:
            member.remove()
        if self.etcd is not None:
            self.etcd.remove()
        self.database.remove()

    def records(self) -> list[Path]:
        """What the dispatchers recorded, one file for each start."""
        return sorted(path for path in self.folder.glob("record-*") if path.stat().st_size)

    def spooled(self, spool: Path | None = None) -> set[str]:
        """The ids of all entries that are in the spools, or in one of them. The newest segment stays when the store has
        its entries."""
        lines = [
            line for path in (spool or self.spool).rglob(NAMES) for line in path.read_bytes().splitlines(keepends=True)
        ]
        read = [read_line(line) for line in lines]
        return {value.id for kind, value in read if kind in ("entry", "again")}

    def _start_replicas(self) -> None:
        script = [MODEL, str(8 * SEATS), str(FIRST_TOKEN_S), STEP_MS, *map(str, self.replica_ports)]
        replicas = [sys.executable, "-m", "runs.failover.replicas", *script]
        self._add("replicas", lambda _: replicas, self.replica_ports[-1])

    async def _open_replicas(self) -> None:
        """The relays listen. Nothing to do: the replicas are in headway.toml."""

    def _replica_tables(self) -> str:
        """The lines of headway.toml about replicas."""
        return "".join(f'[[models.replicas]]\nurl = "{url}"\n{REPLICA_LINES}' for url in self.replica_urls)

    def _gateway_lines(self) -> str:
        return ""

    def _start_stores(self) -> None:
        self.database.start()
        if self.etcd is not None:
            self.etcd.start()
        store = open_store(self.database.url)
        store.migrate()
        store.put_key(Key(id="key-failover", hash=key_hash(KEY.encode())))
        store.close()

    def _write_config(self) -> None:
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        lease = 'lease = "ledger"'
        if self.etcd is not None:
            lease = f'lease = "etcd"\netcd = {_toml_list(self.etcd.urls)}'
        self.config.write_text(
            f"[gateway]\ndrain_timeout_s = 30.0\n{self._gateway_lines()}"
            f'[ledger]\nstore = "{self.database.url}"\nspool = "{self.spool}"\n'
            f"[cell]\nrelays = {_toml_list(self._relay_names)}\n{lease}\n"
            f'[[models]]\nname = "{MODEL}"\n[models.price]\ninput = 1.0\noutput = 10.0\n'
            f'[[models.tiers]]\nname = "standard"\nmax_hold_s = {MAX_HOLD_S["standard"]}\n'
            f'[[models.tiers]]\nname = "fast"\nfloor_tps = {FLOOR_TPS}\nmax_hold_s = {MAX_HOLD_S["fast"]}\n'
            + self._replica_tables()
        )

    def _dispatch_command(self, name: str, port: int) -> Callable[[int], list[str]]:
        def command(number: int) -> list[str]:
            record = self.folder / f"record-{name}-{number}"
            own = ["--listen", f"tcp://127.0.0.1:{port}", "--record", str(record), "--secret-file", str(self.secret)]
            return [sys.executable, "-m", "headway", "dispatch", "--config", str(self.config), *own]

        return command

    def _relay_command(self, name: str, port: int) -> Callable[[int], list[str]]:
        addresses = [word for link in self.links_of(name) for word in ("--dispatcher", f"tcp://127.0.0.1:{link.port}")]
        own = ["--name", name, "--port", str(port), "--secret-file", str(self.secret)]
        return lambda _: [sys.executable, "-m", "headway", "relay", *addresses, *own]

    def _start_balancer(self) -> None:
        command = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")  # where Debian puts it
        if command is None:
            raise SystemExit("HAProxy is not installed: apt-get install haproxy")
        servers = "\n".join(
            f"    server {relay.name} 127.0.0.1:{relay.port} check inter 1s fall 2 rise 1"
            for relay in self.relays.values()
        )
        config = self.folder / "haproxy.cfg"
        binds = "\n".join(f"    bind {host}:{self.port}" for host in self._hosts())
        config.write_text(BALANCER.format(binds=binds, servers=servers))
        self._add("balancer", lambda _: [command, "-db", "-f", str(config)], self.port)

    def _hosts(self) -> Iterable[str]:
        """The addresses at which the load balancer listens."""
        return ["127.0.0.1"]

    def _member(self, name: str, command: Callable[[int], list[str]], port: int) -> Member:
        return Member(name, command, port, self._log(name))

    def _add(self, name: str, command: Callable[[int], list[str]], port: int) -> None:
        member = Member(name, command, port, self._log(name))
        self._others.append(member)
        member.start()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _toml_list(words: Iterable[str]) -> str:
    return f"[{', '.join(map(repr, words))}]"


async def until_ready(relay: Member) -> None:
    """Wait until the relay serves calls."""
    await _until(relay, b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b" 200")


async def until_listening(dispatcher: Member) -> None:
    await _until(dispatcher, b"", b"")


async def _until(member: Member, request: bytes, status: bytes) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(2.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", member.port)
                try:
                    writer.write(request)
                    if not request or status in await reader.readexactly(12):
                        return
                finally:
                    writer.transport.abort()
        if member.ended_by_itself() or time.monotonic() > deadline:
            raise SystemExit(f"{member.name} is not ready: see its log in the run's folder")
        await asyncio.sleep(0.05)
