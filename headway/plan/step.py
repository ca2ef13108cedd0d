"""The step model: seconds per token of a stream when an engine runs `batch` streams.

    seconds = sum over parts of (coefficient x time of that part by the chip's data sheet)

The parts are weights, experts read, context read, prompts of other streams, activations, all-reduces, and fixed costs
per layer, expert and stream; a roofline alone (the first parts at 1.0) is four times too fast. runs/plan-accuracy.sh
fits the coefficients once, for all chips and models together, and prints them with their error. SRAM chips and CPUs
have one cost per layer instead, for which no measured curve is public.

Does not know money, memory limits or calls. Invariant: seconds never fall when the batch grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2
from typing import Literal

from headway.plan.chips import Chip, Precision
from headway.plan.gains import Gains
from headway.plan.shape import ModelShape

Engine = Literal["vllm", "sglang", "trtllm"]
US = 1e-6

# Factors on the time at peak (1.2: a sixth of the peak is lost) and microseconds, from `runs/plan-accuracy.sh`.
COEFFICIENTS: dict[str, float] = {
    "weights": 1.160,
    "experts": 1.035,
    "context": 1.192,
    "activations": 242.6,  # passes over them (norms, quantising, copies), each small and far from the peak
    "prompt_flops": 1.0,
    "prompt_attention": 3.638,
    "prompt_activations": 55.11,
    "all_reduce": 2.848,  # us per doubling of the chips
    "layer_vllm": 43.87,
    "layer_sglang": 39.19,
    "layer_trtllm": 36.38,
    "layer_quantised": 8.504,
    "layer_latent": 28.93,
    "layer_sparse": 83.11,  # seen in one model only (GLM-5, young kernels)
    "layer_linear": 39.97,  # seen in one model only (Qwen3.5)
    "layer_moe": 11.94,
    "expert": 0.1499,
    "stream_vllm": 13.70,
    "stream_sglang": 15.22,
    "stream_trtllm": 0.0,
}
# Costs of small kernels scale with the chip's bf16 peak; coefficients are for this one.
REFERENCE_TFLOPS = 2250.0
ATTENTION_HEAD = 128
# The share of its peak that an SRAM chip reaches with many streams. A guess: no figure is public.
SRAM_PEAK = 0.5


@dataclass(frozen=True, slots=True)
class Speculation:
    """`drafted` tokens per step, each accepted with `acceptance` if all before it are. Drafting one costs a layer."""

    drafted: int
    acceptance: float

    @property
    def tokens_per_step(self) -> float:
        if self.acceptance >= 1.0:
            return self.drafted + 1.0
        return float((1.0 - self.acceptance ** (self.drafted + 1)) / (1.0 - self.acceptance))


PLAIN = Speculation(0, 0.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is served: chips, precision, engine, and the lengths of calls."""

    shape: ModelShape
    chip: Chip
    chips: int
    precision: Precision
    engine: Engine = "vllm"
    prompt_tokens: int = 1024
    output_tokens: int = 1024
    expert_parallel: int = 1
    speculation: Speculation = PLAIN
    gains: Gains | None = None  # measured ones, of a drafter that is not modelled

    @property
    def context(self) -> float:
        """Mean tokens in a stream's context."""
        return self.prompt_tokens + self.output_tokens / 2


def seconds_per_token(setup: Setup, batch: float, *, with_prompts: bool = True) -> float:
    """Return the time per token of a stream. With prompts, all streams also wait for the prompts of new streams."""
    if setup.gains is not None:
        plain = replace(setup, gains=None)
        decoding_s = seconds_per_token(plain, batch, with_prompts=False)
        reading_s = seconds_per_token(plain, batch) - decoding_s if with_prompts else 0.0
        return decoding_s / setup.gains.at(batch) + reading_s
    spec = setup.speculation
    if setup.chip.layer_us is not None:
        step_s = _one_cost_per_layer(setup, batch, with_prompts=with_prompts)
    else:
        parts = terms(setup, batch)
        step_s = sum(
            COEFFICIENTS[name] * seconds
            for name, seconds in parts.items()
            if with_prompts or not name.startswith("prompt")
        )
    drafts_s = spec.drafted * step_s / setup.shape.layers
    return (step_s + drafts_s) / spec.tokens_per_step


