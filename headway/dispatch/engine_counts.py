"""The streams that engines say they run, beyond those that are known: strangers, and calls of relays that are gone.

A dispatcher that begins knows nothing of the calls before it, and a relay that is gone may have left streams. So a
replica is opened only once its engine was asked, and what it runs beyond what is known takes seats until it has
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.core.machine import Machine
from headway.core.types import Event, Left, ReplicaStrangers
from headway.dispatch.fleet import RunningFleet
from headway.dispatch.sessions import LEASE_S, RelaySession
from headway.dispatch.stream_count import SilentEngines, StreamCount

MARGIN_S = 0.25  # clocks do not run at exactly the same rate, and an engine needs a moment to notice
SENT_S = 1.0  # after which a call that boarded has reached its engine


class EngineCounts:
    def __init__(
        self,
        machine: Machine,
        fleet: RunningFleet,
        sessions: Mapping[str, RelaySession],
        owner: Mapping[str, RelaySession],
        step: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """`sessions` are the relays, by run; `owner` has the relay of each call."""
        self.uncounted: set[str] = set()  # replicas whose engines were not asked since they came up
        self.silent = SilentEngines()
        self._machine = machine
        self._fleet = fleet
        self._sessions = sessions
        self._owner = owner
        self._step = step
        self._clock = clock
        self._strangers: dict[str, int] = {}  # by replica; no zeros
        self._counts: dict[str, StreamCount] = {}  # the last one of each replica that is watched

    def begin(self, name: str) -> None:
        """The replica is new, or was down: what it runs is not known."""
        self.forget(name)
        self.uncounted.add(name)

    def forget(self, name: str) -> None:
        self.uncounted.discard(name)
        self._strangers.pop(name, None)
        self._counts.pop(name, None)

    def counted(self, name: str, streams: int) -> None:
        """The engine runs so many streams. Those that cannot be known ones are strangers, or calls of relays that are
        gone: at most so many of these still run. What the first count says holds until the second; after that, each
        count is judged when the next one is there (stream_count.py)."""
        lost = self._lost_calls().get(name, [])
        known = self._surely_running(name, lost)
        is_first, before = name in self.uncounted, self._counts.pop(name, None)
        if is_first:
            self._set_strangers(name, max(0, streams - sum(known.values()) - len(lost)))
        elif before is not None:
            others = before.others(known)
            for call_id in [one for one in lost if one in before.lost][others:]:
                self._step(Left(call_id))
            strangers = max(0, others - len(before.lost))
            if before.is_first or strangers < self._strangers.get(name, 0):
                self._set_strangers(name, strangers)
        if lost or self._strangers.get(name) or (is_first and known):
            self._counts[name] = StreamCount(streams, known, lost, is_first)
        self.uncounted.discard(name)

    def to_ask(self) -> set[str]:
        """Replicas whose engines run strangers, or calls of relays that are gone: are they still there?"""
        return self._counts.keys() | self._lost_calls().keys()

    def gone(self) -> list[RelaySession]:
        """Relays that have been lost for longer than they may write to engines."""
        now = self._clock()
        return [one for one in self._sessions.values() if one.is_gone(now, LEASE_S + MARGIN_S)]

    def _set_strangers(self, name: str, strangers: int) -> None:
        self._step(ReplicaStrangers(name, strangers))
        self._strangers[name] = strangers
        if not strangers:
            del self._strangers[name]

    def _surely_running(self, name: str, lost: list[str]) -> dict[str, int]:
        """The streams that the engine runs for each call that is known and not lost, at least. One that has just
        boarded may not have reached it yet; one that its relay has reported is there."""
        pool = self._machine.pools.get(self._fleet.members[name].replica.pool)
        state = pool.replica_state(name) if pool is not None else None
        since = self._clock() - SENT_S
        return {
            call_id: stream.call.choices
            for call_id, stream in (state.aboard.items() if state is not None else ())
            if call_id not in lost
            and (stream.boarded_at <= since or ((owner := self._owner.get(call_id)) and call_id in owner.named))
        }

    def _lost_calls(self) -> dict[str, list[str]]:
        """The calls of relays that are gone, by replica."""
        lost: dict[str, list[str]] = {}
        for session in self.gone():
            for call_id in session.calls:
                if (name := self._machine.replica_of(call_id)) is not None:
                    lost.setdefault(name, []).append(call_id)
        return lost
