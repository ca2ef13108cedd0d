"""The metrics of the policy, read from core when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headway.core.demand import tier_seats
from headway.core.machine import Machine
from headway.core.trust import Trust


def policy_metrics(machine: Machine, replicas: Mapping[str, str]) -> Iterable[Metric]:
    """`replicas` maps each replica to its pool; also those that are down."""
    aboard = GaugeMetricFamily("headway_aboard", "Streams aboard a replica.", labels=("model", "replica"))
    is_open = GaugeMetricFamily("headway_replica_open", "1 while a replica takes calls.", labels=("model", "replica"))
    held = GaugeMetricFamily("headway_held", "Calls waiting for a seat.", labels=("model",))
    seat_time = CounterMetricFamily(
        "headway_seat_seconds",
        "Replica time used by calls, by tier served; `reserve` is the time kept ready for express calls. The sum "
        "is the busy time of all replicas, without calls still aboard.",
        labels=("model", "tier"),
    )
    wanted = GaugeMetricFamily(
        "headway_seats_wanted",
        "Seats that calls of a tier hold or wait for; of an express tier also those that are to be kept ready.",
        labels=("model", "tier"),
    )
    ready = GaugeMetricFamily(
        "headway_seats_ready",
        "Seats that calls of a tier hold or could take now; free seats count for every tier whose calls could take "
        "them. If more are wanted than ready, calls wait or will soon: more replicas are needed.",
        labels=("model", "tier"),
    )
    for name, pool_name in replicas.items():
        if (pool := machine.pools.get(pool_name)) is not None:  # else it was removed, and the replica will be
            aboard.add_metric((pool_name, name), pool.aboard(name))
            is_open.add_metric((pool_name, name), float(pool.is_open(name)))
    for pool_name, pool in machine.pools.items():
        held.add_metric((pool_name,), pool.waiting.held)
        for model, by_tier in pool.seat_us.items():
            for tier, seat_us in by_tier.items():
                seat_time.add_metric((model, tier), seat_us / 1e6)
        seat_time.add_metric((pool_name, "reserve"), pool.reserve_us / 1e6)
        for seats in tier_seats(machine.pools, pool_name):
            wanted.add_metric((seats.model, seats.tier), seats.wanted)
            ready.add_metric((seats.model, seats.tier), seats.ready)
    return aboard, is_open, held, seat_time, wanted, ready


def gate_metrics(trusts: Mapping[str, Trust | None]) -> Iterable[Metric]:
    """`trusts` maps each auto model to its trust; None while nothing is decided about it."""
    waiting = GaugeMetricFamily(
        "headway_auto_audits_waiting",
        "Audits that are due and wait for an idle seat. Above a bound, the student is not asked.",
        labels=("model",),
    )
    is_open = GaugeMetricFamily("headway_auto_gate_open", "1 while an auto model uses its student.", labels=("model",))
    for model, trust in trusts.items():
        waiting.add_metric((model,), len(trust.waiting) if trust is not None else 0)
        is_open.add_metric((model,), float(trust is not None and not trust.is_closed))
    return waiting, is_open
