"""Judges one episode of runs/failover.sh: what replicas, callers and books recorded, against what was done to the cell.

Knows no processes, sockets or clocks. All times are of the machine's monotonic clock. The one-token requests with which
relays probe a replica are not among its streams.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from runs.failover.callers import Ended

# A call that had its seat when the leader died reaches its engine by then. No successor boards that early: the lease of
# the dead one lasts for another second at least.
IN_FLIGHT_S = 0.5
WAKING_S = 0.25  # a relay that was stopped between its check and its write writes within this time after it wakes
NOTICE_S = 0.5  # a client may hear of a relay's death a little later, and the harness may note it later
STOPS = ("relay stopped", "leader killed, relay stopped")
KILLS = ("relay killed", "leader and relay killed")
LATE_S = 5.0  # above what a call may take: two busy cores are shared by all processes


class Aboard(msgspec.Struct, frozen=True):
    """One stream, from a replica's own record."""

    call_id: str
    replica: str
    tier: str
    relay: str
    from_s: float
    until_s: float


class Done(msgspec.Struct, frozen=True):
    """One fault."""

    kind: str
    who: str
    from_s: float
    until_s: float


class Crowd(msgspec.Struct, frozen=True):
    """A stream that joined others on a replica above the limit."""

    call_id: str
    relay: str
    replica: str
    at_s: float
    lasted_s: float
    streams: int
    limit: int
    is_explained: bool
    why: str


class Limits(msgspec.Struct, frozen=True):
    seats: int
    express: int  # streams of a replica that has a fast one
    max_hold_s: dict[str, float]  # by tier
    step_s: float  # of a full replica
    answer_s: float  # for which a relay waits for a dispatcher after a call's deadline


def boardings(streams: Iterable[Aboard], limits: Limits) -> Iterator[tuple[Aboard, list[Aboard], int]]:
    """Each stream with all that its replica ran when it had arrived, and the replica's limit then."""
    by_replica: dict[str, list[Aboard]] = defaultdict(list)
    for stream in streams:
        by_replica[stream.replica].append(stream)
    for aboard in by_replica.values():
        present: list[Aboard] = []
        for stream in sorted(aboard, key=lambda one: one.from_s):
            present = [one for one in present if one.until_s > stream.from_s] + [stream]
            is_light = any(one.tier == "fast" for one in present)
            yield stream, present, limits.express if is_light else limits.seats


def filled(streams: Iterable[Aboard], limits: Limits) -> int:
    """Boardings that took the last seat: one too many would show."""
    return sum(len(present) == limit for _, present, limit in boardings(streams, limits))


def crowds(streams: Iterable[Aboard], limits: Limits, faults: Sequence[Done]) -> list[Crowd]:
    """Every stream whose arrival made its replica too full."""
    found: list[Crowd] = []
    for stream, present, limit in boardings(streams, limits):
        if len(present) > limit:
            lasted_s = sorted((one.until_s for one in present), reverse=True)[limit] - stream.from_s
            why = waking(stream, faults)
            found.append(
                Crowd(
                    stream.call_id,
                    stream.relay,
                    stream.replica,
                    stream.from_s,
                    lasted_s,
                    len(present),
                    limit,
                    bool(why),
                    why or lately(stream.from_s, faults),
                )
            )
    return found


def waking(stream: Aboard, faults: Iterable[Done]) -> str:
    """Whether the relay that sent this stream had just been woken; empty if not."""
    for fault in faults:
        if is_stop_of(fault, stream.relay) and fault.from_s <= stream.from_s <= fault.until_s + WAKING_S:
            return f"{fault.who} was stopped between check and write"
    return ""


def lately(at_s: float, faults: Iterable[Done], for_s: float = 10.0) -> str:
    """The faults shortly before, newest first, for whoever looks for the cause."""
    near = [fault for fault in faults if fault.from_s <= at_s < fault.until_s + for_s]
    near.sort(key=lambda fault: -fault.from_s)
    return ", ".join(f"{fault.kind} ({fault.who}) {at_s - fault.from_s:.2f} s before" for fault in near[:3])


def is_stop_of(fault: Done, relay: str) -> bool:
    return fault.kind in STOPS and relay in fault.who.split()


def is_kill_of(fault: Done, relay: str) -> bool:
    return fault.kind in KILLS and relay in fault.who.split()


def cut_without_reason(calls: Iterable[Ended], faults: Sequence[Done]) -> list[Ended]:
    """Calls that ended without an answer or in the middle of it, though their relay lived."""
    return [call for call in calls if call.how in ("cut", "no answer") and not lost_with_relay(call, faults)]


def lost_with_relay(call: Ended, faults: Iterable[Done]) -> bool:
    """Whether the call's relay was killed while it was under way."""
    return any(
        is_kill_of(fault, call.relay) and call.sent_s - NOTICE_S <= fault.from_s <= call.ended_s + NOTICE_S
        for fault in faults
    )


def hanging(calls: Iterable[Ended], limits: Limits, faults: Sequence[Done]) -> list[Ended]:
    """Calls that took longer than their deadline, the time of their tokens, and the time that their relay stood."""
    return [call for call in calls if call.ended_s - call.sent_s > longest_s(call, limits, faults)]


def longest_s(call: Ended, limits: Limits, faults: Iterable[Done]) -> float:
    stood_s = sum(
        fault.until_s - fault.from_s
        for fault in faults
        if is_stop_of(fault, call.relay) and fault.from_s < call.ended_s and fault.until_s > call.sent_s
    )
    streaming_s = 1.5 * limits.step_s * call.tokens
    return limits.max_hold_s[call.tier] + limits.answer_s + streaming_s + stood_s + LATE_S


def resumed_s(died_s: float, boarded_s: Sequence[float]) -> float:
    """From a leader's death to the next boarding on any replica; infinite if there was none."""
    return min((at_s for at_s in boarded_s if at_s > died_s + IN_FLIGHT_S), default=float("inf")) - died_s


def waits_of(calls: Iterable[Ended], boarded: dict[str, float]) -> list[tuple[float, float]]:
    """(when it was sent, seconds until a replica had it) of each call that boarded."""
    return [
        (call.sent_s, boarded[call.call_id] - call.sent_s) for call in calls if call.call_id and call.call_id in boarded
    ]


def waits_within(waits: Iterable[tuple[float, float]], from_s: float, until_s: float) -> list[float]:
    return [wait for at_s, wait in waits if from_s <= at_s < until_s]


def served_twice(streams: Iterable[tuple[str, str]]) -> list[str]:
    """Calls that more than one replica has finished. Takes (call id, state)."""
    finished = Counter(call_id for call_id, state in streams if state == "finished")
    return [call_id for call_id, count in finished.items() if count > 1]


def around(died_s: Iterable[float], waits: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """(seconds after the death, wait) of calls that were sent around a death."""
    for died in died_s:
        yield from ((at_s - died, wait) for at_s, wait in waits if -2.0 <= at_s - died < 6.0)
