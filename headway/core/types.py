"""The values that pass through core: calls and replicas, events in, actions out.

Knows nothing of HTTP, clocks or sockets. Events say what happened, actions say what shall be done; both are plain
values that can be written to a file and compared, which is what `headway replay` does. They are treated as immutable;
they are not declared `frozen` because a frozen dataclass takes three times as long to make, and the simulator makes
several per call; nor are other values of core, because a frozen one that was compiled (setup.py) cannot be sent to
another process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from headway.core.curve import Curve
from headway.core.rate_limit import RateLimit, TokenLimit
from headway.errors import RefusalReason

Tier = Literal["ultrafast", "fast", "standard", "flex"]
TIERS: tuple[Tier, ...] = get_args(Tier)  # in the order in which their held calls board
EXPRESS: tuple[Tier, ...] = ("ultrafast", "fast")  # the tiers with a promised floor
Stage = Literal["connect", "full", "waiting", "preempted"]
MIN_TOKENS_FOR_PROMISE = 16  # the speed of a shorter answer says nothing


@dataclass(slots=True)
class Call:
    """One request for tokens, as boarding sees it."""

    id: str
    model: str
    tier: Tier
    tenant: str = ""
    falls_back: bool = False  # without an express seat in time it is served as standard instead of refused
    affinity: str = ""  # calls with the same key share a prompt prefix, which an engine may have in its cache
    was_preempted: bool = False  # a flex call makes way once
    prompt_tokens: int = 0  # about as many, judged by its length: the engine counts them when it has read it
    choices: int = 1  # answers to the same prompt: each is a stream of its own and takes a seat
    # Its key's own limits, in place of the tiers': for the express tiers, and for the others.
    express_limit: TokenLimit | None = None
    other_limit: TokenLimit | None = None


@dataclass(slots=True)
class Replica:
    """One engine of a pool. `seats` is how many streams it may carry at once; without a curve it can promise
    nothing. `prompt_tps` is how fast it reads prompts; 0 is unknown, and then prompts count for nothing."""

    name: str
    pool: str
    seats: int
    curve: Curve | None = None
    prompt_tps: float = 0.0


@dataclass(slots=True)
class TierPolicy:
    """What a tier promises, and how patient its calls are: how many may be held, and for how long."""

    max_held: int
    max_hold_s: float
    floor_tps: float = 0.0
    limit: TokenLimit = field(default_factory=TokenLimit)  # for each tenant


@dataclass(slots=True)
class Offer:
    """A model as clients ask for it: the pool that serves it, and its tiers. Several offers on one pool, such as LoRA
    adapters of one base, share its seats."""

    pool: str
    tiers: dict[Tier, TierPolicy]


@dataclass(slots=True, kw_only=True)
class PoolPolicy:
    """How replicas with the same weights are shared between the calls with a floor and the others."""

    standard_share: float = 0.5  # the part of the replicas whose doors stay open to standard calls
    margin: float = 0.1  # how far above a floor the curve must lie
    reserve_window_s: float = 10.0  # light seats follow the peak of express demand over this long,
    reserve_headroom: float = 3.5  # and as many times its square root more (docs/design/0002)


@dataclass(slots=True)
class ModelPolicy(PoolPolicy):
    """The policy of a model that has a pool of its own, which is the common case."""

    tiers: dict[Tier, TierPolicy]


def own_pools(policies: dict[str, ModelPolicy]) -> tuple[dict[str, PoolPolicy], dict[str, Offer]]:
    """What a Machine is made from: one pool and one offer for each model, with the model's name."""
    pools: dict[str, PoolPolicy] = {name: policy for name, policy in policies.items()}  # noqa: C416 (another type)
    return pools, {name: Offer(name, policy.tiers) for name, policy in policies.items()}


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    call: Call


@dataclass(slots=True)
class Finished:
    """The engine's answer has been read to its end. `speed_tps` is what the stream got, None if that says nothing of
    the engine: too short an answer, or a client that read too slowly."""

    call_id: str
    prompt_tokens: int
    output_tokens: int
    speed_tps: float | None = None


@dataclass(slots=True)
class Delivering:
    """The first part of the call's answer is on its way to the client: it can no longer be served from the start."""

    call_id: str


@dataclass(slots=True)
class Failed:
    """A boarded call lost its engine before anything was delivered to the client. `stage` says how far it got:

    connect    the engine never saw it
    full       the engine itself had no room for it
    waiting    the engine had it
    preempted  nothing failed: it was taken off its engine because core said Preempt

    One that loses its engine in the middle of its answer cannot be served again: that is Left.
    """

    call_id: str
    stage: Stage


@dataclass(slots=True)
class Left:
    """The call ended in any other way than Finished: the client is gone, or what was begun cannot be mended. What it
    was served until then counts as served."""

    call_id: str
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class ReplicaUp:
    """The replica has shown that it produces tokens. Its seats are open, also if it was draining. If it is known with
    other seats or another curve, the new ones take effect."""

    replica: Replica


@dataclass(slots=True)
class ReplicaChanged:
    """A known replica has other seats, another curve or another `prompt_tps`. Whether it is open does not change.
    Streams aboard beyond a lower limit stay to their end, and nobody boards meanwhile."""

    replica: Replica


@dataclass(slots=True)
class ReplicaSuspect:
    """Something failed there: no new calls board until it is up again. Streams aboard go on."""

    name: str


@dataclass(slots=True)
class ReplicaDraining:
    """It takes no new calls and will not come back: held calls do not wait for it. Streams aboard go on. A later
    ReplicaUp opens it again."""

    name: str


@dataclass(slots=True)
class ReplicaDown:
    """It is dead or stands still. Streams aboard are cut."""

    name: str


@dataclass(slots=True)
class ReplicaRemoved:
    """It is no longer part of the fleet. What is still aboard is cut."""

    name: str


@dataclass(slots=True)
class Ticked:
    """Time has passed; deadlines are looked at."""


@dataclass(slots=True)
class Draining:
    """This gateway takes no new calls; those aboard and held are served."""


Event = (
    Arrived
    | Delivering
    | Finished
    | Failed
    | Left
    | ReplicaUp
    | ReplicaChanged
    | ReplicaSuspect
    | ReplicaDraining
    | ReplicaDown
    | ReplicaRemoved
    | Ticked
    | Draining
)

# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Board:
    """Send the call to this replica now; `tier` is what it is served as. `reason` says why that is not the tier asked,
    `rate_limit` what the tenant had left of its limit when the call arrived, None where there is no limit."""

    call_id: str
    replica: str
    tier: Tier
    floor_tps: float = 0.0
    reason: RefusalReason | None = None
    rate_limit: RateLimit | None = None


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
    rate_limit: RateLimit | None = None


@dataclass(slots=True)
class Cut:
    """Stop reading this call from its replica: the replica is down."""

    call_id: str


@dataclass(slots=True)
class Preempt:
    """Take this flex call off its replica, to make room for an express one. It keeps its seat until the engine has let
    go of it, which Failed with the stage `preempted` says; then it waits for another."""

    call_id: str


@dataclass(slots=True)
class Downgrade:
    """The call goes on as a standard one; a Board or Hold for that follows."""

    call_id: str
    reason: RefusalReason


@dataclass(slots=True)
class Settled:
    """The answer to Finished and Left: the seat-time of all the call's boardings, in microseconds."""

    call_id: str
    seat_us: int


Action = Board | Hold | Refuse | Cut | Preempt | Downgrade | Settled
