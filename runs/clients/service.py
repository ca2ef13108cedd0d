"""What the clients call: a scripted engine that answers as programmed, and a gateway in front of it with a key.

The gateway has a ledger: clients of /v1/responses may name responses, or items of them, that they got before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.engines.vllm import read_metrics
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_process import free_port
from runs.clients.catalog import KEY, MODEL
from runs.measure.fetch import fetch
from runs.measure.streams import process
from runs.measure.witness import PROBE_ID_LENGTH, Record

OWNER_KEY = "hw-owner"  # for the metrics
MAX_MODEL_LEN = 200_000  # coding agents ask for long answers
# Claude Code asks for the names of its vendor's models.
CONFIG = """
[gateway]
port = {port}
cors_origins = ["{page_origin}"]
key_hashes = ["{owner_hash}"]

[ledger]
store = "sqlite:///{folder}/books.db"
spool = "{folder}/spool"

[[models]]
name = "{model}"
aliases = ["claude-*"]
max_model_len = {max_model_len}

[[models.replicas]]
url = "{engine_url}"
seats = 16
"""


@dataclass(frozen=True)
class Service:
    url: str
    engine_url: str
    page_origin: str  # from where web pages may call

    def count_calls(self) -> int:
        """The calls that reached the engine, without probes."""
        record = msgspec.json.decode(fetch(f"{self.engine_url}/scripted/record", timeout_s=10), type=Record)
        return sum(len(call_id) != PROBE_ID_LENGTH for call_id in record.requests)

    def count_socket_calls(self) -> int:
        """The calls that came to the gateway over a WebSocket."""
        page = fetch(f"{self.url}/metrics", timeout_s=10, key=OWNER_KEY)
        return int(read_metrics(page, (b"headway_socket_calls_total",))[0])


@contextmanager
def running_service(folder: Path, answers: Path) -> Iterator[Service]:
    port, engine_port = free_port(), free_port()
    page_origin = f"http://localhost:{free_port()}"
    engine_url = f"http://127.0.0.1:{engine_port}"
    config = folder / "headway.toml"
    config.write_text(
        CONFIG.format(
            port=port,
            folder=folder,
            page_origin=page_origin,
            owner_hash=key_hash(OWNER_KEY.encode()),
            model=MODEL,
            max_model_len=MAX_MODEL_LEN,
            engine_url=engine_url,
        )
    )
    store = SQLiteStore(folder / "books.db")
    store.migrate()
    store.put_key(Key(id="key-clients", hash=key_hash(KEY.encode())))
    store.close()
    engine = [sys.executable, "-m", "headway", "mock-engine", "--port", str(engine_port), "--model", MODEL]
    engine += ["--max-model-len", str(MAX_MODEL_LEN), "--answers", str(answers)]
    with (
        process(engine, f"{engine_url}/health"),
        process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"http://127.0.0.1:{port}/ready"),
    ):
        yield Service(f"http://127.0.0.1:{port}", engine_url, page_origin)
