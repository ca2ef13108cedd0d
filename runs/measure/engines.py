"""Real vLLM engines for a run, one on each core."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console

from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port

TOOL_PARSER = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
READY_S = 300.0


@contextlib.contextmanager
def two_smollm2_processes(
    console: Console, seats: int, flags: tuple[str, ...] = (), niceness: int = 0
) -> Iterator[list[EngineProcess]]:
    """Start two engines with SmolLM2-135M, after installing what is missing. Yields them when they are ready.
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
                process.wait_ready(READY_S)
        yield engines


@contextlib.contextmanager
def two_smollm2(console: Console, seats: int, flags: tuple[str, ...] = (), niceness: int = 0) -> Iterator[list[str]]:
    """The same. Yields their URLs."""
    with two_smollm2_processes(console, seats, flags, niceness) as engines:
        yield [engine.url for engine in engines]
