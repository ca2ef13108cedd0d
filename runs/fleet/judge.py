"""Judges one episode of runs/fleet.sh, from what engines, callers, books and dispatchers recorded.

Knows no processes. All times are of the machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from runs.failover.callers import Ended
from runs.failover.judge import NOTICE_S, Done, lost_with_relay

# How long after such a fault the engines that it concerns may end. A node that was cut off, or whose head is away, may
# hear only later that Ray has taken it for dead.
DEATHS = {
    "engine killed": 2.0,
    "actor killed": 5.0,
    "raylet killed": 15.0,
    "node killed": 2.0,
    "head killed": 15.0,
    "node cut off": 120.0,
}


class Boarded(msgspec.Struct, frozen=True):
    """Something that a dispatcher recorded about a replica: `failed`, `up`, or `board`, a call that was sent there."""

    at_s: float
    replica: str
    what: str
    call_id: str = ""


def concerns(fault: Done, url: str) -> bool:
    """Whether the fault is of this engine, or of its node."""
    return fault.who == url or url.startswith(f"http://{fault.who}:")


def may_have_died(url: str, from_s: float, until_s: float, faults: Iterable[Done]) -> bool:
    """Whether a fault may have ended this engine between these times."""
    return any(
        fault.kind in DEATHS
        and concerns(fault, url)
        and fault.from_s <= until_s + NOTICE_S
        and fault.until_s + DEATHS[fault.kind] >= from_s
        for fault in faults
    )


def cut_without_reason(calls: Iterable[Ended], engine_of: Mapping[str, str], faults: Sequence[Done]) -> list[Ended]:
    """Calls that ended without an answer or in the middle of it, though their relay and their engine lived."""
    return [
        call
        for call in calls
        if call.how in ("cut", "no answer")
        and not lost_with_relay(call, faults)
        and not may_have_died(engine_of.get(call.call_id, ""), call.sent_s, call.ended_s, faults)
    ]


def read_record(path: Path) -> Iterator[Boarded]:
    """What a dispatcher's record says about replicas."""
    replica_of: dict[str, str] = {}
    with path.open("rb") as file:
        next(file, None)  # the configuration
        for line in file:
            try:
                now, name, fields, actions, *_ = msgspec.json.decode(line)
            except msgspec.DecodeError:  # the last line of one that was killed
                return
            if name == "Failed" and fields["stage"] in ("connect", "waiting"):
                yield Boarded(now, replica_of.get(fields["call_id"], ""), "failed", fields["call_id"])
            elif name in ("ReplicaSuspect", "ReplicaDown"):
                yield Boarded(now, fields["name"], "failed")
            elif name == "ReplicaUp":
                yield Boarded(now, fields["replica"]["name"], "up")
            for action, values in actions:
                if action == "Board":
                    replica_of[values["call_id"]] = values["replica"]
                    yield Boarded(now, values["replica"], "board", values["call_id"])


def rerouted_s(faults: Iterable[Done], history: Sequence[Boarded]) -> list[float]:
    """For each engine that a fault has ended: from the first failure that a dispatcher heard of to the last call that
    it sent there before the engine was up again; 0 if there was none."""
    by_replica: dict[str, list[Boarded]] = {}
    for one in sorted(history, key=lambda one: one.at_s):
        by_replica.setdefault(one.replica, []).append(one)
    found = []
    for fault in faults:
        if fault.kind not in DEATHS:
            continue
        for url, told in by_replica.items():
            if concerns(fault, url):
                after = [one for one in told if one.at_s >= fault.from_s]
                failed = next((at for at, one in enumerate(after) if one.what == "failed"), None)
                if failed is None or after[failed].at_s > fault.until_s + DEATHS[fault.kind]:
                    continue
                first_s = after[failed].at_s
                last_s = first_s
                for one in after[failed:]:
                    if one.what == "up":
                        break
                    if one.what == "board":
                        last_s = one.at_s
                found.append(last_s - first_s)
    return found


def boarded_again_s(history: Sequence[Boarded]) -> list[float]:
    """For each call that lost its engine before its answer began: how long until it was sent to another one."""
    found, failed_s = [], dict[str, float]()
    for one in sorted(history, key=lambda one: one.at_s):
        if one.what == "failed" and one.call_id:
            failed_s[one.call_id] = one.at_s
        elif one.what == "board" and (since_s := failed_s.pop(one.call_id, None)) is not None:
            found.append(one.at_s - since_s)
    return found


def back_s(faults: Iterable[Done], history: Sequence[Boarded]) -> list[tuple[str, float]]:
    """From a fault of a single engine to the time at which a dispatcher opened it again."""
    found = []
    for fault in faults:
        if fault.kind in ("engine killed", "actor killed"):
            ups = [one.at_s for one in history if one.replica == fault.who and one.what == "up"]
            if after := [at_s for at_s in ups if at_s > fault.from_s + NOTICE_S]:
                found.append((fault.kind, min(after) - fault.from_s))
    return found
