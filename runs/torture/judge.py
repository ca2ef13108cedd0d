"""Judges one part of the torture: clients, engines, and books against each other and against what was done.

Knows nothing of Headway's code, and no processes. All times are of the machine's monotonic clock, which the engines and
the clients share. `Findings` maps what is wrong to the cases; a part is clean if it has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import msgspec

from runs.torture.callers import Ended
from runs.torture.witness import Row, Slice, Stream
from runs.torture.workload import KEYS

UNREADY = "refused by the balancer while no engine ran"
BACK_S = 3.0  # until probes and the balancer's checks have seen that an engine is back
NO_RELAY = "<NOSRV>"  # as HAProxy says that none of its servers was ready
NOTICE_S = 0.5  # a client may hear of a death a little later, and the harness may note it later
WAKING_S = 0.25  # what was stopped between its check and its write writes within this time after it wakes
LATE_S = 8.0  # above what a call may take: two busy cores are shared by all processes
CHECKPOINT_S = 0.1
MEASURED_TOKENS = 16  # answers with fewer carry no promise
TOLERANCE = 0.05  # between the engine's stamps and the gateway's
MTOK = 1_000_000
ANSWERED = ("complete", "left", "failed", "cut")
Findings = dict[str, list[str]]


@dataclass(frozen=True)
class Rules:
    """What was promised and configured, from the run's own file, not from Headway's code."""

    seats: int
    beside: Mapping[str, int]  # the most streams of a replica that has one of this tier
    floors: Mapping[str, float]
    prices: Mapping[str, tuple[int, ...]]  # input and output, in micro-units per million tokens
    multiples_milli: Mapping[str, int]
    max_hold_s: Mapping[str, float]
    step_s: float  # of a full replica
    stall_s: float


class Done(msgspec.Struct, frozen=True):
    """One fault. `effects` say what it may do to whom, such as `dies`, `stands` or `cut`."""

    kind: str
    who: list[str]
    effects: list[str]
    from_s: float
    until_s: float

    def touches(self, name: str, effect: str, from_s: float, until_s: float) -> bool:
        """Whether it has this effect on that process within this time."""
        is_near = self.from_s <= until_s + NOTICE_S and self.until_s + NOTICE_S >= from_s
        return effect in self.effects and is_near and name in self.who


@dataclass
class Evidence:
    calls: Sequence[Ended]
    streams: Sequence[Stream]
    rows: Sequence[Row]
    slices: Sequence[Slice]
    faults: Sequence[Done]
    rules: Rules
    engine_of: Mapping[str, str]  # the URL in the configuration -> the engine's own
    lies: Mapping[str, str] = field(default_factory=dict)  # the calls that an engine lied to
    engines: Sequence[str] = ()  # all of them, where they may be out at once

    @cached_property
    def _by_second(self) -> dict[int, list[Done]]:
        """The faults of each second, with those that a client may hear of a little later."""
        found: dict[int, list[Done]] = defaultdict(list)
        for fault in self.faults:
            for second in range(int(fault.from_s - NOTICE_S), int(fault.until_s + NOTICE_S) + 1):
                found[second].append(fault)
        return found

    def near(self, from_s: float, until_s: float) -> list[Done]:
        """The faults that may matter to what happened in this time."""
        seconds = range(int(from_s - NOTICE_S), int(until_s + NOTICE_S) + 1)
        return list({id(one): one for second in seconds for one in self._by_second.get(second, ())}.values())

    def touches(self, name: str, effect: str, from_s: float, until_s: float) -> bool:
        return any(fault.touches(name, effect, from_s, until_s) for fault in self.near(from_s, until_s))

    def is_without_engines(self, at_s: float) -> bool:
        """Whether none could run: then no relay is ready, as is documented, and the balancer answers in their place."""
        faults = [one for one in self.near(at_s - BACK_S, at_s) if {"dies", "stands"} & set(one.effects)]
        out = {name for one in faults if one.from_s <= at_s <= one.until_s + BACK_S for name in one.who}
        return bool(self.engines) and out.issuperset(self.engines)

    def was_lied_to(self, call_id: str, streams: Sequence[Stream]) -> bool:
        """Whether an engine, or the way to it, told other figures than the engine's record has. Headway believes what
        is plausible, and does not promise to see through it."""
        return call_id in self.lies or any(
            self.touches(one.engine, "lies", one.received_s, one.ended_s) for one in streams
        )


@dataclass
class Judgement:
    findings: Findings = field(default_factory=lambda: defaultdict(list))
    explained: Findings = field(default_factory=lambda: defaultdict(list))
    in_books: int = 0
    refunded: int = 0
    missed: int = 0  # floors, by the engines' record
    with_floor: int = 0
    filled: int = 0  # boardings that took a replica's last seat


def judge(evidence: Evidence) -> Judgement:
    found = Judgement()
    _judge_books(evidence, found)
    _judge_budgets(evidence, found)
    _judge_crowds(evidence, found)
    _judge_ends(evidence, found)
    return found


# --- money -----------------------------------------------------------------------------------------------------------


def _judge_books(evidence: Evidence, found: Judgement) -> None:
    by_call: dict[str, list[Stream]] = defaultdict(list)
    for stream in evidence.streams:
        by_call[stream.call_id].append(stream)
    seen = {call.call_id: call for call in evidence.calls if call.call_id}
    in_books = set[str]()
    for call_id, group in groupby(evidence.rows, key=lambda row: row.call_id):
        in_books.add(call_id)
        _judge_call(call_id, list(group), by_call[call_id], seen.get(call_id), evidence, found)
    found.in_books = len(in_books)
    answered = {_served_as(call, in_books) for call in seen.values() if call.how in ANSWERED}
    found.findings["lost"] += sorted((by_call.keys() | answered) - in_books)
    sent = [_served_as(call, in_books) for call in seen.values() if call.how == "complete"]
    found.findings["answered by no engine"] += [call_id for call_id in sent if call_id not in by_call]


def _served_as(call: Ended, in_books: Set[str]) -> str:
    """The id in the books. The student's part of a call to an auto model has its own; often it is the only one."""
    if call.kind == "auto" and call.call_id not in in_books:
        return f"{call.call_id}-student"
    return call.call_id


