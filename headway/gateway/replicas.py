"""The replicas of a gateway, each with its engine and its prober.

Whoever decides adds and removes them (dispatch/fleet.py). A replica that is added is probed, and takes calls once it
has produced a token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from headway.core.types import Replica, ReplicaSuspect
from headway.dispatch.base import Finding
from headway.dispatch.fleet import Member
from headway.engines.base import Engine
from headway.engines.kv_blocks import ReadPrompt
from headway.engines.kv_subscriber import KvRoom, KvSubscriber
from headway.engines.probe import Prober
from headway.errors import EngineLost
from headway.gateway.timing import Timing
from headway.supervise import Supervisor
from headway.wire import ContinuableMeter, Meter, Request

log = logging.getLogger("headway.gateway")


@dataclass(slots=True)
class _Watched:
    engine: Engine
    prober: Prober
    kv_events: KvSubscriber | None = None
    task: asyncio.Task[None] | None = None  # of the prober; None while others probe it
    kv_task: asyncio.Task[None] | None = None
    # One for each call of this gateway that is aboard, with the output tokens that it had read when it came aboard.
    meters: dict[Meter, int] = field(default_factory=dict)
    ended_tokens: int = 0  # output tokens of calls that are aboard no more
    told_tokens: int = 0  # the most that `output_tokens` returned

    @property
    def aboard(self) -> int:
        return len(self.meters)

    def stop(self) -> list[asyncio.Task[None]]:
        """Probe it no more. Returns the tasks that end."""
        tasks = [task for task in (self.task, self.kv_task) if task is not None]
        for task in tasks:
            task.cancel()
        self.task = self.kv_task = None
        return tasks


class Replicas:
    def __init__(
        self,
        make_engine: Callable[[Member], Engine],
        probed: Callable[[Finding], None],
        clock: Callable[[], float],
        supervisor: Supervisor,
        timing: Timing,
    ) -> None:
        self.pools: dict[str, str] = {}  # name of each replica -> name of its pool
        self._make_engine = make_engine
        self._tell = probed
        self._clock = clock
        self._supervisor = supervisor
        self._timing = timing
        self._kv_room = KvRoom()
        self._watched: dict[str, _Watched] = {}
        self._counting: dict[str, asyncio.Task[None]] = {}
        self._probed: Mapping[str, bool] | None = {}  # with whether each was open; None: all of them
        self._watching: asyncio.Task[None] | None = None  # for stalls, if others probe some of the replicas

    def add(self, member: Member) -> None:
        replica, engine = member.replica, self._make_engine(member)
        prober = Prober(
            replica,
            engine,
            tell=self._tell,
            aboard=self.aboard,
            clock=self._clock,
            interval_s=self._timing.probe_interval_s,
            stall_s=self._timing.stall_s,
            min_context=member.min_context,
        )
        self.pools[replica.name] = replica.pool
        watched = self._watched[replica.name] = _Watched(engine, prober)
        if member.kv_events:
            watched.kv_events = KvSubscriber(
                replica.name, member.kv_events, member.kv_replay, self._kv_room, self._tell
            )
        if self._probed is None:
            self._start(watched)

    def change(self, replica: Replica) -> None:
        prober = self._watched[replica.name].prober
        prober.replica = replace(replica, kv_tokens=prober.replica.kv_tokens)

    def remove(self, name: str) -> None:
        watched = self._watched.pop(name)
        del self.pools[name]
        watched.stop()
        watched.engine.close()

    def max_model_lens(self) -> dict[str, int]:
        """The longest context that all replicas of a pool have, by pool. Those that never said are left out."""
        smallest: dict[str, int] = {}
        for name, watched in self._watched.items():
            if (said := watched.prober.max_model_len) is not None:
                pool = self.pools[name]
                smallest[pool] = min(said, smallest.get(pool, said))
        return smallest

    # --- used by calls ---

    def engine(self, name: str) -> Engine:
        return self._watched[name].engine

    def aboard(self, name: str) -> int:
        return self._watched[name].aboard if name in self._watched else 0

    @contextmanager
    def carrying(self, name: str, meter: Meter, request: Request) -> Iterator[None]:
        """While the replica runs a call. The meter of one that goes on here has read tokens of other replicas."""
        if (watched := self._watched.get(name)) is None:
            yield
            return
        if not watched.meters:
            watched.prober.note_progress()
        before = watched.meters[meter] = meter.usage().output_tokens
        try:
            yield
        finally:
            del watched.meters[meter]
            watched.ended_tokens += meter.usage().output_tokens - before
            # Its blocks cannot have been evicted until now.
            if watched.kv_events is not None and (prompt := read_prompt(meter, request, self.pools.get(name))):
                watched.kv_events.read(prompt)

    def output_tokens(self) -> dict[str, int]:
        """Output tokens that were read from each replica since it was added, also those of streams that still run."""
        for watched in self._watched.values():
            running = sum(meter.usage().output_tokens - before for meter, before in watched.meters.items())
            # An engine's last count can be lower than that of the events before it. A counter must not fall.
            watched.told_tokens = max(watched.told_tokens, watched.ended_tokens + running)
        return {name: watched.told_tokens for name, watched in self._watched.items()}

    def probe_now(self, name: str) -> None:
        """Probe a replica at once, because a call failed on it."""
        if name in self._watched:
            self._watched[name].prober.probe_now()

    def count_streams(self, name: str, counted: Callable[[str, int], None]) -> None:
        """Tell how many streams the replica's engine runs, unless it does not say."""
        if name in self._watched and name not in self._counting:
            task = self._counting[name] = asyncio.create_task(self._count(name, counted))
            task.add_done_callback(lambda _: self._counting.pop(name, None))

    async def _count(self, name: str, counted: Callable[[str, int], None]) -> None:
        # Whoever decides asks again, and says so if it gets no answer for long.
        engine = self._watched[name].engine
        if not engine.counts_streams:
            counted(name, 0)
            return
        with suppress(EngineLost):
            if (streams := await engine.streams()) is not None:
                counted(name, streams)

    # --- start and stop ---

    def probe_only(self, replicas: Mapping[str, bool] | None) -> None:
        """Probe these replicas and no others; each is given with whether it is open now. None: probe all of them."""
        self._probed = replicas
        if replicas is not None and self._watching is None:
            self._watching = self._supervisor.start("stalls", self._watch_for_stalls)
        for name, watched in self._watched.items():
            if replicas is not None and name not in replicas:
                watched.stop()
                continue
            is_open = replicas is not None and replicas[name]
            if watched.task is None:
                watched.prober.is_up = is_open
                self._start(watched)
            elif is_open:
                watched.prober.is_up = True  # if it is not, the next checks tell that again
            else:  # whoever decides now may not know what the prober knows
                watched.prober.say_again()

    def _start(self, watched: _Watched) -> None:
        name = watched.engine.name
        watched.task = self._supervisor.start(f"prober {name}", watched.prober.run)
        if watched.kv_events is not None:
            watched.kv_task = self._supervisor.start(f"KV events of {name}", watched.kv_events.run)

    async def _watch_for_stalls(self) -> None:
        """A relay that probes a replica knows of its own calls only. So each relay watches those that have its calls
        and that others probe."""
        while True:
            await asyncio.sleep(self._timing.probe_interval_s)
            busy = [watched for watched in self._watched.values() if watched.aboard and watched.task is None]
            await asyncio.gather(*[self._watch_for_stall(watched) for watched in busy])

    async def _watch_for_stall(self, watched: _Watched) -> None:
        with suppress(EngineLost):  # whoever probes it notices that
            if await watched.prober.is_stalled():
                watched.prober.note_progress()  # so that it is told again only after as long
                log.warning("replica %s: calls are aboard and it made no progress", watched.engine.name)
                self._tell(ReplicaSuspect(watched.engine.name))

    async def stop(self) -> None:
        running = [task for watched in self._watched.values() for task in watched.stop()]
        if self._watching is not None:
            self._watching.cancel()
            running.append(self._watching)
        await asyncio.gather(*running, return_exceptions=True)
        for watched in self._watched.values():
            watched.engine.close()


def read_prompt(meter: Meter, request: Request, pool: str | None) -> ReadPrompt | None:
    """What is known of the prompt of a call; None if that is too little to find its blocks."""
    call = request.call
    if not (isinstance(meter, ContinuableMeter) and meter.prompt_ids and call.prefix_keys and call.prompt_tokens):
        return None
    shares = tuple(min(1.0, tokens / call.prompt_tokens) for tokens in call.prefix_tokens)
    adapter = call.model if call.model != pool else ""
    return ReadPrompt(meter.prompt_ids, call.prefix_keys, shares, adapter, request.cache_salt)
