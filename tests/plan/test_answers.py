"""What fits, what it costs, and the multiple of a floor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.curve import fit
from headway.errors import SetupError
from headway.plan.answers import (
    CALIBRATED,
    SEEN,
    SRAM,
    UNSEEN,
    PricedFloor,
    band_of,
    cheapest,
    measured_offers,
    offers_of,
    planned_replica,
    quote,
)
from headway.plan.chips import CHIPS
from headway.plan.memory import fewest_chips, seats, splits, weights_held
from headway.plan.models import model_shape
from headway.plan.step import Setup, seconds_per_token

LLAMA = Setup(model_shape("llama-3.1-70b"), CHIPS["h200"], 1, "fp8")


def test_what_a_wafer_and_a_gpu_hold() -> None:
    """44 GB hold about 20 billion weights of two bytes or 40 of one; a sixth is kept for everything else."""
    small = model_shape("llama-3.1-8b")
    assert weights_held(CHIPS["wse-3"], "bf16", small) == pytest.approx(18.7, abs=0.1)
    assert weights_held(CHIPS["wse-3"], "int8", model_shape("glm-4.5")) == pytest.approx(37.2, abs=0.1)
    # What a model of 355 billion takes: ten wafers, or eight H100.
    large = Setup(model_shape("glm-4.5"), CHIPS["wse-3"], 1, "fp8")
    assert fewest_chips(large) == 10
    assert splits(replace(large, chip=CHIPS["h100"])) == [8]
    # Published deployments: 576 LPUs for 70 billion in bf16 with room to serve; this counts the weights' 85 %.
    lpus = fewest_chips(Setup(model_shape("llama-3.1-70b"), CHIPS["groq-v1"], 1, "int8"))
    assert 360 < lpus < 400


def test_seats_are_what_memory_leaves() -> None:
    assert splits(LLAMA) == [1, 2, 4, 8]
    one, two = seats(LLAMA), seats(replace(LLAMA, chips=2))
    assert 0 < one < two
    longer = replace(LLAMA, prompt_tokens=64_000)
    assert seats(longer) == 0 or seats(longer) < one
    assert seats(replace(LLAMA, chip=CHIPS["h100"])) == 0
    # A latent is whole on every chip: more chips free memory of weights only.
    latent = Setup(model_shape("deepseek-v3"), CHIPS["h200"], 8, "fp8", prompt_tokens=100_000)
    kept = latent.shape.kv_bytes(101_024, "fp8")
    assert seats(latent) * kept <= 141e9


def test_a_context_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(SetupError, match="does not fit a h200"):
        offers_of(replace(LLAMA, prompt_tokens=100_000_000))


def test_a_model_too_large_for_linked_chips_has_no_offer() -> None:
    assert offers_of(Setup(model_shape("deepseek-v3"), CHIPS["h100"], 1, "fp8")) == []


def test_the_cheapest_offer_keeps_the_floor_and_a_higher_floor_costs_more() -> None:
    offers = offers_of(LLAMA)
    found = [quote(offers, 40, floor, SEEN) for floor in (40, 60, 80, 100)]
    multiples = [one.multiple for one in found if one.multiple is not None]
    assert multiples[0] == 1.0
    assert multiples == sorted(multiples)
    assert len(multiples) == 4
    for one in found:
        assert one.offer is not None
        assert one.offer.stream_tps >= one.floor_tps
        assert one.lowest_multiple is not None
        assert one.multiple is not None
        assert one.lowest_multiple <= one.multiple <= (one.highest_multiple or float("inf"))
    assert quote(offers, 40, 1000, SEEN).offer is None
    assert quote(offers, 40, 1000, SEEN).multiple is None


def test_cost_in_money() -> None:
    offer = PricedFloor(chips=2, batch=64, stream_tps=40.0, cost_s=2 / (64 * 40.0))
    # Two chips at 2 dollars give 2,560 tok/s: 9.2 million an hour for 4 dollars.
    assert offer.per_mtok(2.0) == pytest.approx(4 / (2560 * 3600 / 1e6))
    assert offer.per_mtok(None) is None
    assert cheapest([offer], 41) is None


def test_bands_say_what_is_known() -> None:
    assert band_of(LLAMA) is SEEN
    assert band_of(replace(LLAMA, chip=CHIPS["mi300x"])) is UNSEEN
    assert band_of(replace(LLAMA, chip=CHIPS["gb200"], chips=16)) is UNSEEN
    assert band_of(replace(LLAMA, chip=CHIPS["wse-3"])) is SRAM
    sram = quote(offers_of(replace(LLAMA, chip=CHIPS["wse-3"])), 40, 100, SRAM)
    assert sram.multiple == 1.0
    assert sram.lowest_multiple is sram.highest_multiple is None


def test_a_measured_curve_takes_the_models_place() -> None:
    tps = {streams: 1 / (0.015 + 0.0005 * streams) for streams in (1, 8, 32)}
    offers = measured_offers(list(tps.items()))
    assert offers[-1].batch == 32
    found = quote(offers, tps[32] * 0.999, tps[8] * 0.999, CALIBRATED)
    assert found.offer is not None
    assert found.offer.batch == 8
    assert found.multiple == pytest.approx(32 * tps[32] / (8 * tps[8]))


def test_a_replica_for_the_fleet() -> None:
    setup = replace(LLAMA, chips=4)
    replica = planned_replica(setup)
    assert replica.seats == seats(setup)
    assert replica.points[-1][0] == replica.seats
    assert replica.price_hour == pytest.approx(4 * 2.05)
    assert replica.prompt_tps > 1000
    curve = fit(replica.points)
    for batch, seconds in replica.points:
        assert curve.seconds_per_token(batch) == pytest.approx(seconds, rel=0.08)
        assert seconds < seconds_per_token(setup, batch)
