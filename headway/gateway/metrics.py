"""Prometheus metrics. They are counted once per call or read when scraped, never per token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.core.types import MIN_TOKENS_FOR_PROMISE
from headway.supervise import Supervisor
from headway.wire import Receipt

LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS_PER_SECOND = (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000)


class Metrics:
    def __init__(self, when_scraped: Callable[[], Iterable[Metric]], supervisor: Supervisor) -> None:
        """`when_scraped` reads the metrics of the policy (dispatch/base.py) and of the replicas."""
        self.registry = CollectorRegistry()
        self.calls = Counter("headway_calls", "Calls by outcome.", ("model", "tier", "outcome"), registry=self.registry)
        self.tokens = Counter("headway_tokens", "Tokens served.", ("model", "tier", "kind"), registry=self.registry)
        self.held = Histogram(
            "headway_held_seconds",
            "Time that a call waited for a seat.",
            ("model", "tier"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_token = Histogram(
            "headway_first_token_seconds",
            "Time from a call's arrival to the first byte of its answer.",
            ("model", "tier"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.speed = Histogram(
            "headway_output_tokens_per_second",
            "Speed of streams, (tokens - 1) / (last - first), for answers of 16 tokens and more.",
            ("model", "tier"),
            buckets=TOKENS_PER_SECOND,
            registry=self.registry,
        )
        self.promises = Counter(
            "headway_promises",
            "Streams with a floor, by whether it was kept.",
            ("model", "tier", "outcome"),
            registry=self.registry,
        )
        self.moves = Counter(
            "headway_moves",
            "How often streams went on at another replica in the middle of their answers, counted when they end.",
            ("model", "tier"),
            registry=self.registry,
        )
        self.refusals = Counter(
            "headway_refusals",
            "Calls that were not served, by reason: those that got no seat, and those that their key, their body or "
            "their budget did not allow.",
            ("reason",),
            registry=self.registry,
        )
        self.config_reads = Counter(
            "headway_config_reads",
            "How often headway.toml was read again while the gateway ran: it was taken over, or refused because it is "
            "not valid.",
            ("result",),
            registry=self.registry,
        )
        self._watch_auto()
        self._watch_process()
        self.registry.register(_Read(when_scraped))
        self.registry.register(_Tasks(supervisor))

    def _watch_auto(self) -> None:
        self.auto_calls = Counter(
            "headway_auto_calls",
            "Calls to auto models by the rung that served them and, if it was the full model, the reason.",
            ("model", "rung", "escalated"),
            registry=self.registry,
        )
        self.auto_audits = Counter(
            "headway_auto_audits",
            "Sampled calls to auto models: the full model's answer is the same, differs, or was the one served; or the "
            "full model refused the audit, or it expired, which both count as differing.",
            ("model", "verdict"),
            registry=self.registry,
        )

    def _watch_process(self) -> None:
        self.loop_lag = Histogram(
            "headway_loop_lag_seconds",
            "How late the event loop wakes a task that sleeps. No stream moves meanwhile.",
            buckets=LAG_SECONDS,
            registry=self.registry,
        )
        self.bad_lines = Gauge(
            "headway_spool_bad_lines",
            "Lines of the spool that could not be read and were set aside in its folder `bad`.",
            registry=self.registry,
        )
        self.spool_bytes = Gauge(
            "headway_spool_bytes",
            "Size of the spool. It has one segment of a few MiB even when the store has all entries.",
            registry=self.registry,
        )
        self.spool_limit = Gauge(
            "headway_spool_limit_bytes",
            "Maximum size of the spool, above which new calls are refused.",
            registry=self.registry,
        )
        self.spool_behind = Gauge(
            "headway_spool_behind_seconds",
            "Time since the ledger's store last had all entries of the spool; under a second while it keeps up.",
            registry=self.registry,
        )
        self.sockets = _Sockets()
        self.registry.register(self.sockets)
        self._tasks = Gauge("headway_tasks", "Tasks of the gateway's event loop.", registry=self.registry)

    def count(self, model: str, receipt: Receipt, *, held_s: float | None, first_token_s: float | None) -> None:
        """Count an ended call. `held_s` is None if it never had a seat, `first_token_s` if nothing was streamed."""
        tier, usage = receipt.grant.tier, receipt.usage
        self.calls.labels(model, tier, receipt.outcome).inc()
        if held_s is not None:
            self.held.labels(model, tier).observe(held_s)
        self.tokens.labels(model, tier, "prompt").inc(usage.prompt_tokens)
        self.tokens.labels(model, tier, "output").inc(usage.output_tokens)
        if first_token_s is not None:
            self.first_token.labels(model, tier).observe(first_token_s)
        if max(usage.outputs) >= MIN_TOKENS_FOR_PROMISE and receipt.speed_tps is not None:
            self.speed.labels(model, tier).observe(receipt.speed_tps)
        if receipt.moves:
            self.moves.labels(model, tier).inc(receipt.moves)
        if receipt.kept is not None and receipt.outcome == "finished":
            self.promises.labels(model, tier, "kept" if receipt.kept else "missed").inc()

    def page(self) -> bytes:
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self.registry)


def replica_metrics(pools: Mapping[str, str], tokens: Mapping[str, int]) -> Iterable[Metric]:
    """`pools` maps each replica to its pool, `tokens` to the output tokens that were read from it."""
    read = CounterMetricFamily(
        "headway_replica_output_tokens",
        "Output tokens read from a replica, also those of streams that still run and of streams that failed.",
        labels=("model", "replica"),
    )
    for name, count in tokens.items():
        read.add_metric((pools[name], name), count)
    return (read,)


def dropped_lines(count: int) -> Metric:
    return CounterMetricFamily(
        "headway_access_log_dropped",
        "Lines of the access log that are lost: the disk is full, or whoever reads the log does not keep up.",
        value=count,
    )


class _Read(Collector):
    def __init__(self, when_scraped: Callable[[], Iterable[Metric]]) -> None:
        self._when_scraped = when_scraped

    def collect(self) -> Iterator[Metric]:
        return iter(self._when_scraped())


class _Tasks(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "headway_task_restarts",
            "How often a background task failed and was started again.",
            labels=("task",),
        )
        for name, count in self._supervisor.restarts().items():
            restarts.add_metric((name,), count)
        return iter((restarts,))


class _Sockets(Collector):
    """Reads the WebSockets when it is scraped."""

    def __init__(self) -> None:
        # Open sockets, and the calls that came over all of them. The app, which has the sockets, is made later.
        self.read_counts: Callable[[], tuple[int, int]] = lambda: (0, 0)

    def collect(self) -> Iterator[Metric]:
        open_sockets, calls = self.read_counts()
        yield GaugeMetricFamily("headway_sockets", "Open WebSockets.", value=open_sockets)
        yield CounterMetricFamily("headway_socket_calls", "Calls that came over a WebSocket.", value=calls)
