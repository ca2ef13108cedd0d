"""Compares a student's size with memories it could run from: this CPU's caches and main memory, HBM, SRAM.

Decoding reads all weights once per step, so the memory's bandwidth gives the minimum time of a step: bytes ÷ bytes per
second. Only a measurement shows whether a cache really holds them: other processes use it too, and a virtual machine
sees caches that it shares.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

from headway.errors import SetupError
from headway.plan.chips import CHIPS, this_cpu

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SIZES = {"K": 2**10, "M": 2**20, "G": 2**30}
MAX_HEADER_BYTES = 100 * 2**20
CHIPS_SHOWN = ("h200", "wse-3", "groq-v1", "groq-lp30")


@dataclass(frozen=True, slots=True)
class Weights:
    """Size of a model. A step does not read an embedding that is not also the output head: it looks up single rows."""

    params: int
    file_bytes: int
    step_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """A memory. `bytes_per_s` is None if it is not known."""

    name: str
    size_bytes: float
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryFit:
    place: Place
    needed: int  # number of such memories
    least_step_ms: float | None  # to read the weights once from this memory

    @property
    def holds(self) -> bool:
        return self.needed == 1


def weigh(model: Path) -> Weights:
    """Read the sizes from the headers of the model's safetensors files, without its weights."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise SetupError(f"{model} has no .safetensors file: it is not the folder of a model.")
    params = file_bytes = step_bytes = 0
    tied = _is_tied(model)
    for file in files:
        for name, (shape, size_bytes) in _tensors(file).items():
            # The scales of quantised weights are not parameters of the model.
            params += 0 if name.endswith("_scale") else prod(shape)
            file_bytes += size_bytes
            step_bytes += 0 if "embed_tokens" in name and not tied else size_bytes
    return Weights(params, file_bytes, step_bytes)


def places() -> list[Place]:
    cpu = this_cpu()
    here = [*cpu_caches(), Place("this machine's memory", cpu.memory_gb * 1e9, cpu.memory_tb_s * 1e12)]
    chips = [
        Place(f"{chip.name} ({chip.kind.upper()})", chip.memory_gb * 1e9, chip.memory_tb_s * 1e12)
        for chip in (CHIPS[name] for name in CHIPS_SHOWN)
    ]
    return here + chips


def cpu_caches(folder: Path = CPU_CACHES) -> list[Place]:
    """The L2 and larger data caches that the kernel reports, smallest first. Empty if it reports none."""
    found = []
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and level != "1" and size[-1:] in SIZES:
            found.append(Place(f"this CPU's L{level}", int(size[:-1]) * SIZES[size[-1]]))
    return sorted(found, key=lambda place: place.size_bytes)


def fits(weights: Weights, where: list[Place]) -> list[MemoryFit]:
    return [
        MemoryFit(
            place,
            ceil(weights.file_bytes / place.size_bytes),
            None if place.bytes_per_s is None else weights.step_bytes / place.bytes_per_s * 1000,
        )
        for place in where
    ]


def _tensors(file: Path) -> dict[str, tuple[list[int], int]]:
    try:
        with file.open("rb") as opened:
            [length] = struct.unpack("<Q", opened.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError("the header is too long")
            header = json.loads(opened.read(length))
        return {
            name: (one["shape"], one["data_offsets"][1] - one["data_offsets"][0])
            for name, one in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise SetupError(f"{file} cannot be read as safetensors ({error}).") from error


def _is_tied(model: Path) -> bool:
    try:
        return bool(json.loads((model / "config.json").read_text()).get("tie_word_embeddings", False))
    except (OSError, ValueError) as error:
        raise SetupError(f"{model / 'config.json'} cannot be read ({error}).") from error
