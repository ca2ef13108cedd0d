"""The values that pass through core: calls and replicas, events in, actions out.

Knows nothing of HTTP, clocks or sockets. Events say what happened, actions say what shall be done; both are plain
values that can be written to a file and compared, which is what `headway replay` does. They are treated as immutable;
they are not declared `frozen` because a frozen dataclass takes three times as long to make, and the simulator makes
several per call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import RefusalReason

Tier = Literal["standard"]
Stage = Literal["connect", "full", "waiting", "streaming"]


@dataclass(slots=True)
class Call:
    """One request for tokens, as boarding sees it."""

    id: str
    model: str
    tier: Tier


@dataclass(slots=True)
class Replica:
    """One engine that serves a model. `seats` is how many streams it may carry at once."""

    name: str
    model: str
    seats: int


@dataclass(slots=True)
class ModelPolicy:
    """How patient a model's calls are: how many may be held, and for how long."""

    max_held: int
    max_hold_s: float


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    call: Call


@dataclass(slots=True)
class Finished:
    """The engine's answer has been read to its end."""

    call_id: str
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Failed:
    """A boarded call lost its engine. `stage` says how far it got:

    connect    the engine never saw it
    full       the engine itself had no room for it
    waiting    the engine had it, nothing was delivered to the client yet
    streaming  part of the answer had been delivered: the call cannot be served again
    """

    call_id: str
    stage: Stage


@dataclass(slots=True)
class Left:
    """The client is gone, or the call was ended outside core. Always the last event of a call; harmless when late."""

    call_id: str


@dataclass(slots=True)
class ReplicaUp:
    """The replica has shown that it produces tokens. Its seats are open."""

    replica: Replica


@dataclass(slots=True)
class ReplicaSuspect:
    """Something failed there: no new calls board until it is up again. Streams aboard go on."""

    name: str


@dataclass(slots=True)
class ReplicaDown:
    """It is dead or stands still. Streams aboard are cut."""

    name: str


@dataclass(slots=True)
class Ticked:
    """Time has passed; deadlines are looked at."""


@dataclass(slots=True)
class Draining:
    """This gateway takes no new calls; those aboard and held are served."""


Event = Arrived | Finished | Failed | Left | ReplicaUp | ReplicaSuspect | ReplicaDown | Ticked | Draining

# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Board:
    """Send the call to this replica now."""

    call_id: str
    replica: str


@dataclass(slots=True)
class Hold:
    """Keep the call waiting; if nothing else comes, tick at `until`."""

    call_id: str
    until: float


@dataclass(slots=True)
class Refuse:
    call_id: str
    reason: RefusalReason
    retry_after_s: int


@dataclass(slots=True)
class Cut:
    """Stop reading this call from its replica: the replica is down."""

    call_id: str


Action = Board | Hold | Refuse | Cut
