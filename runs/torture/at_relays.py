"""Faults of relays, dispatchers, the links between them, their disks and their clocks.

One relay and one dispatcher at a time: more than half of the relays must hear a dispatcher, or nobody decides.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from functools import partial

from runs.failover.cell import Member
from runs.torture.cell import TortureCell
from runs.torture.judge import Done
from runs.torture.links import FaultyLink, break_for_a_while
from runs.torture.plan import Fault
from runs.torture.processes import READY, READY_S, answers, stand, start_until_listening, start_until_ready
from runs.torture.shortage import few_descriptors, little_memory, slow_process

LOOK_S, NOT_READY_S = 0.1, 10.0  # a relay that has not been ready for so long has been told
MOST_STEP_S = 36 * 3600.0  # of a clock


class AtRelays:
    def __init__(self, cell: TortureCell) -> None:
        self.lock = asyncio.Lock()
        self.wrong: list[str] = []
        self._cell = cell

    async def cause(self, what: str, fault: Fault, chance: random.Random) -> Done:
        async with self.lock:
            name = chance.choice([*self._cell.relays])
            from_s = time.monotonic()
            relay = self._cell.relays[name]
            effects: list[str] = []
            if what == "killed":
                effects = ["dies"]
                await relay.kill()
                await start_until_ready(relay)
            elif what == "ended":  # after its streams
                await relay.end()
                await start_until_ready(relay)
            elif what == "stopped":
                effects = ["stands"]
                await stand(relay, fault.lasts_s)
            elif what == "slow":
                effects = ["stands"]
                async with slow_process(relay.pid, chance.uniform(0.2, 0.7)):
                    await asyncio.sleep(fault.lasts_s)
            elif what.startswith("short of"):
                effects = ["starves", "dies"] if await self._run_short(relay, what, fault) else ["starves"]
            elif what == "all rolled":
                for one in self._cell.relays.values():
                    await one.end()
                    await start_until_ready(one)
            elif what == "spool restored":
                effects = ["dies"]
                await self._restore_spool(name, fault)
            elif what.startswith("disk"):
                effects = [] if what == "disk slow" else ["writes nothing"]
                await self._at_disk(name, what, fault, chance)
            elif what.startswith("clock"):
                name = chance.choice([one for one in self._cell.clocks if one in self._cell.relays])
                await at_clock(self._cell, name, what, fault, chance)
            else:  # cut off from both dispatchers
                await break_for_a_while(self._cell.links_of(name), FaultyLink.freeze, fault.lasts_s)
            return Done(fault.kind, [name], effects, from_s, time.monotonic())

    async def at_link(self, what: str, fault: Fault, chance: random.Random) -> Done:
        """Of a relay to the dispatcher that leads."""
        name, from_s = chance.choice([*self._cell.relays]), time.monotonic()
        links = self._cell.links_of(name, self._cell.leader() or "dispatcher-1")
        causes = {"closed": FaultyLink.close, "frozen": FaultyLink.freeze}
        slow = partial(FaultyLink.slow, delay_s=chance.uniform(0.001, 0.1), split=chance.randint(1, 200))
        await break_for_a_while(links, causes.get(what, slow), fault.lasts_s)
        return Done(fault.kind, [name], [], from_s, time.monotonic())

    async def _run_short(self, relay: Member, what: str, fault: Fault) -> bool:
        """Whether the relay did not survive it."""
        with few_descriptors(relay.pid) if what.endswith("descriptors") else little_memory(relay.pid):
            await asyncio.sleep(fault.lasts_s)
        if relay.ended_by_itself():
            await start_until_ready(relay)
            return True
        return False

    async def _restore_spool(self, name: str, fault: Fault) -> None:
        """A machine is set back to a copy of its disk that was made while calls ran. What came after the copy has been
        shipped. Headway must refuse the copy until its owner says, by deleting two files, that no other gateway uses
        it."""
        relay, spool = self._cell.relays[name], self._cell.spool / name
        copy = self._cell.folder / f"copy-of-{name}"
        shutil.rmtree(copy, ignore_errors=True)
        await relay.kill()
        shutil.copytree(spool, copy)
        await start_until_ready(relay)
        await asyncio.sleep(fault.lasts_s)
        await relay.end()
        if await asyncio.to_thread(self._cell.is_shipped, name):
            shutil.rmtree(spool)
            copy.rename(spool)
            for file in ("place", "gateway"):
                relay.start()
                if not await self._is_refused(relay):
                    self.wrong.append(f"{name} serves with a copy of its spool")
                (spool / file).unlink()
        await start_until_ready(relay)

    async def _is_refused(self, relay: Member) -> bool:
        """Whether a relay with a copy does not start, or takes no calls as soon as the database tells it: a gateway
        that starts while the database is away cannot know."""
        deadline, not_ready = time.monotonic() + READY_S, 0
        while time.monotonic() < deadline:
            if relay.ended_by_itself():
                return True
            is_ready = await answers(relay, READY, b" 200")
            not_ready = 0 if is_ready else not_ready + 1
            if not_ready * LOOK_S > NOT_READY_S:
                await relay.kill()
                return True
            await asyncio.sleep(LOOK_S)
        await relay.kill()
        return False

    async def _at_disk(self, name: str, what: str, fault: Fault, chance: random.Random) -> None:
        disk = self._cell.disks[name]
        if what == "disk full":
            disk.full(chance.randint(0, 20_000))
        elif what == "disk read-only":
            disk.read_only()
        elif what == "disk fails":
            disk.failing_fsync()
        else:
            disk.slow_fsync(chance.randint(5, 200))
        await asyncio.sleep(fault.lasts_s)
        disk.mend()


class AtDispatchers:
    def __init__(self, cell: TortureCell) -> None:
        self._lock = asyncio.Lock()
        self._cell = cell

    async def cause(self, what: str, fault: Fault, chance: random.Random) -> Done:
        async with self._lock:
            leader = await self._find_leader()
            standby = next(name for name in self._cell.dispatchers if name != leader)
            name = leader if fault.kind.startswith("leader") else standby
            dispatcher, from_s = self._cell.dispatchers[name], time.monotonic()
            if what == "stopped":
                await stand(dispatcher, fault.lasts_s)
            elif what.startswith("clock"):
                await at_clock(self._cell, name, what, fault, chance)
            else:
                if what == "killed":
                    await dispatcher.kill()
                else:
                    await dispatcher.end()
                await start_until_listening(dispatcher)
            return Done(fault.kind, [name], [], from_s, time.monotonic())

    async def _find_leader(self) -> str:
        deadline = time.monotonic() + READY_S
        while (leader := self._cell.leader()) is None:
            if time.monotonic() > deadline:
                raise SystemExit("no dispatcher leads")
            await asyncio.sleep(0.05)
        return leader


async def at_clock(cell: TortureCell, name: str, what: str, fault: Fault, chance: random.Random) -> None:
    """The wall clock. Monotonic time goes on as it is."""
    clock = cell.clocks[name]
    if what == "clock stepped":
        clock.step(chance.choice((-1, 1)) * chance.uniform(1.0, MOST_STEP_S))
    else:
        clock.drift(chance.uniform(0.5, 3.0))
    await asyncio.sleep(fault.lasts_s)
    await asyncio.to_thread(clock.mend)
