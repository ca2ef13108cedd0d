"""The values that pass through core: calls and replicas, events in, actions out.

This module knows nothing about HTTP, clocks or sockets. Events say what happened; actions say what to do. Both are
plain values that can be written to a file and compared, as `headway replay` does. They are treated as immutable but not
declared `frozen`: creating a frozen dataclass takes three times as long, and the simulator creates several per call.
The other values of core are not frozen either, because a frozen one that was compiled (setup.py) cannot be sent to
another process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from headway.core.curve import Curve
from headway.core.learnt import Learnt
from headway.core.rate_limit import RateLimit, TokenLimit
from headway.errors import RefusalReason

Tier = Literal["ultrafast", "fast", "standard", "flex"]
TIERS: tuple[Tier, ...] = get_args(Tier)  # in the order in which their held calls board
EXPRESS: Final[tuple[Tier, ...]] = ("ultrafast", "fast")  # the tiers with a promised floor
Stage = Literal["connect", "full", "waiting", "streaming", "preempted", "unsent"]
MIN_TOKENS_FOR_PROMISE = 16  # a shorter answer is too short to measure its speed
MAX_MOVES = 2  # how often a stream may be taken off a replica or lose it, and go on at another one
MAX_PAUSE_S = 5.0  # for which a stream that has begun may wait for a seat elsewhere
TICK_S = 0.1  # the drivers send Ticked this often
# The prefixes of a prompt that have keys. So where two prompts differ is known to about a fifth of their length.
KEYED_TOKENS: Final = tuple(int(128 * 1.28**number) for number in range(32))


@dataclass(slots=True)
class Call:
    """One request for tokens, with the fields that boarding needs."""

    id: str
    model: str
    tier: Tier
    tenant: str = ""
    falls_back: bool = False  # if no express seat is free in time: served as standard instead of refused
    # Of the prefixes of KEYED_TOKENS tokens, as far as they go: a hash of everything up to there, and its tokens.
    prefix_keys: tuple[int, ...] = ()
    prefix_tokens: tuple[int, ...] = ()
    is_continuable: bool = False  # a stream that has begun can go on at another replica
    moves: int = 0  # how often it was taken off a replica, or lost it after it had begun
    prompt_tokens: int = 0  # estimated from the body's length; the engine reports the real count
    choices: int = 1  # answers to the same prompt; each is a separate stream and takes a seat
    may_overflow: bool = False  # the servers of an overflow pool understand it
    # Limits of the API key, which replace those of the tiers: for the express tiers, and for the other tiers.
    express_limit: TokenLimit | None = None
    other_limit: TokenLimit | None = None

    @property
    def may_fall_back(self) -> bool:
        """Whether it may be served as standard."""
        return self.falls_back and self.tier in EXPRESS


@dataclass(slots=True)
class Replica:
    """One engine of a pool. `seats` is the maximum number of concurrent streams. Without a curve it takes no express
    calls. `prompt_tps` is its speed of reading prompts; 0 means unknown, and prompts are assumed to take no time.
    `kv_tokens` is how many tokens of prompts and answers its memory holds at a time; 0 means unknown."""

    name: str
    pool: str
    seats: int
    curve: Curve | None = None
    prompt_tps: float = 0.0
    kv_tokens: int = 0


@dataclass(slots=True)
class TierPolicy:
    """What a tier promises, how many of its calls may be held, and for how long."""

    max_held: int
    max_hold_s: float
    floor_tps: float = 0.0
    limit: TokenLimit = field(default_factory=TokenLimit)  # for each tenant
    target_tps: float = 0.0  # the usual speed of its streams, which is not promised; 0: just above the floor
    overflow_after_s: float | None = None  # how long a call waits before it may overflow; None: it may not


@dataclass(slots=True)
class Offer:
    """A model as clients request it: the pool that serves it, and its tiers. Several offers on one pool, such as LoRA
    adapters of one base model, share its seats. Calls that find no seat there may board another pool, `overflow`,
    whose servers keep no floor (overflow.py)."""

    pool: str
    tiers: dict[Tier, TierPolicy]
    overflow: str = ""  # empty if there is none


@dataclass(slots=True, kw_only=True)
class PoolPolicy:
    """How replicas with the same weights are shared between calls with a floor and calls without one."""

    standard_share: float = 0.5  # the share of the replicas that stay open to standard calls
    margin: float = 0.1  # how far above a floor the curve must be, as a share of the floor: the time for prompts
    kept_target: float = 0.995  # the share of streams that should keep their floor (feedback.py)
    express_wait_s: float = 0.4  # 19 of 20 express calls should wait less; inf keeps no seats ready (reserve.py)
    moves_streams: bool = False  # continuable streams are moved to make a replica light at once


@dataclass(slots=True)
class ModelPolicy(PoolPolicy):
    """The policy of a model that has its own pool, which is the usual case."""

    tiers: dict[Tier, TierPolicy]


def own_pools(policies: dict[str, ModelPolicy]) -> tuple[dict[str, PoolPolicy], dict[str, Offer]]:
    """Return the arguments of Machine: one pool and one offer for each model, both with the model's name."""
    pools: dict[str, PoolPolicy] = {name: policy for name, policy in policies.items()}  # noqa: C416 (another type)
    return pools, {name: Offer(name, policy.tiers) for name, policy in policies.items()}


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    call: Call


