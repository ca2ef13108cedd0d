"""A scripted engine in a process of its own, as a client meets it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def mock_engine(first_token_ms: float, step_ms: str, seats: int = 256, options: tuple[str, ...] = ()) -> Iterator[str]:
    command = [sys.executable, "-m", "headway", "mock-engine", "--port", "0", "--first-token-ms", str(first_token_ms)]
    command += ["--step-ms", step_ms, "--max-num-seqs", str(seats), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(" on ")[1].split()[0]
        finally:
            process.terminate()
