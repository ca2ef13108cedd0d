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


def test_one_point_is_flat_and_nonsense_is_refused() -> None:
    assert fit([(4, 0.02)]).seconds_per_token(64) == pytest.approx(0.02)
    for nonsense in ([], [(0, 0.1)], [(1, 0.0)], [(1, -1.0)]):
        with pytest.raises(ValueError, match="a curve needs points"):
            fit(nonsense)