@dataclass(slots=True)
class Adopted:
    """A driver says where one of its calls is: aboard `replica`, or held if that is None. A core that has just taken
    over learns its calls this way. If it knows the call, what the driver says replaces it: an action may have been lost
    between them. `call` is as it is served now, with the prompt that came, and `reason` says why that differs from what
    was asked. A call that is delivering and held is paused: it is to go on, and `waited_s` is since its last token."""

    call: Call
    replica: str | None = None
    waited_s: float = 0.0  # since it arrived or was downgraded
    is_delivering: bool = False
    reason: RefusalReason | None = None


@dataclass(slots=True)
class Finished:
    """The engine's answer was read to its end. `speed_tps` is the measured speed of the stream; None if it says nothing
    about the engine because the answer was too short or the client read too slowly."""

    call_id: str
    prompt_tokens: int
    output_tokens: int
    speed_tps: float | None = None


@dataclass(slots=True)
class Delivering:
    """The first part of the answer is being or was sent to the client, and the call cannot go on elsewhere: it stays
    where it is. Of a continuable call this is told only if it can no longer go on elsewhere."""

    call_id: str


@dataclass(slots=True)
class Failed:
    """A boarded call has lost its engine, and can go on at another one. `stage` says how far it got:

    connect    the engine did not receive the call
    full       the engine refused the call because it was full
    waiting    the engine had accepted the call, and nothing was delivered to the client
    streaming  the answer had begun; the call is continuable
    preempted  nothing failed: the call was taken off its engine because core answered Preempt
    unsent     nothing failed: the call was not sent, because the core that boarded it may no longer decide

    `output_tokens` were delivered until now, by all its engines. The next one reads them with the prompt and goes on.
    If a call that is not continuable loses its engine in the middle of its answer, the driver reports Left instead.
    """

    call_id: str
    stage: Stage
    output_tokens: int = 0


@dataclass(slots=True)
class Left:
    """The call ended in any other way than Finished: for example, the client disconnected or the engine failed in the
    middle of the answer. What the engine did until then counts as served. `output_tokens` is None if they could not be
    counted, because the answer was to come in one piece: they are then estimated from the time aboard, up to
    `max_output_tokens`."""

    call_id: str
    prompt_tokens: int = 0
    output_tokens: int | None = 0
    max_output_tokens: int | None = None  # of all choices; None is no limit


@dataclass(slots=True)
class ReplicaUp:
    """The replica was checked and produces tokens. It is open from now on, even if it was draining. If core knew it
    with other seats or another curve, the new values replace them."""

    replica: Replica


@dataclass(slots=True)
class ReplicaKnown:
    """The replica belongs to the fleet. It takes no calls before it is up, but calls that are adopted may be aboard,
    and others may wait for it. Changes nothing if core knows the replica."""

    replica: Replica


@dataclass(slots=True)
class ReplicaStrangers:
    """The engine runs this many streams that no driver reported. They take seats until it has stopped them."""

    name: str
    streams: int


@dataclass(slots=True)
class ReplicaChanged:
    """A known replica has other seats, another curve or another `prompt_tps`. It stays open or closed as it was. If
    the new limit is lower than its load, the streams aboard run to their end and no call boards until then."""

    replica: Replica


