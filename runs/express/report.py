"""What runs/express/live.py found: the clients' own lists beside the replicas' records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from runs.express.callers import Ended
from runs.measure.witness import PROBE_ID_LENGTH, Company, Record, Seen, company_of, highest_running

MIN_TOKENS_FOR_PROMISE = 16  # as the proof is documented: a shorter answer is promised nothing
BORDERLINE = 0.02  # gateway and engine stamp a token a moment apart: this near to the floor they may differ
ENDS = ("answered", "refused", "cut", "left", "unexplained")


@dataclass
class Outcome:
    sent: int
    counts: Counter[tuple[str, str]]
    fast: list[Ended]
    cut_at: list[float]
    unexplained: list[str]
    faults: list[tuple[str, float, float]]
    records: list[Record]
    left_over: int  # requests that replicas still had when all clients were gone


@dataclass
class Agreement:
    """The proofs of answers that were served as fast to their end, beside what their engine recorded."""

    compared: int = 0
    kept_by_proof: int = 0
    kept_by_record: int = 0
    promised: int = 0
    borderline: int = 0
    without_record: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, ended: Ended, seen: Seen, floor_tps: float) -> None:
        self.compared += 1
        speed_tps = seen.speed_tps()
        promised = speed_tps is not None and seen.tokens_sent >= MIN_TOKENS_FOR_PROMISE
        kept = speed_tps is not None and speed_tps >= floor_tps if promised else None
        said = ended.proof.get("kept")
        self.promised += promised
        self.kept_by_proof += said is True
        self.kept_by_record += kept is True
        if said is kept and ended.tokens == seen.tokens_sent:
            return
        if promised and speed_tps is not None and abs(speed_tps / floor_tps - 1) <= BORDERLINE:
            self.borderline += 1
        else:
            streamed = "streamed" if ended.plan.streamed else "whole"
            self.differences.append(
                f"{ended.id} ({streamed}): proof {said} at {ended.proof.get('tokens_per_second')} tok/s with "
                f"{ended.tokens} tokens, record {kept} at {speed_tps or 0:.2f} with {seen.tokens_sent}"
            )


def agreement_of(outcome: Outcome, floor_tps: float) -> Agreement:
    agreement = Agreement()
    # A call that lost its engine before it was answered is on two records; the one that finished it is meant.
    finished = {
        name: seen for one in outcome.records for name, seen in one.requests.items() if seen.state == "finished"
    }
    for ended in served_fast(outcome):
        if ended.how == "answered":
            if seen := finished.get(ended.id):
                agreement.add(ended, seen, floor_tps)
            else:
                agreement.without_record += 1
    return agreement


def served_fast(outcome: Outcome) -> Iterator[Ended]:
    return (ended for ended in outcome.fast if ended.tier_served == "fast" and ended.id)


def cuts_without_fault(outcome: Outcome, stall_s: float) -> int:
    grace_s = stall_s + 3.0  # the gateway looks once a second, and gives up a silent replica after `stall_s`
    return sum(not any(began <= at <= ended + grace_s for _, began, ended in outcome.faults) for at in outcome.cut_at)


def report(console: Console, outcome: Outcome, floor_tps: float, limit: int, seats: int, stall_s: float) -> bool:
    ids = {ended.id for ended in served_fast(outcome)}
    company = company_of(outcome.records, ids, limit)
    agreement = agreement_of(outcome, floor_tps)
    stray_cuts = cuts_without_fault(outcome, stall_s)
    unaccounted = outcome.sent - sum(outcome.counts.values())
    print_calls(console, outcome)
    print_findings(console, outcome, company, agreement, limit, seats)
    for line in [*outcome.unexplained[:5], *agreement.differences[:10]]:
        console.print(line, markup=False, highlight=False)
    accounted = not (outcome.unexplained or stray_cuts or unaccounted or agreement.without_record or outcome.left_over)
    agrees = agreement.compared > 0 and not agreement.differences
    share = 1 - len(agreement.differences) / max(1, agreement.compared)
    console.print(
        f"calls unexplained {len(outcome.unexplained)}, cut without a fault {stray_cuts}, unaccounted {unaccounted}, "
        f"fast answers without a record {agreement.without_record}, requests left on replicas {outcome.left_over}"
    )
    console.print(
        f"fast requests ever stepped above {limit}: {company.requests_above} of {company.found} (bar 0); "
        f"proofs that agree with the replicas: {share:.2%} of {agreement.compared} (bar 100%)"
    )
    return accounted and agrees and company.found > 0 and not company.requests_above


def print_calls(console: Console, outcome: Outcome) -> None:
    table = Table("calls", *ENDS, "all")
    for tier in sorted({tier for tier, _ in outcome.counts}):
        counts = [outcome.counts[tier, how] for how in ENDS]
        table.add_row(tier, *[f"{count:,}" for count in counts], f"{sum(counts):,}")
    console.print(table)
    kinds = Counter(kind for kind, _, _ in outcome.faults)
    console.print("faults of a replica: " + ", ".join(f"{kind} {count}x" for kind, count in sorted(kinds.items())))
    words = Counter(ended.words for ended in outcome.fast if ended.how == "refused")
    console.print("fast calls refused: " + (", ".join(f"{word} {count}" for word, count in words.items()) or "none"))


def print_findings(
    console: Console, outcome: Outcome, company: Company, agreement: Agreement, limit: int, seats: int
) -> None:
    probes = sum(len(name) == PROBE_ID_LENGTH for record in outcome.records for name in record.requests)
    table = Table("what", "measured", "at most")
    table.add_row("requests a replica had at once, any tier (seats)", str(highest_running(outcome.records)), str(seats))
    table.add_row("company of a fast request, highest", str(company.highest), str(limit))
    table.add_row("fast requests ever stepped above the limit", f"{company.requests_above} of {company.found:,}", "0")
    table.add_row("  their steps above it, of all steps", f"{company.steps_above} of {company.steps:,}", "0")
    for reason, steps in company.reasons.most_common():
        table.add_row(f"  of these: {reason}", str(steps), "0")
    table.add_row("fast calls on no record: they boarded between the last look and the kill", str(company.missing), "")
    unnamed = sum(not ended.id for ended in outcome.fast)
    table.add_row("fast calls not looked at: they left before they heard their id", str(unnamed), "")
    table.add_row("probes of the gateway, company as all others", str(probes), "")
    kept = f"{agreement.kept_by_proof:,} and {agreement.kept_by_record:,} of {agreement.promised:,}"
    table.add_row("floors kept, by proof and by record", kept, "")
    table.add_row("proofs that differ from the record", f"{len(agreement.differences)} of {agreement.compared:,}", "0")
    table.add_row(f"  and those within {BORDERLINE:.0%} of the floor", str(agreement.borderline), "")
    console.print(table)