def _judge_call(
    call_id: str, rows: list[Row], streams: list[Stream], call: Ended | None, evidence: Evidence, found: Judgement
) -> None:
    findings = found.findings
    kinds = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    for kind, some in kinds.items():
        if len(some) > 1:
            findings["doubled"].append(f"{call_id}: {len(some)} times {kind}")
    if not kinds["served"] or not kinds["reserved"] or not kinds["released"]:
        findings["never closed"].append(f"{call_id}: {', '.join(sorted(kinds))}")
        return
    served, reserved, released = (kinds[kind][0] for kind in ("served", "reserved", "released"))
    refund = kinds["refunded"][0].amount if kinds["refunded"] else 0
    if reserved.amount + released.amount:
        findings["reservation not released"].append(call_id)
    if call is not None and served.key != call.key:
        findings["billed to another key"].append(f"{call_id}: {served.key}, called by {call.key}")
    _judge_amount(served, refund, evidence.rules, findings)
    if call is not None and call.proof is not None and call.kind != "auto":  # whose two rungs are on one bill
        told = (call.proof.billed_micro, call.proof.refunded_micro or 0)
        if call.proof.billed_micro is not None and told != (served.amount + refund, -refund):
            findings["told another bill"].append(f"{call_id}: {told}, in the books {served.amount} and {refund}")
    findings = found.explained if evidence.was_lied_to(call_id, streams) else found.findings
    truth = _truth(served, streams, evidence.engine_of)
    words = f"{call_id} {served.outcome}: {served.prompt_tokens} + {served.output_tokens} billed, {truth} served"
    if served.prompt_tokens > truth[0] or served.output_tokens > truth[1]:
        findings["over-billed"].append(words)
    elif call is not None and call.how == "complete" and (served.prompt_tokens, served.output_tokens) != truth:
        findings["complete, and not exact"].append(words)
    elif call is not None and served.outcome == "gateway_lost" and call.received is not None:
        low = call.received - served.output_tokens
        most = int(2 * CHECKPOINT_S / evidence.rules.step_s) + 4 + _stood_tokens(call, evidence)
        if low > most:
            findings["too little billed of a killed stream"].append(f"{words}; {call.received} received")
    _judge_floor(served, refund, streams, call, evidence, found)


def _judge_amount(served: Row, refund: int, rules: Rules, findings: Findings) -> None:
    prices, multiple = rules.prices[served.model], rules.multiples_milli[served.tier]
    amount = _amount(served, prices, multiple)
    if served.amount != amount:
        findings["wrong amount"].append(f"{served.call_id}: {served.amount}, by the prices {amount}")
    if refund and served.amount + refund != _amount(served, prices, 1000):
        findings["wrong refund"].append(f"{served.call_id}: {refund} of {served.amount}")


def _amount(row: Row, prices: Sequence[int], multiple_milli: int) -> int:
    whole = (row.prompt_tokens * prices[0] + row.output_tokens * prices[1]) * multiple_milli
    return (2 * whole + 1000 * MTOK) // (2 * 1000 * MTOK)


