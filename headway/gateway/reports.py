"""Reports calls that are over: to the metrics, to the access log and the traces, and to the files of kept prompts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client.core import Metric

from headway.errors import Refused, kind_of
from headway.gateway.metrics import Metrics, dropped_lines
from headway.gateway.prompts import PromptFile
from headway.gateway.trip import Trip
from headway.observe.base import EndedCall, Observer, RefusedCall
from headway.wire import Receipt, Request


class Reports:
    def __init__(self, metrics: Metrics, observer: Observer, prompts: Mapping[str, PromptFile]) -> None:
        """`prompts` are the files of the models whose owner keeps prompts."""
        self._metrics = metrics
        self._observer = observer
        self._prompts = prompts
        self.begin = observer.begin

    def ended(self, trip: Trip, receipt: Receipt) -> None:
        """Called while the error that ends the call is raised, if there is one."""
        model, raised = trip.call.model, sys.exception()
        error = kind_of(raised) if isinstance(raised, Exception) and receipt.outcome != "finished" else ""
        ended = EndedCall(trip.request, receipt, trip.held_s, trip.first_token_s, error)
        self._metrics.count(model, receipt, held_s=trip.held_s, first_token_s=trip.first_token_s)
        if receipt.outcome == "refused":
            self._metrics.refusals.labels(error).inc()
        self._observer.end(ended, trip.span)
        if receipt.outcome == "finished" and model in self._prompts:
            self._prompts[model].keep(trip.request)

    def refused(self, refused: RefusedCall) -> None:
        """The call has not come as far as to have a trip."""
        self._metrics.refusals.labels(refused.error).inc()
        self._observer.refused(refused)

    @contextmanager
    def refusals(self, request: Request) -> Iterator[None]:
        """Report a refusal that is raised before the call has a trip."""
        try:
            yield
        except Refused as error:
            id, tenant = request.call.id, request.call.tenant
            self.refused(RefusedCall(id, request.path, tenant, kind_of(error), error.status, request, request.trace))
            raise

    def metrics(self) -> Iterable[Metric]:
        return (dropped_lines(self._observer.dropped_lines),)

    async def stop(self) -> None:
        for prompts in self._prompts.values():
            prompts.close()
        await self._observer.stop()
