"""The event record of a gateway: every event that core got, its time, and the actions that followed.

One JSON array per line: [now, event name, event fields, [[action name, action fields], ...]]. The first line holds the
machine's configuration. `replay` makes a machine from that line, gives it the same events and compares the actions.
Core is pure, so the actions differ only if core has changed.

The lines of an auto model (core/trust.py) have its name as a fifth element. Its first line is a TrustPolicy, and its
dice are in its events.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, get_args

import msgspec

from headway.core.machine import Machine
from headway.core.trust import Trust, TrustDecision, TrustEvent, TrustPolicy
from headway.core.types import Action, Event, Offer, PoolPolicy, Ticked
from headway.dispatch.rows import build
from headway.errors import SetupError

FORMAT = 2
EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
ACTIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(Action)}
TRUST_EVENTS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(TrustEvent), TrustPolicy)}
TRUST_DECISIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(TrustDecision)}

AnyEvent = Event | TrustEvent | TrustPolicy


def record_of(path: Path, number: int) -> Path:
    """The file of the first machine, of the second, and so on. A dispatcher that follows another one begins anew, so it
    begins another record."""
    return path if number == 1 else path.with_name(f"{path.name}.{number}")


class EventLog:
    def __init__(self, path: Path, pools: dict[str, PoolPolicy], offers: dict[str, Offer]) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._encode = msgspec.json.Encoder().encode
        self._write_line({"headway_events": FORMAT, "pools": pools, "offers": offers})
        self._file.flush()

    def append(self, now: float, event: Event, actions: list[Action]) -> None:
        self._write_line(
            [now, type(event).__name__, event, [[type(action).__name__, action] for action in actions]],
        )
        if isinstance(event, Ticked):  # so that the record of a process that is killed lacks little
            self._file.flush()

    def begin_trust(self, model: str, policy: TrustPolicy) -> None:
        self._write_line([0.0, type(policy).__name__, policy, [], model])

    def append_trust(self, model: str, now: float, event: TrustEvent, decisions: list[TrustDecision]) -> None:
        decided = [[type(decision).__name__, decision] for decision in decisions]
        self._write_line([now, type(event).__name__, event, decided, model])

    def close(self) -> None:
        self._file.close()

    def _write_line(self, line: Any) -> None:
        self._file.write(self._encode(line))
        self._file.write(b"\n")


@dataclass(frozen=True, slots=True)
class Replayed:
    events: int
    actions: int
    first_difference: str | None


class _Core:
    """The machine, and the trust of each auto model."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._trusts: dict[str, Trust] = {}

    def step(self, event: Any, now: float, model: str) -> list[Any]:
        if not model:
            return list(self._machine.step(event, now))
        if isinstance(event, TrustPolicy):
            self._trusts[model] = Trust(event)
            return []
        return list(self._trusts[model].step(event, now))


def replay(path: Path) -> Replayed:
    """Replay a record in core; stops at the first event whose actions differ from the recorded ones."""
    with path.open("rb") as file:
        core = _Core(Machine(*_read_head(file.readline(), path)))
        events = actions = 0
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                break  # the writer was killed while it wrote its last line
            now, event, recorded, model = _read_line(line, f"{path}:{number}")
            answered = core.step(event, now, model)
            if answered != recorded:
                what = f"line {number}: {event} gave {answered}, the record has {recorded}"
                return Replayed(events, actions, what)
            events += 1
            actions += len(answered)
    return Replayed(events, actions, None)


def _read_head(line: bytes, path: Path) -> tuple[dict[str, PoolPolicy], dict[str, Offer]]:
    try:
        head = msgspec.json.decode(line)
        if head["headway_events"] == FORMAT:
            return build(dict[str, PoolPolicy], head["pools"]), build(dict[str, Offer], head["offers"])
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        pass
    raise SetupError(f"{path} is not an event record of this version. Make one with `headway serve --record FILE`.")


def _read_line(line: bytes, where: str) -> tuple[float, AnyEvent, list[Any], str]:
    try:
        now, name, fields, actions, *auto = msgspec.json.decode(line)
        kinds, answers = (TRUST_EVENTS, TRUST_DECISIONS) if auto else (EVENTS, ACTIONS)
        event: AnyEvent = build(kinds[name], fields)
        recorded: list[Any] = [build(answers[name], fields) for name, fields in actions]
        return now, event, recorded, str(auto[0]) if auto else ""
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetupError(f"{where} is not a valid event: {error}") from error