def _truth(served: Row, streams: Sequence[Stream], engine_of: Mapping[str, str]) -> tuple[int, int]:
    """Prompt and output tokens of the call. A stream that went on at another engine is read there with its prompt, so
    how much longer the prompt is says how much was delivered before."""
    own = [one for one in streams if one.engine == engine_of.get(served.replica, served.replica)]
    if not own:
        return (0, 0)
    asked = min((one.prompt_tokens for one in streams if one.prompt_tokens), default=0)  # 0: an engine said nothing yet
    last_s = max(one.received_s for one in own if one.choice == 0) if any(one.choice == 0 for one in own) else 0.0
    last = [one for one in own if one.received_s >= last_s]
    before = max(0, last[0].prompt_tokens - asked)
    return asked, before + sum(one.tokens for one in last)


def _stood_tokens(call: Ended, evidence: Evidence) -> int:
    """Tokens that a relay may have passed on without a checkpoint, because it stood still or its disk took nothing."""
    whys = ("stands", "writes nothing")
    return call.tokens if any(evidence.touches(call.relay, why, call.sent_s, call.ended_s) for why in whys) else 0


def _judge_floor(
    served: Row, refund: int, streams: Sequence[Stream], call: Ended | None, evidence: Evidence, found: Judgement
) -> None:
    floor = evidence.rules.floors.get(served.tier)
    if floor is None:
        return
    found.with_floor += 1
    found.refunded += refund < 0
    proof = call.proof if call is not None else None
    if proof is not None and proof.kept is not None and proof.kept == (refund < 0):
        found.findings["proof and refund differ"].append(f"{served.call_id}: kept {proof.kept}, refund {refund}")
    if call is None or call.how != "complete" or len(streams) != 1 or served.output_tokens < MEASURED_TOKENS:
        return
    speed = streams[0].speed_tps()
    if speed is None or speed >= floor * (1 - TOLERANCE):
        return
    found.missed += 1
    stood = evidence.touches(call.relay, "stands", call.sent_s, call.ended_s)
    is_slow_reader = proof is not None and proof.reader_was_slow
    # The floor is what Headway reads and passes on: bytes that are late on their way there come faster then.
    read_tps = call.speed_tps()
    is_late = read_tps is not None and read_tps >= floor
    if not refund and not is_slow_reader:
        is_explained = stood or is_late or evidence.was_lied_to(served.call_id, streams)
        where = found.explained if is_explained else found.findings
        kept = proof.kept if proof is not None else None
        where["missed, not refunded"].append(
            f"{served.call_id}: {speed:.1f} tok/s by its engine, {read_tps or 0:.1f} by its client, floor {floor:g}, "
            f"kept {kept}"
        )


def _judge_budgets(evidence: Evidence, found: Judgement) -> None:
    budgets = {key.id: key for key in KEYS}
    leased: dict[tuple[str, str], int] = defaultdict(int)
    of_gateway: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in evidence.slices:
        leased[one.key, one.period] += one.amount
        of_gateway[one.key, one.period, one.gateway] += one.amount
    spent: dict[tuple[str, str], int] = defaultdict(int)
    for row in evidence.rows:
        if row.kind in ("served", "refunded") and row.key:  # audits are the owner's
            for period in (row.day, row.day[:7]):
                spent[row.key, period] += row.amount
    for (key, period), amount in spent.items():
        limits = budgets[key].limits
        budget = limits.get("budget_day" if len(period) == len("2026-11-19") else "budget_month")
        if budget is not None and amount > budget:
            found.findings["budget exceeded"].append(f"{key} {period}: {amount} of {budget}")
        if budget is not None and leased[key, period] > budget:
            found.findings["budget exceeded"].append(f"{key} {period}: {leased[key, period]} leased of {budget}")


# --- seats -----------------------------------------------------------------------------------------------------------


def _judge_crowds(evidence: Evidence, found: Judgement) -> None:
    """Every stream whose arrival made its replica too full, by the engines' record."""
    tiers = {row.call_id: row.tier for row in evidence.rows if row.kind == "served"}
    relays = {call.call_id: call.relay for call in evidence.calls if call.call_id}
    gateways = {row.call_id: row.gateway for row in evidence.rows if row.kind == "served"}
    relay_of = {gateways[name]: relay for name, relay in relays.items() if relay and name in gateways}
    rules = evidence.rules
    for stream, present in _boardings(_with_ends(evidence)):
        limit = min(rules.beside.get(tiers.get(one.call_id, "standard"), rules.seats) for one in present)
        found.filled += len(present) == limit
        if len(present) > limit:
            relay = relays.get(stream.call_id) or relay_of.get(gateways.get(stream.call_id, ""), "")
            why = _why(stream, present, relay, evidence)
            where = found.explained if why else found.findings
            lasted_s = sorted((one.ended_s for one in present), reverse=True)[limit] - stream.received_s
            where["streams above a limit"].append(
                f"{len(present)} where {limit} are allowed, for {lasted_s:.3f} s at {stream.received_s:.2f} on "
                f"{stream.engine}, by {stream.call_id} of {relay or 'unknown'}: "
                + (why or lately(stream.received_s, evidence))
            )


