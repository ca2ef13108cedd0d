"""Reads the replicas' own records for runs/express/live.py: the batches in which each request ran, and its speed.

A scripted engine numbers its steps, records the batch size whenever it changes, and keeps every request's first and
last step. These give the largest batch ("company") of a request's steps, and the requests in a batch above the limit.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from runs.measure.fetch import fetch

PROBE_ID_LENGTH = 16  # the engine generates these for requests without an id; the gateway's ids are twice as long


class Seen(msgspec.Struct):
    """One request as the engine recorded it."""

    tokens_sent: int
    state: str
    first_step: int | None
    last_step: int | None
    first_token_s: float | None
    ended_s: float | None

    def speed_tps(self) -> float | None:
        if self.tokens_sent < 2 or self.first_token_s is None or self.ended_s is None:
            return None
        return (self.tokens_sent - 1) / (self.ended_s - self.first_token_s)


class Record(msgspec.Struct):
    """The record of one process of a replica, from its start to the last read."""

    running: int
    waiting: int
    steps_begun: int
    running_changes: list[tuple[int, int]]
    requests: dict[str, Seen]

    def spells(self, request: Seen) -> Iterator[tuple[int, int, int]]:
        """(first step, last step, company) for each run of steps with equal company."""
        last = self.steps_begun if request.last_step is None else request.last_step
        if request.first_step is None or request.first_step > last:
            return
        at = bisect_right(self.running_changes, (request.first_step, 1 << 30)) - 1
        if at < 0:
            raise SystemExit("a replica's record is shorter than its requests: raise KEPT_CHANGES")
        while at < len(self.running_changes) and self.running_changes[at][0] <= last:
            start, company = self.running_changes[at]
            after = self.running_changes[at + 1][0] if at + 1 < len(self.running_changes) else last + 1
            yield max(start, request.first_step), min(after - 1, last), company
            at += 1

    def why_above(self, first: int, last: int) -> str:
        """Which request was one too many in these steps, as far as the record shows."""
        aboard = [
            (name, one)
            for name, one in self.requests.items()
            if one.first_step is not None
            and one.first_step <= last
            and (one.last_step is None or one.last_step >= first)
        ]
        if any(len(name) == PROBE_ID_LENGTH for name, _ in aboard):
            return "a probe of the gateway"
        if any(one.state == "aborted" and one.last_step is not None and one.last_step <= last + 1 for _, one in aboard):
            return "a seat given on before the engine noticed that its client was gone"
        return "none of these"


@dataclass
class Company:
    """The company of the requests that were served as fast, from the records."""

    found: int = 0
    missing: int = 0  # ids without a record
    highest: int = 0
    steps: int = 0
    requests_above: int = 0
    steps_above: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # steps above the limit, by the reason


def company_of(records: list[Record], ids: set[str], limit: int) -> Company:
    company = Company(missing=len(ids.difference(*[record.requests for record in records])))
    for record in records:
        for name in ids & record.requests.keys():
            company.found += 1
            above = 0
            for first, last, running in record.spells(record.requests[name]):
                company.steps += last - first + 1
                company.highest = max(company.highest, running)
                if running > limit:
                    above += last - first + 1
                    company.reasons[record.why_above(first, last)] += last - first + 1
            company.steps_above += above
            company.requests_above += above > 0
    return company


def highest_running(records: list[Record]) -> int:
    return max((running for record in records for _, running in record.running_changes), default=0)


_read_record = msgspec.json.Decoder(Record).decode


async def read_record(url: str) -> Record:
    return _read_record(await asyncio.to_thread(fetch, url + "/scripted/record"))


async def set_faults(url: str, **faults: object) -> None:
    await asyncio.to_thread(fetch, url + "/scripted/faults", msgspec.json.encode(faults))
