"""Compares the ledger with the replicas' own records, for runs/ledger/torture.py.

A replica records for every request how many tokens it wrote to the connection. A gateway writes a reservation before it
sends a call to a replica, so every request that a replica has seen must be in the ledger exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headway.ledger.books import CHECKPOINT_S
from headway.ledger.entries import Entry
from headway.ledger.store import Store
from headway.ledger.verify import verify
from runs.measure.fetch import fetch
from runs.measure.witness import PROBE_ID_LENGTH


class Sent(msgspec.Struct):
    """One request as a replica recorded it."""

    prompt_tokens: int
    tokens_sent: int
    state: str
    received_s: float | None = None
    ended_s: float | None = None


class Page(msgspec.Struct):
    running: int
    requests: dict[str, Sent]


class Witness:
    """Collects a replica's records. The replica itself keeps only the last ten thousand."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: dict[str, Sent] = {}
        self.running = 0

    def read(self) -> None:
        page = msgspec.json.decode(fetch(self.url + "/scripted/record"), type=Page)
        self.running = page.running
        self.requests |= {name: sent for name, sent in page.requests.items() if len(name) != PROBE_ID_LENGTH}


@dataclass
class Seen:
    """One call as its client saw it."""

    call_id: str
    is_complete: bool


@dataclass
class Judgement:
    calls: int = 0
    entries: int = 0
    lost: list[str] = field(default_factory=list)
    over_billed: list[str] = field(default_factory=list)
    wrong_when_complete: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    killed_low: list[int] = field(default_factory=list)  # tokens sent and not billed of each stream whose gateway died


def judge(
    store: Store, witnesses: list[Witness], seen: list[Seen], received: Mapping[str, int] | None = None
) -> Judgement:
    """`received`: the tokens that clients got of each call. Without it, all that a replica wrote to a gateway that was
    killed counts as delivered. But its last tokens may never have been read."""
    verdict = verify(store.entries())
    judgement = Judgement(verdict.calls, verdict.entries, problems=verdict.problems)
    if verdict.open_calls:
        judgement.problems.append(f"{verdict.open_calls} calls were never closed")
    served = {entry.call_id: entry for entry in store.entries() if entry.kind == "served"}
    records = {witness.url: witness.requests for witness in witnesses}
    known = {name for witness in witnesses for name in witness.requests} | {call.call_id for call in seen}
    judgement.lost = sorted(known - served.keys())
    for entry in served.values():
        judgement.outcomes[entry.outcome] += 1
        sent = _whole_call(entry, records)
        if entry.output_tokens > sent.tokens_sent or entry.prompt_tokens > sent.prompt_tokens:
            judgement.over_billed.append(_words(entry, sent))
        if entry.outcome == "gateway_lost" and sent.state != "never seen":
            delivered = sent.tokens_sent if received is None else received.get(entry.call_id, 0)
            judgement.killed_low.append(delivered - entry.output_tokens)
    for call in seen:
        found = served.get(call.call_id)
        if call.is_complete and found is not None:
            sent = _whole_call(found, records)
            if (found.output_tokens, found.prompt_tokens) != (sent.tokens_sent, sent.prompt_tokens):
                judgement.wrong_when_complete.append(_words(found, sent))
    return judgement


def _whole_call(entry: Entry, records: Mapping[str, Mapping[str, Sent]]) -> Sent:
    """What the last replica of the call wrote, and what it read of the answer as it stood before. A stream that goes on
    at another replica is read there with the prompt, so how much longer its prompt is says how much was delivered."""
    last = records[entry.replica].get(entry.call_id, Sent(0, 0, "never seen"))
    asked = min(
        (requests[entry.call_id].prompt_tokens for requests in records.values() if entry.call_id in requests), default=0
    )
    before = max(0, last.prompt_tokens - asked)
    return Sent(last.prompt_tokens - before, before + last.tokens_sent, last.state, last.received_s, last.ended_s)


def checkpoint_tokens(step_s: float) -> int:
    """The most tokens of a killed stream that may go unbilled: those between two checkpoints, of which the second may
    be late by one more interval, and those that the replica wrote before it noticed."""
    return int(2 * CHECKPOINT_S / step_s) + 2


def _words(entry: Entry, sent: Sent) -> str:
    return f"{entry.id} {entry.outcome}: {entry.prompt_tokens} + {entry.output_tokens} billed, {sent}"