def _with_ends(evidence: Evidence) -> Iterator[Stream]:
    """An engine that is killed may not have written that a stream had ended. If the client has the whole answer, it
    ended with its last token."""
    whole = {call.call_id for call in evidence.calls if call.how == "complete"}
    last_s: dict[str, float] = {}
    for stream in evidence.streams:
        last_s[stream.call_id] = max(stream.received_s, last_s.get(stream.call_id, 0.0))
    for stream in evidence.streams:
        is_answer = stream.call_id in whole and stream.received_s == last_s[stream.call_id]
        yield replace(stream, ended_s=stream.last_s) if is_answer and stream.state == "killed" else stream


def _boardings(streams: Iterable[Stream]) -> Iterator[tuple[Stream, list[Stream]]]:
    """Each stream with all that its engine ran when it had arrived."""
    by_engine: dict[str, list[Stream]] = defaultdict(list)
    for stream in streams:
        by_engine[stream.engine].append(stream)
    for aboard in by_engine.values():
        present: list[Stream] = []
        for stream in sorted(aboard, key=lambda one: one.received_s):
            present = [one for one in present if one.ended_s > stream.received_s]
            present.append(stream)
            yield stream, present


def _why(stream: Stream, present: Sequence[Stream], relay: str, evidence: Evidence) -> str:
    """What explains it: the relay, or the engine itself, stood between a check and a write."""
    for fault in evidence.near(stream.received_s, stream.received_s):
        if "stands" not in fault.effects or not fault.from_s <= stream.received_s <= fault.until_s + WAKING_S:
            continue
        if relay in fault.who:
            return f"{relay} stood between check and write"
        if stream.engine in fault.who:
            return "the engine itself stood, and read late that others had left"
    return ""


def lately(at_s: float, evidence: Evidence, for_s: float = 10.0) -> str:
    """The faults shortly before, newest first, for whoever looks for the cause."""
    near = [fault for fault in evidence.near(at_s - for_s, at_s) if fault.from_s <= at_s]
    near.sort(key=lambda fault: -fault.from_s)
    words = ", ".join(f"{one.kind} ({' '.join(one.who)}) {at_s - one.from_s:.2f} s before" for one in near[:4])
    return words or "no fault near"


# --- ends ------------------------------------------------------------------------------------------------------------


def _judge_ends(evidence: Evidence, found: Judgement) -> None:
    for call in evidence.calls:
        words = (
            f"{call.call_id or 'no id'} {call.kind} {call.tier} of {call.relay or 'no relay'}, sent at "
            f"{call.sent_s:.2f}, {call.ended_s - call.sent_s:.2f} s: {call.words}"
        )
        if call.relay == NO_RELAY and evidence.is_without_engines(call.sent_s):
            found.explained[UNREADY].append(words)
        elif call.how in ("cut", "no answer") and not _is_lost(call, evidence):
            found.findings[call.how].append(f"{words}; {lately(call.ended_s, evidence)}")
        elif call.how == "hangs" or call.ended_s - call.sent_s > _longest_s(call, evidence):
            found.findings["too late"].append(words)
        if call.how == "refused" and call.words[:3] in ("429", "503", "529") and not call.retry_after:
            found.findings["refused without retry-after"].append(words)
        if (
            call.how == "refused"
            and call.words[:3] == "401"
            and not evidence.touches(call.key, "revoked", call.sent_s, call.ended_s)
        ):
            found.findings["a valid key refused"].append(words)


def _is_lost(call: Ended, evidence: Evidence) -> bool:
    """Whether what carried the call died or was out of means while it was under way."""
    times = (call.sent_s, call.ended_s)
    if call.over_tls and evidence.touches("front", "expired", *times):
        return True
    if not call.first_s and evidence.touches(call.relay, "starves", *times):
        return True  # a process without descriptors closes new connections
    return any(evidence.touches(name, "dies", *times) for name in (call.relay, "balancer"))


def _longest_s(call: Ended, evidence: Evidence) -> float:
    rules = evidence.rules
    stood_s = sum(
        fault.until_s - fault.from_s
        for fault in evidence.near(call.sent_s, call.ended_s)
        if fault.touches(call.relay, "stands", call.sent_s, call.ended_s)
    )
    held_s = rules.max_hold_s.get(call.tier, 0.0) + rules.max_hold_s["standard"]
    attempt_s = rules.stall_s + 1.5 * rules.step_s * call.tokens
    return held_s + 2 * attempt_s + stood_s + LATE_S
