"""The cell of the torture: four relays, two dispatchers, eight engines, HAProxy and PostgreSQL, with all on offer.

Two models: `m` with all tiers, and its student `m-spark`, which `m-auto` asks first. Each relay has a forker of its
own, because some faults are of its environment. Does not know what is done to it (faults.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import psycopg

from headway.auto.calibration import write_calibration
from headway.auto.gate import Gate, GateCalibration, Isotonic, tool_id
from headway.auto.risk import Judged
from headway.engines.scripted import parse_curve
from headway.engines.scripted.steps import Script
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from runs.failover.cell import START_S, Cell, Member, until_listening
from runs.failover.plan import DISPATCHERS, RELAYS
from runs.failover.ports import free_ports
from runs.fleet.discovery import NAME, SERVER
from runs.torture.certificates import TlsFront
from runs.torture.clocks import FaultyClock
from runs.torture.disks import FaultyDisk, joined
from runs.torture.forker import Forker
from runs.torture.judge import Rules
from runs.torture.links import FaultyLink
from runs.torture.names import LyingNames
from runs.torture.workload import KEYS, MODEL, STUDENT, TOOL_NAME, TOOL_PARAMETERS

FULL, STUDENTS, SEATS = 6, 2, 6
FIRST_TOKEN_S, STEP_MS = 0.01, "1:7,6:10"
SCRIPT = Script(step_s=parse_curve(STEP_MS))
FLOORS = {"fast": 110.0, "ultrafast": 124.0}
MULTIPLES = {"standard": 1.0, "fast": 3.0, "ultrafast": 6.0, "flex": 0.5}
MARGIN = 0.1
MAX_HOLD_S = {"standard": 8.0, "fast": 3.0, "ultrafast": 3.0, "flex": 10.0}
PRICES = {MODEL: (1.0, 10.0), STUDENT: (0.2, 2.0)}
STALL_S, DRAIN_S = 4.0, 20.0
UNREADY_S = 2.5  # the load balancer looks each second, and twice before it sends nothing more
SPOOL_BYTES = 512 * 1024
LOCALHOST = "127.0.0.1"
STUDENT_HOSTS, STRANGER = ("127.0.9.11", "127.0.9.12"), "127.0.9.20"
ADMIN, OWNER = "hw-torture-admin", "hw-torture-owner"
CLOCKS = ("relay-2", "relay-4", *DISPATCHERS)  # whose wall clocks are not the machine's
CURVE = [[batch, round(1 / SCRIPT.step_time_s(batch), 4)] for batch in range(1, SEATS + 1)]
ANSWERS = f"""
[[answers]]
when = {{ offers_tool = "{TOOL_NAME}" }}
tool_calls = [{{ name = "{TOOL_NAME}", arguments = {{ minutes = 5 }} }}]
[[answers]]
when = {{ user_contains = "never said by anybody" }}
text = "no"
"""
HEADWAY = ("headway.cli.entry", "headway.cli.relay", "headway.cli.dispatch", "headway.run", "psycopg", "uvloop")
ENGINE = ("runs.torture.engine_lies", "runs.fleet.journal_engine", "uvloop")  # not engine.py, which is run as main


def most_beside(tier: str) -> int:
    """The largest batch that keeps the tier's floor with its margin, by the engines' script, not by Headway's code."""
    floor = FLOORS.get(tier)
    keeps = [
        batch for batch in range(1, SEATS + 1) if floor is None or 1 / SCRIPT.step_time_s(batch) >= floor * (1 + MARGIN)
    ]
    return max(keeps, default=1)


RULES = Rules(
    seats=SEATS,
    beside={tier: most_beside(tier) for tier in MULTIPLES},
    floors=FLOORS,
    prices={model: tuple(round(price * 1e6) for price in prices) for model, prices in PRICES.items()},
    multiples_milli={tier: round(1000 * multiple) for tier, multiple in MULTIPLES.items()},
    max_hold_s=MAX_HOLD_S,
    step_s=SCRIPT.step_time_s(SEATS),
    stall_s=STALL_S,
)


def _always(command: list[str], _start: int) -> list[str]:
    return command


