"""The table of chips: memory, bandwidth, compute and rental price of each, with its source.

Peaks are dense (without structured sparsity) and for one chip; memory is what an engine can use. Only `this_cpu` is
measured here. The share of its peaks that a chip reaches is fitted on measurements in step.py.

Invariant: every chip names its source, which marks estimates as such; a price that is not public is None.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp8", "int8", "fp4", "int4"]
Kind = Literal["hbm", "sram", "cpu"]

# Compute units for each weight precision, best first: a chip that lacks one uses the next.
COMPUTED_IN: dict[Precision, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "int4": ("bf16",),  # weight-only: widened before the multiplication
}


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    kind: Kind
    memory_gb: float
    memory_tb_s: float
    dense_tflops: dict[str, float]
    link_gb_s: float  # to the other chips of its scale-up domain, one direction
    world: int  # chips in that domain; for SRAM chips, which form a pipeline, the maximum considered
    price_hour: float | None  # US dollars for one chip; None if it is not rented by the hour
    source: str
    # SRAM chips and CPUs: the time of a layer, independent of the batch. GPUs and TPUs use the fit in step.py.
    layer_us: float | None = None
    is_measured: bool = False  # whether step.py was fitted on this chip

    def tflops(self, precision: Precision) -> float:
        return next(self.dense_tflops[unit] for unit in COMPUTED_IN[precision] if unit in self.dense_tflops)


_SPECS = "memory, FLOPs, links: InferenceX gpu-specs.ts and AIConfigurator systems/*.yaml"
_RENT = "rent: InferenceX, 3 years, August 2026"
_NVIDIA = f"{_SPECS}; {_RENT}"
_TPU = "Google Cloud TPU documentation; list price: scaling book, ch. 8"
# A wafer at 2.5 million dollars over four years of hours: a press estimate of the price, not a quote.
_WAFER_HOUR = 2.5e6 / (4 * 8760)
_LPU_HOUR = 20e3 / (4 * 8760)


def _gpu(
    name: str, memory_gb: float, memory_tb_s: float, tflops: tuple[float, float, float], link: tuple[float, int],
    price_hour: float | None, source: str = _NVIDIA, *, is_measured: bool = False,
) -> Chip:  # fmt: skip
    bf16, fp8, fp4 = tflops
    dense = {unit: peak for unit, peak in (("bf16", bf16), ("fp8", fp8), ("fp4", fp4)) if peak}
    return Chip(name, "hbm", memory_gb, memory_tb_s, dense, *link, price_hour, source, is_measured=is_measured)


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _gpu("a100", 80, 2.039, (312, 0, 0), (300, 8), 1.50,
             "NVIDIA A100 data sheet; rent: 0.80 to 3.00, public listings of May 2026"),
        _gpu("h100", 80, 3.35, (989, 1979, 0), (450, 8), 1.78, is_measured=True),
        _gpu("h200", 141, 4.8, (989, 1979, 0), (450, 8), 2.05, is_measured=True),
        _gpu("b200", 180, 8.0, (2250, 4500, 9000), (900, 8), 2.60, is_measured=True),
        _gpu("b300", 268, 8.0, (2250, 4500, 13500), (900, 8), 3.00, is_measured=True),
        _gpu("gb200", 186, 8.0, (2500, 5000, 10000), (900, 72), 2.60),
        _gpu("gb300", 278, 8.0, (2500, 5000, 15000), (900, 72), 3.30),
        _gpu("mi300x", 192, 5.3, (1307, 2615, 0), (448, 8), 1.30),
        _gpu("mi325x", 256, 6.0, (1307, 2615, 0), (448, 8), 1.60),
        _gpu("mi355x", 288, 8.0, (2516, 5033, 10066), (538, 8), 2.10),
        # Google states link bandwidth for both directions; these are half of it.
        _gpu("tpu-v5e", 16, 0.819, (197, 0, 0), (200, 256), 1.20, _TPU),
        _gpu("tpu-v5p", 95, 2.765, (459, 459, 0), (600, 8960), 4.20, _TPU),
        _gpu("tpu-v6e", 32, 1.638, (918, 918, 0), (400, 256), 2.70, _TPU),
        _gpu("tpu7x", 206, 7.38, (2307, 4614, 0), (600, 9216), None,
             "Google Cloud TPU7x documentation: 192 GiB; no public price per hour"),
        Chip("wse-3", "sram", 44, 21_000, {"bf16": 12_500}, 150, 64, _WAFER_HOUR,
             "Cerebras WSE-3 data sheet: 44 GB SRAM, 21 PB/s, 125 PFLOPs sparse, dense a tenth of it (estimate); "
             "off-wafer 1.2 Tb/s; price: press estimate of 2 to 3 million dollars, over four years; a layer: 22.5 us, "
             "the middle of 17 (8B at 1,800 tok/s) and 28 (70B at 450 tok/s)", layer_us=22.5),
        Chip("groq-v1", "sram", 0.230, 80, {"bf16": 188, "int8": 750}, 330, 4096, _LPU_HOUR,
             "Groq: 230 MB SRAM, 80 TB/s, TechPowerUp; price: about 20,000 dollars a card, over four years; per layer: "
             "Llama-2-70B at 300 tok/s over 80 layers", layer_us=41.7),
        Chip("groq-lp30", "sram", 0.500, 150, {"fp8": 1230, "bf16": 615}, 1250, 256, None,
             "NVIDIA, Inside Groq 3 LPX: 500 MB SRAM, 150 TB/s, rack of 256; bf16 taken as half of fp8; no price; per "
             "layer: as Groq v1, unmeasured", layer_us=41.7),
    )
}  # fmt: skip


# Measured with vLLM on a CPU (docs/LOG.md, runs/frontier.sh): SmolLM2-135M on one core takes 60 ms for a step of 30
# layers with one stream, and 2.4 ms for each further stream. Rough: one model on one machine.
CPU_LAYER_US = 1900.0
CPU_CORE_TFLOPS = 0.11


def this_cpu() -> Chip:
    """Return this machine: its memory, its cores, and its measured copy bandwidth. Takes a tenth of a second."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = os.cpu_count() or 1
    return Chip(
        "cpu", "cpu", memory_gb, _copy_tb_s(), {"bf16": CPU_CORE_TFLOPS * cores}, 1.0, 1, None,
        "memory and bandwidth of this machine, measured now; the rest from one model on one machine",
        layer_us=CPU_LAYER_US,
    )  # fmt: skip


def _copy_tb_s(size: int = 1 << 26, repeats: int = 4) -> float:
    """Return the copy bandwidth of one core, reads and writes counted: a lower bound for an engine."""
    block = bytearray(size)
    target = memoryview(bytearray(size))
    best_s = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        target[:] = block
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * size / best_s / 1e12
