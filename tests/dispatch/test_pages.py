"""The pages of several processes are added up to one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.dispatch import pages
from headway.dispatch.pages import MetricPages, merge, read_page
from headway.gateway.metrics import Metrics
from headway.supervise import Supervisor

pytestmark = pytest.mark.anyio
PAGE = b"""\
# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{model="a",outcome="finished"} 2.0
# HELP calls_created Calls.
# TYPE calls_created gauge
calls_created{model="a",outcome="finished"} 50.0
# HELP held_seconds Held.
# TYPE held_seconds histogram
held_seconds_bucket{le="0.1"} 1.0
held_seconds_bucket{le="+Inf"} 2.0
held_seconds_count 2.0
held_seconds_sum 0.5
"""
OTHER = (
    PAGE.replace(b"# HELP calls_created", b'calls_total{model="a",outcome="left"} 5.0\n# HELP calls_created')
    .replace(b" 50.0", b" 40.0")
    .replace(b"# HELP held", b"# HELP open Open.\n# TYPE open gauge\nopen 1.0\n# HELP held")
)


def samples(page: bytes) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_counters_gauges_and_histograms_are_added_up() -> None:
    assert samples(merge([PAGE, OTHER], unanswered=1)) == {
        "calls_total['a', 'finished']": 4.0,
        "calls_total['a', 'left']": 5.0,
        "calls_created['a', 'finished']": 40.0,
        "held_seconds_bucket['0.1']": 2.0,
        "held_seconds_bucket['+Inf']": 4.0,
        "held_seconds_count[]": 4.0,
        "held_seconds_sum[]": 1.0,
        "open[]": 1.0,
        "headway_processes_unanswered[]": 1.0,
    }


async def test_the_merged_page_of_one_process_is_its_own() -> None:
    metrics = Metrics(lambda: (), Supervisor())
    metrics.calls.labels("m", "fast", 'a "quoted"\nlabel').inc(3)
    metrics.held.labels("m", "fast").observe(0.2)
    page = metrics.page()
    merged = merge([page], unanswered=0)
    assert merged.startswith(page)
    assert len(merged.splitlines()) == len(page.splitlines()) + 3


async def test_a_process_that_does_not_answer_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ANSWER_S", 0.1)
    one, two = (MetricPages(tmp_path, name, lambda: PAGE) for name in ("relay-1", "relay-2"))
    killed = MetricPages(tmp_path, "relay-3", lambda: PAGE)
    stuck = socket.socket(socket.AF_UNIX)
    stuck.bind(str(tmp_path / "dispatcher.metrics"))
    stuck.listen()
    for own in (one, two, killed):
        await own.start()
    assert killed._server is not None
    killed._server.close()  # its socket stays, as that of a process that was killed
    found = samples(await one.merged())
    assert found["headway_processes_unanswered[]"] == 2
    assert found["calls_total['a', 'finished']"] == 4
    stuck.close()
    await killed.start()
    assert samples(await one.merged())["calls_total['a', 'finished']"] == 6
    for own in (one, two, killed):
        await own.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["dispatcher.metrics"]


async def test_a_page_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1000)
    large = MetricPages(tmp_path, "relay-1", lambda: b"x" * 1001)
    await large.start()
    assert await read_page(tmp_path / "relay-1.metrics") is None
    await large.stop()
