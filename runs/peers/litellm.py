"""LiteLLM's proxy as a peer to measure: an environment of its own, and one process of it. See runs/peers.sh.

Nothing of Headway depends on it. All that is installed is pinned with its hash (runs/peers/litellm.txt). What is set
is what LiteLLM's page on production recommends, without what costs it time: one uvicorn worker on uvloop (its default
on Linux), LITELLM_LOG=ERROR, LITELLM_MODE=PRODUCTION, set_verbose and json_logs off, no database, no Redis, no master
key, no callbacks, no telemetry; retries as it has them by default. `disable_streaming_logging` is not recommended
there; it can only spare it work. The engine is reached by its provider for vLLM, `hosted_vllm`. What it prints, a line
per call, goes to /dev/null.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.local.engine_env import run_command
from headway.local.engine_process import cache_dir
from runs.measure.streams import process

VERSION = "1.102.4"
REQUIREMENTS = Path(__file__).with_name("litellm.txt")
CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: hosted_vllm/{model}, api_base: "{engine_url}/v1", api_key: none}}
litellm_settings:
  request_timeout: 600
  set_verbose: false
  json_logs: false
  telemetry: false
  disable_streaming_logging: true
"""


def ensure_litellm(progress: Callable[[str], None]) -> Path:
    """The `litellm` command of a finished environment; made on first use (700 MB, about 4 minutes)."""
    directory = cache_dir() / f"peers-litellm-{VERSION}"
    stamp, command = directory / "finished", directory / "bin" / "litellm"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
            return command
        here = (sys.version_info[:2], platform.system(), platform.machine())
        if here != ((3, 11), "Linux", "x86_64"):
            raise SystemExit(f"The pinned LiteLLM is for Python 3.11 on Linux, x86_64; this is {here}.")
        shutil.rmtree(directory, ignore_errors=True)
        progress("Creating an environment for LiteLLM")
        run_command([sys.executable, "-m", "venv", str(directory)], progress, lock_fd=lock.fileno())
        install = [str(directory / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-deps"]
        install += ["--require-hashes", "-r", str(REQUIREMENTS)]
        run_command(install, progress, lock_fd=lock.fileno())
        stamp.write_text(REQUIREMENTS.read_text())  # last: a half-made environment has none
    return command


@contextmanager
def litellm(command: Path, port: int, folder: Path, *, model: str, engine_url: str) -> Iterator[int]:
    config = folder / "litellm.yaml"
    config.write_text(CONFIG.format(model=model, engine_url=engine_url))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LITELLM_"))}
    # The price list that comes with it, not one from the network.
    env |= {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with process([str(command), *arguments], f"http://127.0.0.1:{port}/health/liveliness", env) as pid:
        yield pid
