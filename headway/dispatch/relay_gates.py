"""The gates of auto models at a relay: what they tell goes to the dispatcher, and its decisions come back.

Nothing is known ahead: the dispatcher is asked about each call, before the student is and before its answer is taken.
So a gate that closes is closed for all relays at once, and while there is no dispatcher nothing is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headway.core.trust import AskFull
from headway.dispatch.base import NOT_WATCHED, CallEvent, GateDriver, GateEvent, RecalledRow
from headway.dispatch.frames import (
    DealAudits,
    FromDispatcher,
    GateDecided,
    GateJoined,
    GateRecalled,
    GateTold,
    Recall,
    VerdictsWritten,
)
from headway.dispatch.link import Link


class RelayGates:
    def __init__(self, epoch: Callable[[], int], may_send: Callable[[int], bool]) -> None:
        self.may_send = may_send
        self._epoch = epoch
        self._gates: dict[str, GateDriver] = {}
        self._link: Link | None = None

    @property
    def epoch(self) -> int:
        return self._epoch()

    # --- from gates ---

    def join(self, gate: GateDriver) -> None:
        self._gates[gate.model] = gate
        self._join(gate)

    def _join(self, gate: GateDriver) -> None:
        if self._link is not None:
            policy = msgspec.json.encode(gate.policy).decode()
            self._link.send(GateJoined(gate.model, gate.calibration, policy, gate.last_number, gate.audits()))

    def tell(self, model: str, event: GateEvent) -> None:
        if self._link is not None:
            self._link.send(GateTold(model, [event]))
        elif isinstance(event, CallEvent):
            self._gates[model].decide(AskFull(event.call_id, NOT_WATCHED))

    def recalled(self, model: str, after: int, rows: Sequence[RecalledRow], *, is_all: bool) -> None:
        if self._link is not None:
            self._link.send(GateRecalled(model, after, list(rows), is_all))

    def written(self, model: str, numbers: Sequence[int]) -> None:
        if self._link is not None:
            self._link.send(VerdictsWritten(model, list(numbers)))

    # --- from the dispatcher ---

    def welcomed(self, link: Link) -> None:
        self.left()  # the one before may still be there
        self._link = link
        for gate in self._gates.values():
            self._join(gate)

    def left(self) -> None:
        self._link = None
        for gate in self._gates.values():
            gate.forget_calls()

    def obey(self, message: FromDispatcher) -> None:
        if not isinstance(message, GateDecided | Recall | DealAudits):
            return
        if (gate := self._gates.get(message.model)) is None:
            return
        if isinstance(message, GateDecided):
            for decision in message.decisions:
                gate.decide(decision)
        elif isinstance(message, Recall):
            gate.recall(message.after)
        else:
            gate.drop_audits(message.drop)
            gate.ask_audits(message.ask)
