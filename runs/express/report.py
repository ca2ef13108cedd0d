"""The report of runs/express-live.sh: compares the clients' results with the replicas' records, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from runs.express.callers import Ended
from runs.measure.verdict import Bar, Verdict, at_least, finish, none_of
from runs.measure.witness import PROBE_ID_LENGTH, Company, Record, Seen, company_of, highest_running

MIN_TOKENS_FOR_PROMISE = 16  # as documented for the proof: shorter answers have no promise
BORDERLINE = 0.02  # gateway and engine stamp a token at different moments: this close to the floor they may differ
FAULTS = ("killed", "stalls", "answers 503", "drops streams", "slow")
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
    left_over: int  # requests still on replicas when all clients had disconnected


@dataclass
class Agreement:
    """Proofs of complete fast answers compared with the engine's records."""

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
    # A call that lost its engine before its answer is on two records; use the one that finished it.
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
    grace_s = stall_s + 3.0  # the gateway probes every second and gives up a silent replica after `stall_s`
    return sum(not any(began <= at <= ended + grace_s for _, began, ended in outcome.faults) for at in outcome.cut_at)


@dataclass(frozen=True)
class Figures:
    fast_calls: int  # sent
    limit: int  # maximum streams of a replica that keep the floor
    found: int  # fast requests on the replicas' records
    steps: int  # of these requests
    requests_above: int  # fast requests with a step in a batch above the limit
    compared: int  # answers with a proof and a record
    differences: int
    without_record: int
    unexplained: int
    cut_without_fault: int
    unaccounted: int
    left_over: int
    kinds_of_faults: int


def verdict(figures: Figures) -> Verdict:
    kinds = f"{figures.kinds_of_faults} of {len(FAULTS)}"
    bars = (
        Bar("kinds of faults that happened", kinds, "all", figures.kinds_of_faults == len(FAULTS)),
        at_least("fast requests on the replicas' records", figures.found, figures.fast_calls / 2, ",.0f"),
        none_of(f"fast requests that ever took a step among more than {figures.limit}", figures.requests_above),
        at_least("proofs compared with a record", figures.compared, figures.fast_calls / 2, ",.0f"),
        none_of("proofs that differ from the record", figures.differences),
        none_of("fast answers without a record", figures.without_record),
        none_of("calls unexplained", figures.unexplained),
        none_of("calls cut without a fault", figures.cut_without_fault),
        none_of("calls unaccounted for", figures.unaccounted),
        none_of("requests left on replicas", figures.left_over),
    )
    figure = (
        f"fast requests ever stepped above {figures.limit}: {figures.requests_above} of {figures.found:,} in "
        f"{figures.steps:,} steps (bar 0); proofs that differ from the replicas' records: {figures.differences} of "
        f"{figures.compared:,} (bar 0)"
    )
    return Verdict(figure, bars)


def report(console: Console, outcome: Outcome, floor_tps: float, limit: int, seats: int, stall_s: float) -> int:
    company = company_of(outcome.records, {ended.id for ended in served_fast(outcome)}, limit)
    agreement = agreement_of(outcome, floor_tps)
    print_calls(console, outcome)
    print_findings(console, outcome, company, agreement, limit, seats)
    for line in [*outcome.unexplained[:5], *agreement.differences[:10]]:
        console.print(line, markup=False, highlight=False)
    figures = Figures(
        fast_calls=len(outcome.fast),
        limit=limit,
        found=company.found,
        steps=company.steps,
        requests_above=company.requests_above,
        compared=agreement.compared,
        differences=len(agreement.differences),
        without_record=agreement.without_record,
        unexplained=len(outcome.unexplained),
        cut_without_fault=cuts_without_fault(outcome, stall_s),
        unaccounted=abs(outcome.sent - outcome.counts.total()),
        left_over=outcome.left_over,
        kinds_of_faults=len({kind for kind, _, _ in outcome.faults}),
    )
    return finish(console, verdict(figures))


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
    table = Table("what", "measured")
    at_once = highest_running(outcome.records)
    table.add_row(f"requests a replica had at once, any tier and probes ({seats} seats)", str(at_once))
    table.add_row(f"company of a fast request, highest (limit {limit})", str(company.highest))
    table.add_row("steps of fast requests above the limit, of all", f"{company.steps_above} of {company.steps:,}")
    for reason, steps in company.reasons.most_common():
        table.add_row(f"  of these: {reason}", str(steps))
    table.add_row("fast calls on no record: they boarded between the last look and the kill", str(company.missing))
    unnamed = sum(not ended.id for ended in outcome.fast)
    table.add_row("fast calls not looked at: they left before they heard their id", str(unnamed))
    table.add_row("probes of the gateway, company as all others", str(probes))
    kept = f"{agreement.kept_by_proof:,} and {agreement.kept_by_record:,} of {agreement.promised:,}"
    table.add_row("floors kept, by proof and by record", kept)
    table.add_row(f"proofs that differ within {BORDERLINE:.0%} of the floor, not counted", str(agreement.borderline))
    console.print(table)
