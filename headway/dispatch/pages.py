"""The metrics of several processes as one page.

Each process writes its own page to whoever connects to its UNIX socket in a directory that they share. The one that is
asked for the metrics reads all pages and adds them up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

SUFFIX = ".metrics"
ANSWER_S = 0.5
MAX_PAGE_BYTES = 4 * 2**20


class MetricPages:
    def __init__(self, directory: Path, name: str, page: Callable[[], bytes]) -> None:
        """`name` is the process's own, `page` makes its page."""
        self._directory = directory
        self._path = directory / f"{name}{SUFFIX}"
        self._page = page
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)  # of a process of this name that was killed
        self._server = await asyncio.start_unix_server(self._send, self._path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _send(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._page())
        writer.close()

    async def merged(self) -> bytes:
        """The page of all processes."""
        # In a thread: to parse the pages of many processes takes long enough to hold up streams.
        return await asyncio.to_thread(merge, *await self._read_all())

    async def families(self) -> list[Metric]:
        """The metrics of all processes, added up."""
        return await asyncio.to_thread(add_up, *await self._read_all())

    async def _read_all(self) -> tuple[list[bytes], int]:
        """The pages of all processes that answer, and how many do not."""
        others = [path for path in sorted(self._directory.glob(f"*{SUFFIX}")) if path != self._path]
        pages = await asyncio.gather(*[read_page(path) for path in others])
        return [self._page(), *[page for page in pages if page is not None]], pages.count(None)


async def read_page(path: Path) -> bytes | None:
    """Returns None if the process does not answer in time, or with too much."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                await reader.readexactly(MAX_PAGE_BYTES)
            finally:
                writer.close()
    except asyncio.IncompleteReadError as end:
        return end.partial or None
    except OSError:  # a TimeoutError is one
        pass
    return None


def merge(pages: Sequence[bytes], unanswered: int) -> bytes:
    """One page of all."""
    registry = CollectorRegistry()
    registry.register(_Merged(add_up(pages, unanswered)))
    return generate_latest(registry)


def add_up(pages: Sequence[bytes], unanswered: int) -> list[Metric]:
    """Add up the samples of all pages."""
    families: dict[str, _Sum] = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            families.setdefault(family.name, _Sum(family)).add(family)
    return [*[one.total() for one in families.values()], unanswered_processes(unanswered)]


def unanswered_processes(count: int) -> Metric:
    return GaugeMetricFamily(
        "headway_processes_unanswered",
        "With several processes: those whose metrics are missing on this page, because they did not answer in time.",
        value=count,
    )


class _Sum:
    """A family, added up over processes."""

    def __init__(self, first: Metric) -> None:
        self._first = first
        self._is_time = first.name.endswith("_created")  # of the counter: the earliest is kept
        self._samples: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[dict[str, str], float]] = {}

    def add(self, family: Metric) -> None:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            labels, value = self._samples.get(key, (sample.labels, None))
            if value is None:
                self._samples[key] = labels, sample.value
            else:
                self._samples[key] = labels, min(value, sample.value) if self._is_time else value + sample.value

    def total(self) -> Metric:
        total = Metric(self._first.name, self._first.documentation, self._first.type)
        for (name, _), (labels, value) in self._samples.items():
            total.add_sample(name, labels, value)
        return total


class _Merged(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
