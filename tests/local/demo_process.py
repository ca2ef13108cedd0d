"""`headway demo` as a process, what is pasted from it, and what is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from headway.local.engine_process import free_port


class DemoProcess:
    """Its output goes into a pipe and is read as it comes."""

    def __init__(self, *options: str) -> None:
        # A shell starts background jobs with SIGINT ignored, and then all that they start ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway", "demo", "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        """Returns the exit code; the output is complete then."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.close()
        return code

    def close(self) -> None:
        """Can be called again."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def paste(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tiers_proved(said: str) -> list[str]:
    """Of the proofs in a printed answer, in JSON or as Python shows it."""
    return re.findall(r"""["']tier_served["']: ?["'](\w+)["']""", said)


def processes_of(cache: Path) -> list[int]:
    """All that were started with this HEADWAY_CACHE."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"HEADWAY_CACHE={cache}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def assert_all_ended(cache: Path) -> None:
    """The last to end are the engines' guards, which say that the engines have ended just before."""
    deadline = time.monotonic() + 10
    while left := processes_of(cache):
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        time.sleep(0.02)
