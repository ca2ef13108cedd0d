"""What the soaks read from outside: trends, the kernel's pages, and histograms between two looks."""

from __future__ import annotations

import math
import os

import pytest

from runs.measure.growth import buckets_of, open_files, quantile_between, rollup_mib, sum_of, threads, trend_of

PAGE = b"""headway_tasks 7.0
headway_tasks_more{a="b"} 9.0
headway_aboard{pool="m",tier="fast"} 2.0
headway_aboard{pool="m",tier="flex"} 1.0
lag_bucket{le="0.001"} 10.0
lag_bucket{le="0.01"} 30.0
lag_bucket{le="+Inf"} 31.0
lag_sum 0.2
"""


def test_a_trend_is_per_hour_and_is_not_moved_by_an_outlier() -> None:
    hours = [number / 60 for number in range(60)]
    values = [50.0 + 2.0 * hour for hour in hours]
    values[30] = 500.0
    found = trend_of(hours, values, 0.95)
    assert found.slope == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high


def test_what_grows_in_this_process_is_read() -> None:
    pid = os.getpid()
    memory, files = rollup_mib(pid), open_files(pid)
    assert memory["Rss"] >= memory["Pss_Anon"] > 1
    assert threads(pid) >= 1
    with open(os.devnull):
        assert open_files(pid) == files + 1


def test_a_metric_is_summed_over_its_labels() -> None:
    assert sum_of(PAGE, b"headway_aboard") == 3
    assert sum_of(PAGE, b"headway_tasks") == 7
    assert sum_of(PAGE, b"headway_held", missing=0.0) == 0
    with pytest.raises(SystemExit, match="headway_held"):
        sum_of(PAGE, b"headway_held")


def test_a_quantile_is_of_what_was_counted_between_two_looks() -> None:
    buckets = buckets_of(PAGE, b"lag")
    assert buckets == {0.001: 10, 0.01: 30, math.inf: 31}
    before = {0.001: 10.0, 0.01: 10.0, math.inf: 10.0}  # since then 20 up to 0.01 and one above
    assert quantile_between({}, buckets, 10 / 31) == pytest.approx(0.001)
    assert quantile_between(before, buckets, 10 / 21) == pytest.approx(0.0055)
    assert quantile_between(before, buckets, 0.99) == math.inf
    assert math.isnan(quantile_between(buckets, buckets, 0.99))
    assert math.isnan(quantile_between({}, {}, 0.99))
