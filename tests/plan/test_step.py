"""The step: physics that must hold whatever the coefficients are."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from headway.plan.chips import CHIPS, Precision, this_cpu
from headway.plan.models import CONFIGS, model_shape
from headway.plan.step import COEFFICIENTS, Engine, Setup, Speculation, prompt_tps, seconds_per_token, terms

LLAMA = Setup(model_shape("llama-3.1-70b"), CHIPS["h200"], 8, "fp8")


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_step_never_gets_shorter_with_the_batch(model: str, chip: str) -> None:
    setup = Setup(model_shape(model), CHIPS[chip], 8, "fp8", speculation=Speculation(2, 0.7))
    seconds = [seconds_per_token(setup, batch) for batch in (1, 2, 4, 8, 16, 64, 256, 512, 1024, 4096)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_every_part_has_a_coefficient() -> None:
    for engine in get_args(Engine):
        assert terms(replace(LLAMA, engine=engine), 4).keys() <= COEFFICIENTS.keys()


def test_fixed_costs_are_most_of_a_small_batch() -> None:
    """A roofline says 2 ms; real engines take 6 to 9."""
    parts = terms(LLAMA, 4)
    roofline_s = parts["weights"] + parts["context"]
    assert 0.006 < seconds_per_token(LLAMA, 4) < 0.009
    assert roofline_s < 0.0025


def test_more_chips_are_faster_and_prompts_cost() -> None:
    one, two = (seconds_per_token(replace(LLAMA, chips=n), 8) for n in (1, 2))
    assert two < one
    assert seconds_per_token(LLAMA, 64, with_prompts=False) < seconds_per_token(LLAMA, 64)
    assert 10_000 < prompt_tps(LLAMA) < 120_000


def test_a_latent_cannot_be_split_over_chips() -> None:
    setup = Setup(model_shape("deepseek-v3"), CHIPS["b200"], 4, "fp8")
    assert terms(setup, 8)["context"] == terms(replace(setup, chips=8), 8)["context"]


def test_speculation_helps_most_where_steps_are_long_and_light() -> None:
    assert Speculation(3, 0.8).tokens_per_step == pytest.approx(2.952)
    assert Speculation(3, 1.0).tokens_per_step == 4
    drafted = replace(LLAMA, speculation=Speculation(3, 0.8))
    gain = {batch: seconds_per_token(LLAMA, batch) / seconds_per_token(drafted, batch) for batch in (1, 512)}
    assert gain[1] > 2
    assert gain[512] < gain[1]


def test_a_precision_the_chip_lacks_is_computed_wider() -> None:
    assert CHIPS["h100"].tflops("fp4") == CHIPS["h100"].tflops("fp8")
    assert CHIPS["a100"].tflops("fp8") == CHIPS["a100"].tflops("bf16")
    precisions: tuple[Precision, ...] = ("bf16", "fp8", "int8", "fp4", "int4")
    for chip in CHIPS.values():
        assert all(chip.tflops(precision) > 0 for precision in precisions)
        assert chip.source


def test_sram_is_latency_and_this_cpu_is_slow() -> None:
    small = model_shape("llama-3.1-8b")
    wafer = Setup(small, CHIPS["wse-3"], 1, "bf16", prompt_tokens=128)
    assert seconds_per_token(wafer, 1) == pytest.approx(32 * 22.5e-6)
    assert seconds_per_token(wafer, 1000) > seconds_per_token(wafer, 1)
    cpu = Setup(model_shape("smollm2-135m"), this_cpu(), 1, "bf16")
    assert seconds_per_token(cpu, 1) > 0.05
