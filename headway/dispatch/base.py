"""The seam between a gateway and whoever decides for it.

A gateway reports events and carries out actions. It does not know whether core answers in the same process (local.py)
or in another one (remote.py). The same holds for the gates of auto models (core/trust.py), which have a seam of their
own: `GateDriver` and `GateDispatch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from headway.core.trust import (
    AuditEnded,
    AuditNotKept,
    AutoArrived,
    AutoLeft,
    ComparisonLost,
    StudentAnswered,
    StudentFailed,
    TrustDecision,
    TrustPolicy,
    Verdict,
)
from headway.core.types import (
    Action,
    Adopted,
    Event,
    Offer,
    Replica,
    ReplicaCacheLost,
    ReplicaDown,
    ReplicaSuspect,
    ReplicaUp,
)
from headway.dispatch.fleet import Member
from headway.supervise import Supervisor

Finding = ReplicaUp | ReplicaDown | ReplicaSuspect | ReplicaCacheLost  # of whoever probes or watches a replica


@dataclass(slots=True)
class ServedConfig:
    """The configuration that a relay serves: its text, and what it offers."""

    text: str
    offers: Mapping[str, Offer]


class Driver(Protocol):
    """A gateway, as the one who decides for it sees it."""

    def do(self, action: Action) -> None: ...

    def calls(self) -> Iterator[Adopted]:
        """Where each of its calls is. One that has a seat and was not sent to its engine yet gives the seat back."""

    def forget_unsettled(self) -> None:
        """Whoever decided is gone, and with it the seat-times of calls that have ended and were not settled."""

    def add_replica(self, member: Member) -> None: ...

    def change_replica(self, replica: Replica) -> None: ...

    def remove_replica(self, name: str) -> None: ...

    def probe_only(self, replicas: Mapping[str, bool] | None) -> None:
        """Probe these replicas and no others; each is given with whether it is open now. None: probe all of them."""

    def probe_now(self, name: str) -> None:
        """Probe a replica at once, if it is one of them."""

    def count_streams(self, name: str) -> None:
        """Ask a replica's engine how many streams it runs; `Dispatch.counted` gets the answer."""


# What a gate tells. Each of the first four is a question: one decision about the call answers it.
CallEvent = AutoArrived | StudentAnswered | StudentFailed | AuditNotKept
GateEvent = CallEvent | AutoLeft | AuditEnded | ComparisonLost
RecalledRow = tuple[int, float, float, Verdict | None]  # number, budget, seconds since it was asked, verdict
NOT_WATCHED = "not watched"  # why the full model is asked while nobody decides who knows all verdicts


class GateDriver(Protocol):
    """The gate of an auto model at one gateway, as the one who decides for it sees it."""

    @property
    def model(self) -> str: ...

    @property
    def calibration(self) -> str:
        """Names the calibration that its scores are by."""

    @property
    def policy(self) -> TrustPolicy:
        """Closed if the gate is known to be."""

    @property
    def last_number(self) -> int:
        """The highest number of a sampled call that it has been told."""

    def audits(self) -> list[int]:
        """Those that it keeps or asks."""

    def decide(self, decision: TrustDecision) -> None: ...

    def ask_audits(self, numbers: Sequence[int]) -> None:
        """Ask these too; they are in the store."""

    def drop_audits(self, numbers: Sequence[int]) -> None:
        """These are not its own any more."""

    def recall(self, after: int) -> None:
        """Read the rows of the sample after this number; `GateDispatch.recalled` gets them."""

    def forget_calls(self) -> None:
        """Whoever decided is gone: nothing of the calls under way is taken."""


class GateDispatch(Protocol):
    """Where the events of gates go, and where decisions about them come from."""

    @property
    def epoch(self) -> int: ...

    def may_send(self, epoch: int) -> bool:
        """Whether an answer that was taken in this epoch may be delivered now."""

    def join(self, gate: GateDriver) -> None: ...

    def tell(self, model: str, event: GateEvent) -> None: ...

    def recalled(self, model: str, after: int, rows: Sequence[RecalledRow], *, is_all: bool) -> None:
        """The rows of the sample after a number, in its order, and whether there are no more."""

    def written(self, model: str, numbers: Sequence[int]) -> None:
        """These verdicts are in the store."""


class Dispatch(Protocol):
    """Where a gateway's events go, and where its actions come from."""

    @property
    def gates(self) -> GateDispatch: ...

    @property
    def is_ready(self) -> bool:
        """Whether some replica takes calls."""

    @property
    def epoch(self) -> int:
        """Grows each time another core decides. What an earlier one granted and was not begun is void."""

    def may_send(self, epoch: int) -> bool:
        """Whether a call that was boarded in this epoch may be written to its engine now."""

    def tell(self, event: Event) -> None: ...

    def probed(self, event: Finding) -> None: ...

    def deadline(self, call_id: str) -> None:
        """The time is over for which this call may be held."""

    def counted(self, replica: str, streams: int) -> None:
        """The replica's engine says that it runs so many streams."""

    def metrics(self, replicas: Mapping[str, str]) -> Iterable[Metric]:
        """The metrics of the policy. `replicas` maps each replica to its pool."""

    def start(self, driver: Driver, supervisor: Supervisor) -> None: ...

    async def stop(self) -> None: ...
