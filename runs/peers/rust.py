"""smg (Shepherd Model Gateway) and vllm-router, two routers in Rust from PyPI, as peers to measure. See runs/peers.sh.

Both run as they come, with one thread per core, retries, circuit breaker, health checks and Prometheus metrics, but
for what can only save them work here. The policy is `round_robin`: with one engine there is nothing to choose, and the
default, `cache_aware`, keeps a tree of prompts. smg logs at the level its page on logging recommends for production;
vllm-router, which reads `warning` as `info`, logs errors only; neither prints a line per call. smg keeps no history,
loads no tokenizer and does not poll the engine's load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headway.local.engine_process import free_port
from runs.measure.streams import process
from runs.peers.peer import Gateway, Progress, Start, ensure_environment, environ

SMG_VERSION, VLLM_ROUTER_VERSION = "1.13.0", "0.1.16"
SMG_FLAGS = (
    *("--policy", "round_robin", "--log-level", "warn", "--history-backend", "none"),
    *("--disable-tokenizer-autoload", "--disable-load-monitoring", "--disable-worker-overload-protection"),
)
VLLM_ROUTER_FLAGS = ("--policy", "round_robin", "--log-level", "error")


def smg(progress: Progress) -> Gateway:
    command = (str(ensure_environment("smg", SMG_VERSION, progress) / "smg"), "launch", *SMG_FLAGS)
    return Gateway("smg", SMG_VERSION, f"one thread per core, {' '.join(SMG_FLAGS)}", router(command))


def vllm_router(progress: Progress) -> Gateway:
    command = (
        str(ensure_environment("vllm-router", VLLM_ROUTER_VERSION, progress) / "vllm-router"),
        *VLLM_ROUTER_FLAGS,
    )
    settings = f"one thread per core, {' '.join(VLLM_ROUTER_FLAGS)}"
    return Gateway("vllm-router", VLLM_ROUTER_VERSION, settings, router(command))


def router(command: Sequence[str]) -> Start:
    @contextmanager
    def start(port: int, engine_url: str, folder: Path) -> Iterator[int]:
        addresses = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine_url]
        addresses += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        with process([*command, *addresses], f"http://127.0.0.1:{port}/readiness", environ()) as pid:
            yield pid

    return start
