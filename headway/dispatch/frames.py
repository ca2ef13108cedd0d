"""What a relay and the dispatcher say to each other. codec.py encodes and decodes it.

There is no time in any message, only durations: the clocks of two machines differ.

PROTOCOL names this version of the messages. It is a digest of every kind with its fields and their types, so that two
versions which differ in any field refuse each other. To be able to, both must read `Hello` and `Turned`: these two keep
their tags and their fields, and new fields go to the end.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, get_args

import msgspec

from headway.core.trust import TrustDecision
from headway.core.types import Action, DriverEvent, Tier
from headway.dispatch.base import GateEvent, RecalledRow
from headway.dispatch.fleet import Member
from headway.dispatch.rows import RowSet, describe

MAX_BATCH = 256  # events or actions in one message
MAX_PROBED = 100_000  # replicas in one message
MAX_LEARNT = 6 * 2**20  # bytes of what a dispatcher has learnt: less than a frame may have
MAX_AUDITS = 20_000  # audits, or rows of audits, in one message
MAX_LISTED = 10_000  # relays or replicas in a Status
SHOWN = 500  # replicas of which a Status tells more


# --- from a relay ----------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, tag=0):
    """The first message. `relay` is the relay's name, which it keeps when it restarts; `run` is a random id of this run
    of its process, empty if it only asks for the configuration. `epoch` is the highest it has seen, and `leader` whose
    that was."""

    protocol: str
    relay: str
    run: str
    epoch: int = 0
    leader: str = ""


class Events(msgspec.Struct, array_like=True, tag=1):
    events: list[DriverEvent]


class Beat(msgspec.Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    """The relay is alive and obeys the dispatcher that it is sent to. The answer is a BeatEcho with the same number.
    `heard` is the number of the last BeatEcho that the relay has got, 0 if only the Welcome: so the dispatcher knows a
    time since which the relay obeys it, however long this message was on its way."""

    number: int
    heard: int


class Reported(msgspec.Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    """The relay has said where each of its calls is. Those of this run that it did not name have ended."""


class Counted(msgspec.Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    """The replica's engine says that it runs so many streams."""

    replica: str
    streams: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Kept(msgspec.Struct, array_like=True, tag=9, forbid_unknown_fields=True):
    """What a dispatcher of an earlier epoch had learnt `age_s` ago, as it said in Keep. Comes before Reported."""

    epoch: int
    number: int
    age_s: float
    learnt: Annotated[bytes, msgspec.Meta(max_length=MAX_LEARNT)]


