"""Start, wait for and stop vLLM processes on this machine.

Knows: the vLLM flags that Headway needs, and how to tell that an engine is ready or dead. Does not know: how processes
are ended (guard.py), how vLLM is installed (engine_env.py does it for the CPU), or what is sent to the engine.

Invariant: an engine started here does not outlive its EngineProcess, nor this process.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headway.errors import SetupError
from headway.local.guard import DEFAULT_GRACE_S, GuardedProcess, group_members

POLL_INTERVAL_S = 0.1
HEALTH_TIMEOUT_S = 2.0
# vLLM's API server ignores SIGTERM while it loads, so waiting longer does not help.
LOADING_GRACE_S = 2.0
LOG_TAIL_LINES = 15

# "(EngineCore pid=42) INFO 01-31 12:00:00 [core.py:118] Loading" -> "Loading"; other lines are not shown.
LOG_LINE = re.compile(r"(?:\([^)]*\) )?INFO [\d-]+ [\d:]+ \[[^\]]*\] (.+)")


def cache_dir() -> Path:
    """Return the directory for what Headway can create again: engine environments, models, logs."""
    configured = os.environ.get("HEADWAY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "headway"


def free_port() -> int:
    """Return a loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free_port(port: int, option: str) -> None:
    """Raise SetupError if `port` is in use. `option` is the option that changes it."""
    with socket.socket() as probe:
        # A port whose last connections are still closing can be used by a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SetupError(f"Port {port} cannot be used ({error.strerror}). Choose another with {option}.") from None


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine to run. `command` is everything before the model: see `cpu_vllm` and `installed_vllm`."""

    command: tuple[str, ...]
    model: str  # a directory or a name on the Hugging Face Hub
    served_name: str
    port: int
    seats: int
    on_cpu: bool = False
    # The core that the CPU build uses. None leaves the choice to vLLM, which puts every engine of a small machine on
    # core 0: two engines on one machine need one core each.
    core: int | None = None
    gpu: str | None = None  # the GPU that vLLM sees, by its number. None: all of them
    extra_args: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    tensor_parallel: int = 1  # chips that the weights are split over
    prompt_chunk: int | None = None  # prompt tokens per step, at most
    speculation: dict[str, object] | None = None  # the value of vLLM's --speculative-config
    kv_events: dict[str, object] | None = None  # the value of vLLM's --kv-events-config

    def arguments(self) -> list[str]:
        flags = ["--host", self.host, "--port", str(self.port), "--served-model-name", self.served_name]
        # vLLM counts running requests as queued; the 8 beyond the seats are for the prober.
        flags += ["--max-num-seqs", str(self.seats), "--max-num-queued-reqs", str(self.seats + 8)]
        flags += ["--enable-per-request-metrics", "--enable-force-include-usage", "--enable-prompt-tokens-details"]
        flags.append("--enable-scale-out")  # has the endpoint that counts the tokens of a Responses prompt
        if self.on_cpu:
            flags.append("--enforce-eager")  # ready in 40 s instead of 150 s
            if "--dtype" not in self.extra_args and not _has_bf16_instructions():
                flags += ["--dtype", "float32"]
        if self.tensor_parallel > 1:
            flags += ["--tensor-parallel-size", str(self.tensor_parallel)]
        if self.prompt_chunk is not None:
            flags += ["--max-num-batched-tokens", str(self.prompt_chunk)]
        if self.speculation is not None:
            flags += ["--speculative-config", json.dumps(self.speculation)]
        if self.kv_events is not None:
            flags += ["--kv-events-config", json.dumps(self.kv_events)]
        return [*self.command, self.model, *flags, *self.extra_args]

    def environment(self) -> dict[str, str]:
        environment = dict(os.environ, VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
        if Path(self.model).is_dir():
            environment["HF_HUB_OFFLINE"] = "1"
        if self.on_cpu:
            environment["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB
            if self.core is not None:
                environment["VLLM_CPU_OMP_THREADS_BIND"] = str(self.core)
        if self.gpu is not None:
            environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.gpu}
        return environment


@functools.cache
def _has_bf16_instructions() -> bool:
    """Without them bf16 is emulated: 64 streams get two fifths of the speed that they have in float32, and prompts are
    read in three times the time."""
    try:
        return re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", Path("/proc/cpuinfo").read_text("utf-8")) is not None
    except OSError:
        return True  # not Linux: leave the choice to vLLM


def cpu_vllm(python: Path) -> tuple[str, ...]:
    """Return the command of vllm-cpu. Its `vllm serve` fails, because it looks for the metadata of `vllm`."""
    return (str(python), "-m", "vllm.entrypoints.openai.api_server", "--model")


def installed_vllm(executable: str) -> tuple[str, ...]:
    return (executable, "serve")


class EngineProcess:
    """One engine and all of its processes: the API server, and the VLLM::EngineCore and VLLM::Worker under it."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{engine.port}"
        name = re.sub(r"[^\w.-]", "_", engine.served_name)
        self.log_path = cache_dir() / "logs" / f"{name}-{engine.port}.log"
        self._process: GuardedProcess | None = None
        self._was_ready = False

    @property
    def pid(self) -> int:
        """The API server's process id, which is also its process group's."""
        return self._started().pid

    def start(self) -> None:
        """Start the engine. It can be started again after `stop`."""
        if self._process is not None:
            raise RuntimeError("The engine is already started.")
        # Another process on the port would answer /health in place of our engine.
        require_free_port(self.engine.port, "--engine-port")
        self._was_ready = False
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            try:
                self._process = GuardedProcess(
                    self.engine.arguments(), env=self.engine.environment(), output=log.fileno()
                )
            except FileNotFoundError:
                raise SetupError(f"vLLM cannot be started.\n{self.end_of_log()}") from None

    def wait_ready(self, timeout_s: float, on_progress: Callable[[str], None] | None = None) -> None:
        """Return once /health answers 200. `on_progress` gets the newest message of vLLM's log."""
        wait_all_ready([self], timeout_s, lambda _, message: on_progress(message) if on_progress else None)

    def is_ready(self) -> bool:
        """Whether /health answers 200. Raises SetupError if the engine has exited."""
        if self._healthy():
            self._was_ready = True
            return True
        if self._started().has_exited():
            raise SetupError(f"vLLM exited before it was ready.\n{self.end_of_log()}")
        return False

    def newest_message(self) -> str:
        """Of vLLM's log; empty if its last line is none."""
        newest = LOG_LINE.match("".join(self._log_tail(1)))
        return newest[1] if newest is not None else ""

    def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """End every process of the engine with SIGTERM, then SIGKILL after `grace_s`. Does nothing if not started."""
        if self._process is not None:
            process, self._process = self._process, None
            process.end(grace_s if self._was_ready else min(grace_s, LOADING_GRACE_S))

    def kill(self) -> None:
        """Kill the API server alone with SIGKILL, as a crash would. Its children live until `stop`."""
        os.kill(self.pid, signal.SIGKILL)

    def engine_core_pid(self) -> int:
        """Return the process that schedules and computes. Without it the engine accepts calls and does not answer."""
        for pid in group_members(self.pid):
            # The kernel keeps 15 characters of a name.
            if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::EngineCor"):
                return pid
        raise RuntimeError(f"No VLLM::EngineCore runs under process {self.pid}.")

    def _started(self) -> GuardedProcess:
        if self._process is None:
            raise RuntimeError("The engine is not started.")
        return self._process

    def _healthy(self) -> bool:
        # Not urllib, which would use a configured proxy.
        connection = http.client.HTTPConnection("127.0.0.1", self.engine.port, timeout=HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _log_tail(self, lines: int) -> list[str]:
        with self.log_path.open("rb") as log:
            size_bytes = log.seek(0, os.SEEK_END)
            log.seek(max(0, size_bytes - lines * 1000))
            text = log.read().decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def end_of_log(self) -> str:
        tail = "\n".join(f"  {line}" for line in self._log_tail(LOG_TAIL_LINES)) or "  (nothing)"
        return (
            f"Its log ends with:\n{tail}\n"
            f"The whole log is {self.log_path}. Fix the cause (memory, a flag that this vLLM does not know, "
            "a model that it cannot load) and try again."
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def wait_all_ready(
    engines: Sequence[EngineProcess], timeout_s: float, on_progress: Callable[[int, str], None] | None = None
) -> None:
    """Return once all are ready. `on_progress` gets the number of an engine and the newest message of its log."""
    deadline = time.monotonic() + timeout_s
    waiting, shown = dict(enumerate(engines)), dict.fromkeys(range(len(engines)), "")
    while waiting := {number: engine for number, engine in waiting.items() if not engine.is_ready()}:
        for number, engine in waiting.items():
            if time.monotonic() > deadline:
                raise SetupError(f"vLLM was not ready after {timeout_s:.0f} s.\n{engine.end_of_log()}")
            message = engine.newest_message()
            if on_progress is not None and message not in ("", shown[number]):
                shown[number] = message
                on_progress(number, message)
        time.sleep(POLL_INTERVAL_S)