def terms(setup: Setup, batch: float) -> dict[str, float]:
    """Return the seconds of each part of a step by the data sheet; for fixed costs, their number times 1 us."""
    shape, chip, n, spec = setup.shape, setup.chip, setup.chips, setup.speculation
    memory, peak, wide_peak = (x * 1e12 for x in (chip.memory_tb_s, chip.tflops(setup.precision), chip.tflops("bf16")))
    tokens = batch * (1 + spec.drafted)  # computed per step: draft tokens are verified together
    prompt = prompt_share(setup, batch)
    touched = shape.experts_touched(tokens)
    experts_s = shape.expert_bytes(tokens, setup.precision) / n / memory
    flops_s = 2.0 * shape.active_params * tokens / n / peak
    width_s = shape.layers * shape.hidden * 2.0 / memory  # one pass over a token's activations, not split over chips
    small = REFERENCE_TFLOPS * 1e12 / wide_peak * US
    parts = {
        # The longer of reading and multiplying counts.
        "weights": max(shape.always_bytes(setup.precision) / n / memory, flops_s - experts_s),
        "experts": experts_s,
        "context": batch * shape.kv_read_bytes(setup.context, setup.precision) / min(n, shape.kv_heads) / memory,
        "activations": tokens * width_s,
        "prompt_flops": prompt * 2.0 * shape.active_params / n / peak,
        "prompt_attention": prompt * _attention_flops(setup) / n / wide_peak,
        "prompt_activations": prompt * width_s,
        "all_reduce": 2 * shape.layers * log2(n) * US,
        "layer_latent": shape.layers * shape.is_latent * US,
        "layer_sparse": shape.layers * bool(shape.sparse_tokens) * US,
        "layer_linear": shape.linear_layers * US,
        "layer_quantised": shape.layers * (setup.precision != "bf16") * US,
        "layer_moe": shape.moe_layers * small,
        "expert": shape.moe_layers * touched / setup.expert_parallel * small,
    }
    parts[f"layer_{setup.engine}"] = shape.layers * US
    parts[f"stream_{setup.engine}"] = batch * US
    return parts


def prompt_share(setup: Setup, batch: float) -> float:
    """Return the prompt tokens per step that replace every stream that ends with a new one."""
    return batch * setup.speculation.tokens_per_step * setup.prompt_tokens / setup.output_tokens


def prompt_tps(setup: Setup) -> float:
    """Return prompt tokens per second without other load."""
    if setup.chip.layer_us is not None:
        return setup.chips * setup.chip.tflops(setup.precision) * 1e12 * SRAM_PEAK / (2.0 * setup.shape.active_params)
    parts = terms(setup, 1.0)
    a_step_s = sum(COEFFICIENTS[name] * seconds for name, seconds in parts.items() if name.startswith("prompt"))
    return prompt_share(setup, 1.0) / a_step_s


def _attention_flops(setup: Setup) -> float:
    """Return the FLOPs per prompt token, which attends to half of its prompt on average."""
    return 2.0 * setup.shape.heads * ATTENTION_HEAD * setup.shape.full_layers * setup.prompt_tokens


def _one_cost_per_layer(setup: Setup, batch: float, *, with_prompts: bool) -> float:
    """Return the longer of latency and compute. A CPU has no pipeline that overlaps them, so they add up."""
    shape, chip = setup.shape, setup.chip
    latency_s = shape.layers * (chip.layer_us or 0.0) * US
    tokens = batch * (1 + setup.speculation.drafted) + (prompt_share(setup, batch) if with_prompts else 0.0)
    peak = setup.chips * chip.tflops(setup.precision) * 1e12
    if chip.kind == "cpu":
        read_s = shape.always_bytes(setup.precision) + shape.expert_bytes(batch, setup.precision)
        read_s += batch * shape.kv_read_bytes(setup.context, setup.precision)
        return latency_s + read_s / (chip.memory_tb_s * 1e12) + 2.0 * shape.active_params * tokens / peak
    return max(latency_s, 2.0 * shape.active_params * tokens / (peak * SRAM_PEAK))
