"""The seam between a gateway and whoever decides for it.

A gateway reports events and carries out actions. It does not know whether core answers in the same process (local.py)
or in another one (remote.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import Metric

from headway.core.types import Action, Adopted, Event
from headway.supervise import Supervisor


class Driver(Protocol):
    """A gateway, as the one who decides for it sees it."""

    def do(self, action: Action) -> None: ...

    def calls(self) -> Iterator[Adopted]:
        """Where each of its calls is. One that has a seat and was not sent to its engine yet gives the seat back."""

    def forget_unsettled(self) -> None:
        """Whoever decided is gone, and with it the seat-times of calls that have ended and were not settled."""

    def probe_only(self, replicas: Mapping[str, bool] | None) -> None:
        """Probe these replicas and no others; each is given with whether it is open now. None: probe all of them."""

    def probe_now(self, name: str) -> None:
        """Probe a replica at once, if it is one of them."""

    def count_streams(self, name: str) -> None:
        """Ask a replica's engine how many streams it runs; `Dispatch.counted` gets the answer."""


class Dispatch(Protocol):
    """Where a gateway's events go, and where its actions come from."""

    @property
    def is_ready(self) -> bool:
        """Whether some replica takes calls."""

    @property
    def epoch(self) -> int:
        """Grows each time another core decides. What an earlier one granted and was not begun is void."""

    def may_send(self, epoch: int) -> bool:
        """Whether a call that was boarded in this epoch may be written to its engine now."""

    def tell(self, event: Event) -> None: ...

    def deadline(self, call_id: str) -> None:
        """The time is over for which this call may be held."""

    def counted(self, replica: str, streams: int) -> None:
        """The replica's engine says that it runs so many streams."""

    def metrics(self, replicas: Mapping[str, str]) -> Iterable[Metric]:
        """The metrics of the policy. `replicas` maps each replica to its pool."""

    def start(self, driver: Driver, supervisor: Supervisor) -> None: ...

    async def stop(self) -> None: ...
