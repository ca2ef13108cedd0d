"""The values that pass through core: calls and replicas, events in, actions out.

Knows nothing of HTTP, clocks or sockets. Events say what happened, actions say what shall be done; both are plain
values that can be written to a file and compared, which is what `headway replay` does. They are treated as immutable;
they are not declared `frozen` because a frozen dataclass takes three times as long to make, and the simulator makes
several per call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.curve import Curve
from headway.errors import RefusalReason

Tier = Literal["ultrafast", "fast", "standard", "flex"]
EXPRESS: tuple[Tier, ...] = ("ultrafast", "fast")  # the tiers with a promised floor
Stage = Literal["connect", "full", "waiting", "streaming"]


@dataclass(slots=True)
class Call:
    """One request for tokens, as boarding sees it."""

    id: str
    model: str
    tier: Tier
    tenant: str = ""
    falls_back: bool = False  # without an express seat in time it is served as standard instead of refused


@dataclass(slots=True)
class Replica:
    """One engine that serves a model. `seats` is how many streams it may carry at once; without a curve it can promise
    nothing."""

    name: str
    model: str
    seats: int
    curve: Curve | None = None


@dataclass(slots=True)
class TierPolicy:
    """What a tier promises, and how patient its calls are: how many may be held, and for how long."""

    max_held: int
    max_hold_s: float
    floor_tps: float = 0.0


@dataclass(slots=True)
class ModelPolicy:
    """The tiers in the order in which their held calls board, and how the fleet is shared between them."""

    tiers: dict[Tier, TierPolicy]
    standard_share: float = 0.5  # the part of the replicas whose doors stay open to standard calls
    margin: float = 0.1  # how far above a floor the curve must lie
    reserve_window_s: float = 10.0  # light seats follow the peak of express demand over this long,
    reserve_headroom: float = 3.5  # and as many times its square root more (docs/design/0002)


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
    """Send the call to this replica now; `tier` is what it is served as."""

    call_id: str
    replica: str
    tier: Tier


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


@dataclass(slots=True)
class Downgrade:
    """The call goes on as a standard one; a Board or Hold for that follows."""

    call_id: str
    reason: RefusalReason


Action = Board | Hold | Refuse | Cut | Downgrade
