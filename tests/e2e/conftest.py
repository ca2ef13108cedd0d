"""Two real vLLM engines, one per core, and a gateway in front of them, shared by all tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic import Anthropic
from openai import OpenAI

from headway.engines.vllm import read_metrics
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.engines import TOOL_PARSER

SEATS = 8
RELAYS = int(os.environ.get("HEADWAY_RELAYS", "1"))  # of each gateway; runs/e2e-relays.sh sets it
# An engine stands still if nothing comes out of it for this long, so it must be far above the longest step. On two cores
# with ten processes that want to run, a step of these engines took up to 2.8 s and a first token 3.8 s.
STALL_S = 20.0
SPARK_NAME = f"{MODEL_NAME}-spark"  # the engines answer to this name too, so that one can play the student
# A floor that any engine keeps: what is tested here is the path of a fast call, not the speed of a busy box.
TIERS = """\
[[models.tiers]]
name = "standard"
[[models.tiers]]
name = "fast"
floor_tps = 0.5
"""
CURVE = "curve = [[1, 20.0], [8, 15.0]]"


def get(url: str, key: str = "") -> bytes:
    """GET without a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with opener.open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        body: bytes = answer.read()
        return body


def running_on(engine: EngineProcess) -> float:
    """The number of requests that the engine reports as running or waiting."""
    running, waiting = read_metrics(
        get(engine.url + "/metrics"), (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
    )
    return running + waiting


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with engines of their own come first: beside the shared ones, which keep both cores busy, an engine takes
    minutes to start. Those of test_real_engine.py come last: they kill an engine and stop the shared gateway."""

    def place(item: pytest.Item) -> tuple[bool, bool]:
        return "engines" in getattr(item, "fixturenames", ()), item.path.name == "test_real_engine.py"

    items.sort(key=place)


def wait_until(what: str, holds: object, timeout_s: float = 60.0) -> None:
    assert callable(holds)
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


@dataclass
class GatewayProcess:
    process: subprocess.Popen[bytes]
    url: str
    log: Path
    record: Path

    def __post_init__(self) -> None:
        self.openai = OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)
        self.anthropic = Anthropic(base_url=self.url, api_key="none", max_retries=0)

    def stop(self) -> int:
        self.openai.close()
        self.anthropic.close()
        self.process.terminate()
        return self.process.wait(30)

    def open_replicas(self) -> float:
        return read_metrics(get(self.url + "/metrics"), (b"headway_replica_open",))[0]

    def aboard(self) -> float:
        return read_metrics(get(self.url + "/metrics"), (b"headway_aboard",))[0]


def warm(engine: EngineProcess) -> None:
    """vLLM compiles what log-probabilities need when it is first asked for them: 17 s without a sign of life on a free
    core, longer on a busy one, and the gateway under test waits STALL_S."""
    with OpenAI(base_url=engine.url + "/v1", api_key="none") as sdk:
        sdk.completions.create(model=MODEL_NAME, prompt="1", max_tokens=1, logprobs=1)


@pytest.fixture(scope="session")
def engines() -> Iterator[list[EngineProcess]]:
    python = ensure_cpu_engine(print)
    model = str(ensure_smollm2(python, print))
    command = cpu_vllm(python)
    made = [
        EngineProcess(
            LocalEngine(
                command,
                model,
                MODEL_NAME,
                free_port(),
                SEATS,
                on_cpu=True,
                core=core,
                extra_args=("--served-model-name", MODEL_NAME, SPARK_NAME, *TOOL_PARSER),
            )
        )
        for core in (0, 1)
    ]
    try:
        for engine in made:
            engine.start()
        for engine in made:
            engine.wait_ready(300)
            warm(engine)
        yield made
    finally:
        for engine in made:
            engine.stop()


def serve_command(config: Path, *options: str) -> list[str]:
    """The command of every gateway in this folder."""
    relays = ("--relays", str(RELAYS)) if RELAYS > 1 else ()
    return [sys.executable, "-m", "headway", "serve", "--config", str(config), *options, *relays]


def start_gateway(engines: list[EngineProcess], folder: Path) -> GatewayProcess:
    replicas = "".join(f'[[models.replicas]]\nurl = "{engine.url}"\nseats = {SEATS}\n{CURVE}\n' for engine in engines)
    return start_gateway_of(f'[[models]]\nname = "{MODEL_NAME}"\n{TIERS}{replicas}', len(engines), folder)


def start_gateway_of(models: str, replicas: int, folder: Path) -> GatewayProcess:
    """`models` are the tables of headway.toml."""
    port = free_port()
    config = folder / "headway.toml"
    config.write_text(f"[gateway]\nport = {port}\nprobe_interval_s = 0.5\nstall_s = {STALL_S}\n{models}")
    log, record = folder / "gateway.log", folder / "record.jsonl"
    with log.open("wb") as output:
        process = subprocess.Popen(serve_command(config, "--record", str(record)), stdout=output, stderr=output)
    gateway = GatewayProcess(process, f"http://127.0.0.1:{port}", log, record)

    def is_up() -> bool:
        try:
            return gateway.open_replicas() == replicas
        except OSError:  # relays share a port that takes connections before they do: then it times out
            return False

    wait_until("all replicas are up", is_up)
    return gateway


@pytest.fixture(scope="session")
def gateway(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    started = start_gateway(engines, tmp_path_factory.mktemp("gateway"))
    yield started
    started.stop()
