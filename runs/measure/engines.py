"""Real vLLM engines for a run, one on each core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console

from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port


@contextlib.contextmanager
def two_smollm2(console: Console, seats: int, flags: tuple[str, ...] = (), niceness: int = 0) -> Iterator[list[str]]:
    """Start two engines with SmolLM2-135M, after installing what is missing. Yields their URLs when they are ready.
    `niceness` above 0 lets other processes on the same cores go first."""
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    command = ("nice", "-n", str(niceness), *cpu_vllm(python))
    with contextlib.ExitStack() as stack:
        engines = []
        for core in (0, 1):
            engine = LocalEngine(
                command, model, MODEL_NAME, free_port(), seats, on_cpu=True, core=core, extra_args=flags
            )
            engines.append(stack.enter_context(EngineProcess(engine)))
        with console.status("starting two engines (about a minute)"):
            for process in engines:
                process.wait_ready(300)
        yield [process.url for process in engines]
