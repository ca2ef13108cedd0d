"""The cell of the torture on real vLLM: three relays, two dispatchers, HAProxy, PostgreSQL, and a recorder per engine.

The engines outlive the parts, because they take most of a minute to start; recorders are of one part. The relays know
an engine by its recorder's URL, and so do the journals, the faults and the books.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port, wait_all_ready
from runs.failover.cell import Cell, Member, until_listening
from runs.failover.plan import RELAYS
from runs.measure.engines import TOOL_PARSER
from runs.torture.judge import Rules
from runs.torture.workload import KEYS, KINDS, MODEL, Mix

READY_S = 900.0  # beside another engine under load, and whatever else the machine does
SEATS = 24
# As these engines are on two cores that are busy, roughly. A step takes as much longer with each stream.
ALONE_S, EACH_S = 0.10, 0.0125
CURVE = [[batch, round(1 / (ALONE_S + EACH_S * (batch - 1)), 4)] for batch in range(1, SEATS + 1)]
PROMPT_TPS, FLOOR_TPS, MARGIN = 300.0, 4.0, 0.1
TIERS = {"standard": 75, "fast": 25}
MULTIPLES = {"standard": 1.0, "fast": 3.0}
MAX_HOLD_S = {"standard": 20.0, "fast": 10.0}
PRICE = (1.0, 10.0)
STALL_S, DRAIN_S = 4.0, 60.0
OF_KEYS = ("key-open-1", "key-open-2", "key-budget", "key-poor", "key-fast", "key-standard")
# Of whole answers nothing is known before their end, and vLLM alone decides where one with tools ends.
OF_KINDS = tuple(kind for kind in KINDS if kind.name not in ("spark", "auto"))
MIX = Mix(
    kinds=OF_KINDS,
    tiers=TIERS,
    keys=tuple(key for key in KEYS if key.id in OF_KEYS),
    tokens=(8, 20),
    long_tokens=(16, 24),
    fields={"ignore_eos": True},
)
RULES = Rules(
    seats=SEATS,
    beside={
        "standard": SEATS,
        "fast": max(round(batch) for batch, speed_tps in CURVE if speed_tps >= FLOOR_TPS * (1 + MARGIN)),
    },
    floors={"fast": FLOOR_TPS},
    prices={MODEL: tuple(round(price * 1e6) for price in PRICE)},
    multiples_milli={tier: round(1000 * multiple) for tier, multiple in MULTIPLES.items()},
    max_hold_s=MAX_HOLD_S,
    step_s=ALONE_S + EACH_S * (SEATS - 1),
    stall_s=STALL_S,
)


class Engines:
    """Two vLLM engines, one to a core."""

    def __init__(self, processes: Sequence[EngineProcess]) -> None:
        self.processes = processes
        self._seed = len(processes)  # of the engine that was started last

    def kill(self, number: int) -> None:
        """All its processes at once, as when a machine dies."""
        os.killpg(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].stop(grace_s=0.0)

    def start_again(self, number: int) -> None:
        """With a seed of its own: with that of the last start it would draw the same random numbers again."""
        self._seed += 1
        process = self.processes[number]
        process.engine = replace(process.engine, extra_args=(*TOOL_PARSER, "--seed", str(self._seed)))
        process.start()
        process.wait_ready(READY_S)

    def signal(self, number: int, what: signal.Signals) -> None:
        os.killpg(self.processes[number].pid, what)


@contextmanager
def two_engines(console: Console) -> Iterator[Engines]:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    with ExitStack() as stack:
        processes = []
        for core in (0, 1):
            flags = (*TOOL_PARSER, "--seed", str(core + 1))
            engine = LocalEngine(
                cpu_vllm(python), model, MODEL, free_port(), SEATS, on_cpu=True, core=core, extra_args=flags
            )
            processes.append(stack.enter_context(EngineProcess(engine)))
        with console.status("starting two engines (about a minute)"):
            wait_all_ready(processes, READY_S)
        yield Engines(processes)


def _always(command: list[str], _start: int) -> list[str]:
    return command


class RecordedCell(Cell):
    def __init__(self, folder: Path, engine_ports: Sequence[int]) -> None:
        super().__init__(folder, with_etcd=False, relays=RELAYS[:3], replicas=len(engine_ports))
        self.journals = folder / "journals"
        self.journals.mkdir()
        self._engine_ports = engine_ports
        self._recorders: list[Member] = []

    @property
    def members(self) -> list[Member]:
        return [*super().members, *self._recorders]

    def _start_replicas(self) -> None:
        for port, engine_port in zip(self.replica_ports, self._engine_ports, strict=True):
            words = [str(self.journals), str(port), str(engine_port)]
            command = partial(_always, [sys.executable, "-m", "runs.torture.recorder", *words])
            recorder = self._member(f"recorder-{port}", command, port)
            self._recorders.append(recorder)
            recorder.start()

    async def _open_replicas(self) -> None:
        for recorder in self._recorders:
            await until_listening(recorder)

    def _start_stores(self) -> None:
        self.database.start()
        store = open_store(self.database.url)
        store.migrate()
        for key in MIX.keys:
            store.put_key(Key(id=key.id, hash=key_hash(key.secret.encode()), **key.limits))
        store.close()

    def _write_config(self) -> None:
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        text = (
            f"[gateway]\ndrain_timeout_s = {DRAIN_S}\nprobe_interval_s = 0.5\nstall_s = {STALL_S}\n"
            f'[ledger]\nstore = "{self.database.url}"\nspool = "{self.spool}"\n'
            f'[cell]\nrelays = {list(self._relay_names)}\nlease = "ledger"\n'
            f'[[models]]\nname = "{MODEL}"\nmoves_streams = true\n'
            f"[models.price]\ninput = {PRICE[0]}\noutput = {PRICE[1]}\n"
        )
        for tier, multiple in MULTIPLES.items():
            text += f'[[models.tiers]]\nname = "{tier}"\nmax_hold_s = {MAX_HOLD_S[tier]}\nprice_multiple = {multiple}\n'
            text += f"floor_tps = {FLOOR_TPS}\n" if tier in RULES.floors else ""
        for url in self.replica_urls:
            text += f'[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\ncurve = {CURVE}\nprompt_tps = {PROMPT_TPS}\n'
        self.config.write_text(text)
