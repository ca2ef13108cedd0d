"""The curve: that three points are enough for its form, and that the batch for a floor is the largest that keeps it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.curve import Curve, fit

PARTS = st.floats(0.0, 0.01)
CURVES = st.builds(Curve, st.floats(0.001, 0.05), PARTS, PARTS)


@given(CURVES)
def test_three_points_give_back_the_curve(curve: Curve) -> None:
    fitted = fit([(batch, curve.seconds_per_token(batch)) for batch in (1, 8, 64)])
    for batch in (1, 2, 4, 16, 32, 64, 128):
        assert fitted.seconds_per_token(batch) == pytest.approx(curve.seconds_per_token(batch), rel=1e-3)


@given(CURVES, st.floats(0.5, 500.0), st.integers(1, 512), st.floats(0.0, 0.5))
def test_the_batch_for_a_floor_is_the_largest_that_keeps_it(
    curve: Curve, floor_tps: float, seats: int, margin: float
) -> None:
    batch = curve.largest_batch(floor_tps, seats, margin)
    assert 0 <= batch <= seats
    wanted = floor_tps * (1 + margin)
    if batch:
        assert curve.speed_tps(batch) >= wanted * (1 - 1e-9)
    if batch < seats:
        assert curve.speed_tps(batch + 1) < wanted * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(1, 256), st.floats(0.001, 1.0)), min_size=1, max_size=8))
def test_whatever_is_measured_the_curve_never_falls(points: list[tuple[int, float]]) -> None:
    curve = fit(points)
    times = [curve.seconds_per_token(batch) for batch in range(1, 300)]
    assert all(before <= after for before, after in pairwise(times))
    assert times[0] > 0


def test_a_measured_frontier_of_a_small_model_on_a_cpu() -> None:
    """Tokens per second per stream of a 135M model on one core: three of seven points predict the others."""
    measured = {1: 21.8, 2: 22.4, 4: 18.1, 8: 17.2, 16: 13.2, 32: 10.4, 64: 9.6}
    curve = fit([(batch, 1 / measured[batch]) for batch in (1, 8, 64)])
    errors = [abs(curve.speed_tps(batch) / tps - 1) for batch, tps in measured.items()]
    assert max(errors) < 0.19
    assert sum(errors) / len(errors) < 0.07


@given(CURVES, st.floats(0.0, 1e-5), st.integers(1, 64), st.integers(100, 100_000))
def test_one_long_point_gives_back_the_part_of_the_context(curve: Curve, e: float, batch: int, context: int) -> None:
    curve.e = e
    points = [(batch, curve.seconds_per_token(batch)) for batch in (1, 8, 64)]
    long_point = (batch, curve.seconds_per_token(batch, batch * context), context)
    fitted = fit(points, [long_point])
    assert (fitted.a, fitted.c, fitted.d) == (fit(points).a, fit(points).c, fit(points).d)
    assert fitted.seconds_per_token(4, 9_999) == pytest.approx(curve.seconds_per_token(4, 9_999), rel=0.01)


def test_context_never_makes_a_step_shorter() -> None:
    points = [(1, 0.010), (8, 0.020)]
    assert fit(points, [(8, 0.018, 4_000)]).e == 0.0  # measured with noise
    assert fit(points).e == 0.0
    between = fit(points, [(8, 0.030, 4_000), (8, 0.040, 4_000)]).e
    assert 0.010 / 32_000 < between < 0.020 / 32_000


def test_a_slower_curve_is_slower_with_context_too() -> None:
    assert Curve(0.01, 0.001, 0.001, 1e-6).slower(2.0).seconds_per_token(4, 1_000) == pytest.approx(0.034)


def test_one_point_is_flat_and_nonsense_is_refused() -> None:
    assert fit([(4, 0.02)]).seconds_per_token(64) == pytest.approx(0.02)
    for nonsense in ([], [(0, 0.1)], [(1, 0.0)], [(1, -1.0)]):
        with pytest.raises(ValueError, match="a curve needs points"):
            fit(nonsense)
    for long_nonsense in ((0, 0.1, 10), (1, 0.0, 10), (1, 0.1, 0)):
        with pytest.raises(ValueError, match="a long point needs"):
            fit([(1, 0.1)], [long_nonsense])