async def until_open(port: int) -> None:
    async with asyncio.timeout(START_S):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(LOCALHOST, port)
                writer.close()
                return
            await asyncio.sleep(0.05)


class TortureCell(Cell):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, with_etcd=False, relays=RELAYS, replicas=FULL + STUDENTS)
        self.journals = folder / "journals"
        self.journals.mkdir()
        self.disks = {name: FaultyDisk(self.spool / name, folder / f"disk-of-{name}") for name in RELAYS}
        self.clocks = {name: FaultyClock(folder / f"clock-of-{name}") for name in CLOCKS}
        means = {name: [disk.env()] for name, disk in self.disks.items()}
        for name, clock in self.clocks.items():
            means.setdefault(name, []).append(clock.env())
        names = [*RELAYS, *DISPATCHERS]
        resolv = folder / "resolv.conf"
        resolv.write_text(f"nameserver {SERVER}\noptions timeout:1 attempts:1\n")
        self._forkers = {name: Forker(HEADWAY, joined(*means.get(name, [])), resolv) for name in names}
        self._forkers["engines"] = Forker(ENGINE)
        self.engines: dict[str, Member] = {}
        # All ways that pass through the run: to each engine, by its URL, and to the database. Students are found by
        # DNS, which names addresses that have one port in common.
        [student_port, self.front_port] = free_ports(2)
        students = [(host, student_port) for host in STUDENT_HOSTS]
        places = [(LOCALHOST, 0)] * FULL + students
        self.engine_links = {
            url: FaultyLink(url, port, host=host, port=at)
            for url, port, (host, at) in zip(self.replica_urls, self.replica_ports, places, strict=True)
        }
        # DNS may name an engine of the other model as a student.
        self.stranger = FaultyLink("stranger", self.replica_ports[0], host=STRANGER, port=student_port)
        self.names = LyingNames(folder, STUDENT_HOSTS)
        self.front = TlsFront(folder, self.front_port, self.port)
        self.database_link = FaultyLink("database", self.database.port)
        self.more_lines = ""  # of headway.toml, for changes while it runs

    @property
    def engine_of(self) -> dict[str, str]:
        """The URL in headway.toml -> the engine's own."""
        return {self.url_of(url): url for url in self.replica_urls}

    def url_of(self, url: str) -> str:
        """Of the link to this engine."""
        link = self.engine_links[url]
        return f"http://{link.host}:{link.port}"

    @property
    def links_of_all(self) -> list[FaultyLink]:
        return [*self.engine_links.values(), self.stranger, self.database_link]

    @property
    def members(self) -> list[Member]:
        return [*super().members, *self.engines.values()]

    def model_of(self, url: str) -> str:
        return MODEL if self.replica_urls.index(url) < FULL else STUDENT

    async def start(self) -> None:
        for link in self.links_of_all:
            await link.start()
        await asyncio.to_thread(self.names.start)
        await super().start()
        self.front.start()
        await until_open(self.front_port)

    async def stop(self) -> dict[str, int]:
        codes = await super().stop()
        for link in self.links_of_all:
            await link.stop()
        return codes

    def remove(self) -> None:
        self.front.stop()
        self.names.stop()
        super().remove()
        for forker in self._forkers.values():
            forker.remove()

    def write_config(self) -> None:
        """Write it anew, as after a change. Dispatchers read it again by themselves."""
        self._write_config()

    @property
    def balancer(self) -> Member:
        return self._others[-1]

    def is_shipped(self, relay: str) -> bool:
        """Whether the database surely has all entries of this relay's spool."""
        ids = list(self.spooled(self.spool / relay))
        try:
            with psycopg.connect(self.database.url) as connection:
                found = connection.execute("SELECT count(*) FROM entries WHERE id = ANY(%s)", (ids,)).fetchone()
        except psycopg.Error:
            return False
        return found == (len(ids),)

    def set_revoked(self, names: Sequence[str], *, is_revoked: bool) -> None:
        store = open_store(self.database.url)
        try:
            revoked_us = store.now_us() if is_revoked else None
            for key in store.keys_since(0):
                if key.id in names:
                    store.put_key(msgspec.structs.replace(key, revoked_us=revoked_us))
        finally:
            store.close()

    def _member(self, name: str, command: Callable[[int], list[str]], port: int) -> Member:
        return Member(name, command, port, self._log(name), self._forkers[name])

    def _start_replicas(self) -> None:
        answers = self.folder / "answers.toml"
        answers.write_text(ANSWERS)
        for url, port in zip(self.replica_urls, self.replica_ports, strict=True):
            # More seats than the gateways know of, so that streams beyond the limit run and are recorded.
            words = [str(self.journals), str(port), self.model_of(url), str(4 * SEATS)]
            words += [str(FIRST_TOKEN_S), STEP_MS, str(answers)]
            command = partial(_always, [sys.executable, "-m", "runs.torture.engine", *words])
            member = Member(url, command, port, self._log(f"engine-{port}"), self._forkers["engines"])
            self.engines[url] = member
            member.start()

    async def _open_replicas(self) -> None:
        for engine in self.engines.values():
            await until_listening(engine)

    def _start_stores(self) -> None:
        self.database.start()
        store = open_store(self.database.url)
        store.migrate()
        for key in KEYS:
            store.put_key(Key(id=key.id, hash=key_hash(key.secret.encode()), **key.limits))
        store.close()
        judged = [Judged(1.0, is_excess=False)] * 1000
        gate = Gate({"call": Isotonic([0.0, 1.0], [1.0, 1.0])})
        tools = [tool_id(TOOL_NAME, TOOL_PARAMETERS)]
        calibration = GateCalibration(STUDENT, MODEL, "2026-11-19", gate, judged, temperatures=[0.0], tools=tools)
        write_calibration(self.folder / "auto.json", calibration)

    def _write_config(self) -> None:
        if not self.secret.exists():
            self.secret.write_text(hashlib.sha256(str(self.folder).encode()).hexdigest())
            self.secret.chmod(0o600)
        admin, owner = (hashlib.sha256(key.encode()).hexdigest() for key in (ADMIN, OWNER))
        store = self.database.url.replace(f":{self.database.port}/", f":{self.database_link.port}/")
        text = (
            f"[gateway]\ndrain_timeout_s = {DRAIN_S}\nunready_s = {UNREADY_S}\n"
            f"probe_interval_s = 0.5\nstall_s = {STALL_S}\n"
            f'admin_key_hashes = ["{admin}"]\nkey_hashes = ["{owner}"]\n'
            f'[ledger]\nstore = "{store}"\nspool = "{self.spool}"\nspool_bytes = {SPOOL_BYTES}\n'
            f'[cell]\nrelays = {list(self._relay_names)}\nlease = "ledger"\n'
        )
        text += self._model_lines(MODEL, self.replica_urls[:FULL], [*MULTIPLES])
        text += f'[models.auto]\ncalibration = "{self.folder}/auto.json"\naudit_share = 0.3\nmax_waiting_audits = 50\n'
        text += self._model_lines(STUDENT, self.replica_urls[FULL:], ["standard"])
        new = self.config.with_suffix(".new")
        new.write_text(text + self.more_lines)
        new.replace(self.config)

    def _model_lines(self, name: str, urls: list[str], tiers: list[str]) -> str:
        input_price, output_price = PRICES[name]
        lines = f'[[models]]\nname = "{name}"\n[models.price]\ninput = {input_price}\noutput = {output_price}\n'
        for tier in tiers:
            lines += f'[[models.tiers]]\nname = "{tier}"\nmax_hold_s = {MAX_HOLD_S[tier]}\n'
            lines += f"price_multiple = {MULTIPLES[tier]}\n"
            lines += f"floor_tps = {FLOORS[tier]}\n" if tier in FLOORS else ""
        settings = f"seats = {SEATS}\ncurve = {CURVE}\n"
        if name == STUDENT:
            port = self.stranger.port
            return f'{lines}[models.discover]\ndns = "{NAME}:{port}"\nevery_s = 0.5\n{settings}'
        for url in urls:
            lines += f'[[models.replicas]]\nurl = "{self.url_of(url)}"\n{settings}'
        return lines