@dataclass(slots=True)
class ReplicaCacheLost:
    """The engine does not have the prefixes with these keys in its cache any more, or none at all if that is None: it
    was restarted. Each longer prefix that is gone with one of them has to be named. Unknown ones change nothing."""

    name: str
    keys: list[int] | None = None


@dataclass(slots=True)
class ReplicaSuspect:
    """Something failed on this replica: no calls board until it is up again. Streams aboard continue."""

    name: str


@dataclass(slots=True)
class ReplicaBehind:
    """A stream with a floor falls behind on this replica (progress.py): no call boards until it has recovered."""

    name: str


@dataclass(slots=True)
class ReplicaRecovered:
    """No stream with a floor falls behind any more on this replica."""

    name: str


@dataclass(slots=True)
class ReplicaDraining:
    """The replica takes no new calls and is not expected back, so held calls do not wait for it. Streams aboard
    continue. A later ReplicaUp opens it again."""

    name: str


@dataclass(slots=True)
class ReplicaDown:
    """The replica is dead or produces nothing. Streams aboard are cut."""

    name: str


@dataclass(slots=True)
class ReplicaRemoved:
    """The replica is no longer part of the fleet. Streams aboard are cut."""

    name: str


@dataclass(slots=True)
class Remembered:
    """Another core decided before this one, and had learnt this `age_s` ago. For a core that has just taken over: what
    it has learnt itself since then is replaced, and what it has served is added."""

    learnt: Learnt
    age_s: float = 0.0


@dataclass(slots=True)
class PolicyChanged:
    """The owner has changed the configuration: these pools and offers replace those before. Calls that are here keep
    the tier that they asked for, also if it is not offered any more; a floor is the one that is promised when the call
    boards. Replicas are changed by events of their own."""

    pools: dict[str, PoolPolicy]
    offers: dict[str, Offer]


@dataclass(slots=True)
class Ticked:
    """Time has passed: core checks the deadlines."""


@dataclass(slots=True)
class Draining:
    """This gateway takes no new calls. Calls that are aboard or held are still served."""


DriverEvent = (
    Arrived
    | Adopted
    | Delivering
    | Finished
    | Failed
    | Left
    | ReplicaUp
    | ReplicaKnown
    | ReplicaStrangers
    | ReplicaChanged
    | ReplicaCacheLost
    | ReplicaSuspect
    | ReplicaBehind
    | ReplicaRecovered
    | ReplicaDraining
    | ReplicaDown
    | ReplicaRemoved
    | Ticked
    | Draining
)
# What core remembers, and the owner's policy, are not for a driver to say.
Event = DriverEvent | Remembered | PolicyChanged

# --- actions ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Board:
    """Send the call to this replica now. `tier` is the tier it is served as; `reason` says why that differs from the
    requested one. `rate_limit` is what the tenant had left when the call had arrived; None: no limit."""

    call_id: str
    replica: str
    tier: Tier
    floor_tps: float = 0.0
    reason: RefusalReason | None = None
    rate_limit: RateLimit | None = None


@dataclass(slots=True)
class Hold:
    """Keep the call waiting. If no other event comes before, send Ticked after this time."""

    call_id: str
    for_s: float


@dataclass(slots=True)
class Refuse:
    """The call gets no seat. `seat_us` is its seat-time on the replicas that failed it before."""

    call_id: str
    reason: RefusalReason
    retry_after_s: int
    rate_limit: RateLimit | None = None
    seat_us: int = 0


@dataclass(slots=True)
class Cut:
    """Stop reading this call from its replica: the replica is down."""

    call_id: str


@dataclass(slots=True)
class Preempt:
    """Take this call off its replica: to make room for an express call, or because the replica drains. It keeps its
    seat until the driver reports, by Failed with the stage `preempted`, that the engine has stopped it. Then it boards
    another replica, or is held until it can."""

    call_id: str


@dataclass(slots=True)
class Downgrade:
    """The call continues as a standard call; a Board, Hold or Refuse for it follows."""

    call_id: str
    reason: RefusalReason


@dataclass(slots=True)
class Settled:
    """The answer to Finished and Left: the call's seat-time on all replicas it boarded, in microseconds, and the output
    tokens that were estimated because they could not be counted."""

    call_id: str
    seat_us: int
    estimated_tokens: int = 0


Action = Board | Hold | Refuse | Cut | Preempt | Downgrade | Settled
