"""The event record of a gateway: every event that the machine got, its time, and the actions that followed.

One JSON array per line: [now, event name, event fields, [[action name, action fields], ...]]. The first line holds the
machine's configuration. `replay` makes a machine from that line, gives it the same events and compares the actions.
Core is pure, so the actions differ only if core has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, get_args

import msgspec

from headway.core.machine import Machine
from headway.core.types import Action, Event, Offer, PoolPolicy
from headway.errors import SetupError

FORMAT = 2
EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
ACTIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(Action)}


class EventLog:
    def __init__(self, path: Path, pools: dict[str, PoolPolicy], offers: dict[str, Offer]) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._encode = msgspec.json.Encoder().encode
        self._write_line({"headway_events": FORMAT, "pools": pools, "offers": offers})

    def append(self, now: float, event: Event, actions: list[Action]) -> None:
        self._write_line(
            [now, type(event).__name__, event, [[type(action).__name__, action] for action in actions]],
        )

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


def replay(path: Path) -> Replayed:
    """Replay a record in core; stops at the first event whose actions differ from the recorded ones."""
    with path.open("rb") as file:
        machine = Machine(*_read_head(file.readline(), path))
        events = actions = 0
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                break  # the writer was killed while it wrote its last line
            now, event, recorded = _read_line(line, f"{path}:{number}")
            answered = machine.step(event, now)
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
            pools = msgspec.convert(head["pools"], dict[str, PoolPolicy])
            return pools, msgspec.convert(head["offers"], dict[str, Offer])
    except (msgspec.MsgspecError, KeyError, TypeError):
        pass
    raise SetupError(f"{path} is not an event record of this version. Make one with `headway serve --record FILE`.")


def _read_line(line: bytes, where: str) -> tuple[float, Event, list[Action]]:
    try:
        now, name, fields, actions = msgspec.json.decode(line)
        event: Event = msgspec.convert(fields, EVENTS[name])
        return now, event, [msgspec.convert(fields, ACTIONS[name]) for name, fields in actions]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise SetupError(f"{where} is not a valid event: {error}") from error