class GateJoined(msgspec.Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    """The relay has the gate of an auto model. `calibration` names the file that its scores are by, and `policy` is
    core's TrustPolicy as JSON. `audits` are those that it keeps or asks; no sampled call that it knows of has a higher
    number than `last_number`."""

    model: str
    calibration: str
    policy: str
    last_number: int
    audits: Annotated[list[int], msgspec.Meta(max_length=MAX_AUDITS)]


class GateTold(msgspec.Struct, array_like=True, tag=6):
    model: str
    events: list[GateEvent]


class GateRecalled(msgspec.Struct, array_like=True, tag=7, forbid_unknown_fields=True):
    """The answer to Recall: the rows of the sample that follow, and whether there are no more."""

    model: str
    after: int
    rows: Annotated[list[RecalledRow], msgspec.Meta(max_length=MAX_AUDITS)]
    is_all: bool


class VerdictsWritten(msgspec.Struct, array_like=True, tag=8, forbid_unknown_fields=True):
    """These verdicts are in the store."""

    model: str
    numbers: Annotated[list[int], msgspec.Meta(max_length=MAX_AUDITS)]


class AskStatus(msgspec.Struct, array_like=True, tag=10):
    """A first message instead of Hello, from an operator (`headway status`). The answer is Status, or Turned if the
    protocol is another one; then the link is closed."""

    protocol: str


class HadMembers(msgspec.Struct, array_like=True, tag=12):
    """The relay has calls aboard these replicas. Comes before it says where each call is."""

    members: list[Member]


class KeptOrders(msgspec.Struct, array_like=True, tag=13, forbid_unknown_fields=True):
    """What a dispatcher of an earlier epoch said in KeepOrders. Comes before HadMembers."""

    epoch: int
    number: int
    drained: Annotated[list[str], msgspec.Meta(max_length=MAX_PROBED)]
    registered: list[tuple[str, list[str]]]


class AdminOrder(msgspec.Struct, array_like=True, tag=11, forbid_unknown_fields=True):
    """An operator asks for the replicas, and to drain one of them first if `url` is not empty, or to undo that. The
    answer is AdminAnswer with the same number."""

    number: int
    url: str
    is_undone: bool


class RegisterOrder(msgspec.Struct, array_like=True, tag=14, forbid_unknown_fields=True):
    """An operator says which engines the model has. The answer is AdminAnswer with the same number."""

    number: int
    model: str
    urls: Annotated[list[str], msgspec.Meta(max_length=MAX_LISTED)]


# --- from the dispatcher ---------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, array_like=True, tag=16, forbid_unknown_fields=True):
    """The answer to Hello: the relay obeys this epoch from now on. `config` is the text of the configuration. The relay
    may write to engines for `lease_s` after each Beat whose BeatEcho renews. `leader` is a random id of the
    dispatcher: if a store that has lost commits gives an epoch twice, relays can tell the two apart."""

    epoch: int
    config: str
    lease_s: float
    leader: str


class Turned(msgspec.Struct, array_like=True, tag=17):
    """The other answer to Hello: the relay is turned away. `leader` is the address to try instead; empty if unknown."""

    why: str
    leader: str


class Actions(msgspec.Struct, array_like=True, tag=18):
    actions: list[Action]


class BeatEcho(msgspec.Struct, array_like=True, tag=19, forbid_unknown_fields=True):
    """`is_ready`: some replica takes calls. `renews`: the relay's lease is renewed; a dispatcher that may not decide at
    the moment does not."""

    number: int
    is_ready: bool
    renews: bool


class Probe(msgspec.Struct, array_like=True, tag=20, forbid_unknown_fields=True):
    """The replicas that this relay probes from now on, and whether each is open. They replace the earlier ones."""

    replicas: Annotated[list[tuple[str, bool]], msgspec.Meta(max_length=MAX_PROBED)]


class ProbeNow(msgspec.Struct, array_like=True, tag=21, forbid_unknown_fields=True):
    replica: str


class Members(msgspec.Struct, array_like=True, tag=28):
    """Replicas that are new, or have changed. A relay that was welcomed gets all of them."""

    members: list[Member]


class MemberNames(msgspec.Struct, array_like=True, tag=32, forbid_unknown_fields=True):
    """There are no other replicas than these. Comes after Welcome, and before their Members."""

    names: Annotated[list[str], msgspec.Meta(max_length=MAX_PROBED)]


class MemberGone(msgspec.Struct, array_like=True, tag=29, forbid_unknown_fields=True):
    name: str


class KeepOrders(msgspec.Struct, array_like=True, tag=33, forbid_unknown_fields=True):
    """Keep this for the next dispatcher, instead of what was kept before: what operators have drained, and the URLs
    that were registered for each model. The number grows."""

    number: int
    drained: Annotated[list[str], msgspec.Meta(max_length=MAX_PROBED)]
    registered: list[tuple[str, list[str]]]


class Reconfigured(msgspec.Struct, array_like=True, tag=30, forbid_unknown_fields=True):
    """The configuration has changed; this is its text."""

    config: str


class Count(msgspec.Struct, array_like=True, tag=22, forbid_unknown_fields=True):
    """Ask the replica's engine how many streams it runs. The answer is Counted, if the engine answers."""

    replica: str


class Keep(msgspec.Struct, array_like=True, tag=26, forbid_unknown_fields=True):
    """Keep this for the next dispatcher, instead of what was kept before: what this one has learnt (handover.py). The
    number grows. A relay does not look into it."""

    number: int
    learnt: Annotated[bytes, msgspec.Meta(max_length=MAX_LEARNT)]


class GateDecided(msgspec.Struct, array_like=True, tag=23):
    model: str
    decisions: list[TrustDecision]


class Recall(msgspec.Struct, array_like=True, tag=24, forbid_unknown_fields=True):
    """Read the rows of the model's sample after this number. The answer is GateRecalled."""

    model: str
    after: int


class DealAudits(msgspec.Struct, array_like=True, tag=25, forbid_unknown_fields=True):
    """The relay asks these audits, too, and no longer those."""

    model: str
    ask: Annotated[list[int], msgspec.Meta(max_length=MAX_AUDITS)]
    drop: Annotated[list[int], msgspec.Meta(max_length=MAX_AUDITS)]


class RelayStatus(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`beat_s` is the time since the last beat; None if the relay is not connected. One that is lost keeps the seats of
    its calls for a while."""

    name: str
    calls: int
    beat_s: float | None


class ReplicaStatus(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`aboard` are the seats taken. `is_behind`: a stream is behind its floor there, so no call boards. `is_silent`: it
    is up and not open, because its engine does not say how many streams it runs. `is_light`: it keeps a floor, and has
    only `light_seats`. `is_retiring`: it does so until its express streams have left. `strangers` are streams that
    belong to no known call. `by_tier` has the seats taken by calls of each tier, for the first SHOWN replicas only."""

    name: str
    pool: str
    is_open: bool
    seats: int
    aboard: int
    is_behind: bool
    is_silent: bool = False
    is_draining: bool = False
    is_light: bool = False
    is_retiring: bool = False
    light_seats: int = 0
    strangers: int = 0
    by_tier: list[tuple[Tier, int]] = []


class Status(msgspec.Struct, array_like=True, tag=27, forbid_unknown_fields=True):
    """A `leader` decides. A `candidate` has the lease and does not decide: too few relays obey it. A `standby` knows
    nothing more. Replicas that take no calls come first; `more_replicas` are not listed. `open_replicas` counts all.
    `lag_s` is the most that the dispatcher's loop was late in the last seconds."""

    role: Literal["leader", "candidate", "standby"]
    epoch: int = 0
    relays: Annotated[list[RelayStatus], msgspec.Meta(max_length=MAX_LISTED)] = []
    replicas: Annotated[list[ReplicaStatus], msgspec.Meta(max_length=MAX_LISTED)] = []
    more_replicas: int = 0
    open_replicas: int = 0
    held: int = 0
    lag_s: float = 0.0


class TierStatus(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """core/demand.py, TierSeats."""

    model: str
    tier: Tier
    wanted: int
    ready: int
    held: int = 0


class DemandStatus(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """core/demand.py, PoolDemand of one pool, and its tiers."""

    pool: str
    replicas: int
    seats: float
    light_seats: float
    answer_s: float
    standard_share: float
    light_replicas: int
    express_seats: int
    standard_load: float
    standard_held: int
    flex_load: float
    flex_late: int
    tiers: Annotated[list[TierStatus], msgspec.Meta(max_length=MAX_LISTED)]


class AdminAnswer(msgspec.Struct, array_like=True, tag=31, forbid_unknown_fields=True):
    """`is_known`: there is such a replica as was asked for, or the model's engines are registered. The rest is the
    dispatcher's Status, for an AdminOrder."""

    number: int
    is_known: bool
    replicas: Annotated[list[ReplicaStatus], msgspec.Meta(max_length=MAX_LISTED)]
    demand: Annotated[list[DemandStatus], msgspec.Meta(max_length=MAX_LISTED)] = []
    relays: Annotated[list[RelayStatus], msgspec.Meta(max_length=MAX_LISTED)] = []
    lag_s: float = 0.0


_GateFromRelay = GateJoined | GateTold | GateRecalled | VerdictsWritten
_GateFromDispatcher = GateDecided | Recall | DealAudits
_FleetFromRelay = HadMembers | KeptOrders | AdminOrder | RegisterOrder
_FleetFromDispatcher = Members | MemberNames | MemberGone | KeepOrders | Reconfigured | AdminAnswer
FromRelay = Hello | Events | Beat | Reported | Counted | Kept | AskStatus | _FleetFromRelay | _GateFromRelay
_Probing = Probe | ProbeNow | Count
FromDispatcher = (
    Welcome | Turned | Actions | BeatEcho | _Probing | Keep | Status | _FleetFromDispatcher | _GateFromDispatcher
)
Message = FromRelay | FromDispatcher

EVENT_ROWS = RowSet(get_args(DriverEvent))
ACTION_ROWS = RowSet(get_args(Action))
MEMBER_ROWS = RowSet([Member])
GATE_EVENT_ROWS = RowSet(get_args(GateEvent))
GATE_DECISION_ROWS = RowSet(get_args(TrustDecision))


def protocol_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).digest()[:8].hex()


def _describe_message(kind: Any) -> str:
    return f"{kind.__struct_config__.tag} {describe(kind)}"


PROTOCOL = protocol_of(
    *(rows.description for rows in (EVENT_ROWS, ACTION_ROWS, MEMBER_ROWS, GATE_EVENT_ROWS, GATE_DECISION_ROWS)),
    *map(_describe_message, get_args(Message)),
)
