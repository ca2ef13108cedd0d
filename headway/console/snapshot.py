"""`GET /admin/live`: what replicas, tiers and auto models do now, as one value.

    PolicyReading (core's view, from whoever decides) ─┐
    metrics (counted by the gateway's processes)       ├──► Snapshot
    Config (what is offered)                           ┘

This module is arithmetic on what others have read. Counters grow from the start of the processes; the page makes
rates of them. At most SHOWN replicas are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec
from prometheus_client.core import Metric

from headway.config import Config, ModelTable
from headway.core.types import Tier
from headway.dispatch.frames import SHOWN, DemandStatus, RelayStatus, ReplicaStatus, TierStatus

Labels = tuple[str, ...]


class Cell(msgspec.Struct):
    role: str
    epoch: int
    lag_s: float
    relays: list[dict[str, str | int | float | None]]


@dataclass(frozen=True, slots=True)
class PolicyReading:
    """What whoever decides knows. `cell` is None in a gateway that decides for itself."""

    replicas: list[ReplicaStatus]
    demand: list[DemandStatus]
    cell: Cell | None = None


class Histogram(msgspec.Struct):
    """`counts` has one more entry than `buckets`: what is above all of them."""

    buckets: list[float]
    counts: list[int]


class ReplicaRow(msgspec.Struct):
    name: str
    pool: str
    state: str
    seats: int
    light_seats: int
    is_light: bool
    is_retiring: bool
    is_behind: bool
    aboard: Mapping[Tier, int]
    strangers: int
    tokens: int | None


class TierRow(msgspec.Struct):
    model: str
    tier: Tier
    pool: str
    floor_tps: float | None
    target_tps: float | None
    price_multiple: float
    wanted: int
    ready: int
    held: int
    calls: dict[str, int]
    kept: int
    missed: int
    prompt_tokens: int
    output_tokens: int
    first_token: Histogram
    speed: Histogram


class AutoRow(msgspec.Struct):
    model: str
    is_open: bool
    audits_waiting: int
    student: int
    full: int
    audits: dict[str, int]


class Snapshot(msgspec.Struct):
    at: float
    version: str
    cell: Cell | None
    processes_unanswered: int
    lag: Histogram
    sockets: int
    replicas: list[ReplicaRow]
    more_replicas: int
    tiers: list[TierRow]
    auto: list[AutoRow]


def make_snapshot(
    at: float,
    version: str,
    config: Config,
    policy: PolicyReading,
    families: Iterable[Metric],
    open_gates: Mapping[str, bool],
) -> Snapshot:
    """`open_gates` says of each auto model whether its gate is open."""
    counted = CountedMetrics(families)
    shown = policy.replicas[:SHOWN]
    tokens = counted.sums("headway_replica_output_tokens", "replica")
    seats = {(row.model, row.tier): row for pool in policy.demand for row in pool.tiers}
    return Snapshot(
        at=at,
        version=version,
        cell=policy.cell,
        processes_unanswered=counted.total("headway_processes_unanswered"),
        lag=counted.histogram("headway_loop_lag_seconds"),
        sockets=counted.total("headway_sockets"),
        replicas=[_replica_row(one, tokens.get((one.name,))) for one in shown],
        more_replicas=len(policy.replicas) - len(shown),
        tiers=[row for model in config.models for row in _tier_rows(model, counted, seats)],
        auto=[_auto_row(model.auto_name, counted, open_gates) for model in config.models if model.auto is not None],
    )


def cell_of(epoch: int, relays: Iterable[RelayStatus], lag_s: float) -> Cell:
    return Cell("leader", epoch, lag_s, [msgspec.structs.asdict(one) for one in relays])


def state_of(status: ReplicaStatus) -> str:
    """In one word: open, draining (takes no calls), or closed: it starts, or is down."""
    return "draining" if status.is_draining else "open" if status.is_open else "closed"


def _replica_row(status: ReplicaStatus, tokens: int | None) -> ReplicaRow:
    return ReplicaRow(
        status.name,
        status.pool,
        state_of(status),
        status.seats,
        status.light_seats,
        status.is_light,
        status.is_retiring,
        status.is_behind,
        dict(status.by_tier),
        status.strangers,
        tokens,
    )


def _tier_rows(
    model: ModelTable, counted: CountedMetrics, seats: Mapping[tuple[str, Tier], TierStatus]
) -> Iterable[TierRow]:
    for tier in model.tiers:
        key = {"model": model.name, "tier": tier.name}
        now = seats.get((model.name, tier.name)) or TierStatus(model.name, tier.name, 0, 0)
        promises = counted.by("headway_promises", "outcome", **key)
        tokens = counted.by("headway_tokens", "kind", **key)
        yield TierRow(
            model=model.name,
            tier=tier.name,
            pool=model.replicas_of or model.name,
            floor_tps=tier.floor_tps,
            target_tps=tier.target_tps,
            price_multiple=tier.price_multiple or 1.0,
            wanted=now.wanted,
            ready=now.ready,
            held=now.held,
            calls=counted.by("headway_calls", "outcome", **key),
            kept=promises.get("kept", 0),
            missed=promises.get("missed", 0),
            prompt_tokens=tokens.get("prompt", 0),
            output_tokens=tokens.get("output", 0),
            first_token=counted.histogram("headway_first_token_seconds", **key),
            speed=counted.histogram("headway_output_tokens_per_second", **key),
        )


def _auto_row(model: str, counted: CountedMetrics, open_gates: Mapping[str, bool]) -> AutoRow:
    rungs = counted.by("headway_auto_calls", "rung", model=model)
    return AutoRow(
        model,
        open_gates.get(model, False),
        counted.total("headway_auto_audits_waiting", model=model),
        rungs.get("student", 0),
        rungs.get("full", 0),
        counted.by("headway_auto_audits", "verdict", model=model),
    )


class CountedMetrics:
    """Samples of metrics, found by name and labels."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = {family.name: family for family in families}

    def sums(self, name: str, *labels: str, **where: str) -> dict[Labels, int]:
        """The values of a counter or a gauge, added up by these labels."""
        found: dict[Labels, int] = {}
        family = self._families.get(name)
        for sample in family.samples if family is not None else ():
            if sample.name in (name, f"{name}_total") and where.items() <= sample.labels.items():
                key = tuple(sample.labels.get(label, "") for label in labels)
                found[key] = found.get(key, 0) + int(sample.value)
        return found

    def by(self, name: str, label: str, **where: str) -> dict[str, int]:
        return {value: count for (value,), count in self.sums(name, label, **where).items()}

    def total(self, name: str, **where: str) -> int:
        return self.sums(name, **where).get((), 0)

    def histogram(self, name: str, **where: str) -> Histogram:
        family = self._families.get(name)
        up_to = [
            (float(sample.labels["le"]), int(sample.value))
            for sample in (family.samples if family is not None else ())
            if sample.name == f"{name}_bucket" and where.items() <= sample.labels.items()
        ]
        up_to.sort()
        counts = [count for _, count in up_to]
        return Histogram(
            [bound for bound, _ in up_to[:-1]], counts[:1] + [after - before for before, after in pairwise(counts)]
        )
