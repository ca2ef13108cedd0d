"""LiteLLM's proxy as a peer to measure. See runs/peers.sh.

What is set is what LiteLLM's page on production recommends, without what costs it time: one uvicorn worker on uvloop
(its default on Linux), LITELLM_LOG=ERROR, LITELLM_MODE=PRODUCTION, set_verbose and json_logs off, no database, no
Redis, no master key, no callbacks, no telemetry; retries as it has them by default. `disable_streaming_logging` is not
recommended there; it can only save it work. The engine is reached by its provider for vLLM, `hosted_vllm`. What it
prints, a line per call, goes to /dev/null.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runs.measure.streams import process
from runs.peers.peer import MODEL, Gateway, Progress, ensure_environment, environ

VERSION = "1.102.4"
SETTINGS = "one uvicorn worker, LITELLM_MODE=PRODUCTION, LITELLM_LOG=ERROR, no database, callbacks or streaming logs"
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


def litellm(progress: Progress) -> Gateway:
    """Makes its environment on first use (700 MB, about 4 minutes)."""
    command = str(ensure_environment("litellm", VERSION, progress) / "litellm")

    @contextmanager
    def start(port: int, engine_url: str, folder: Path) -> Iterator[int]:
        config = folder / "litellm.yaml"
        config.write_text(CONFIG.format(model=MODEL, engine_url=engine_url))
        # The price list that comes with it, not one from the network.
        env = environ(LITELLM_LOG="ERROR", LITELLM_MODE="PRODUCTION", LITELLM_LOCAL_MODEL_COST_MAP="True")
        arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        with process([command, *arguments], f"http://127.0.0.1:{port}/health/liveliness", env) as pid:
            yield pid

    return Gateway("LiteLLM", VERSION, SETTINGS, start)
