"""An auto model on real vLLM, called with the official SDK: one engine is the student, the other the full model.

Both have the same weights, so both give the same answers and the audits must agree. tests/runs/test_e2e_relays.py runs
this file's tests on scripted engines.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from headway.auto.calibration import write_calibration
from headway.auto.gate import Gate, GateCalibration, Isotonic
from headway.auto.risk import Judged
from headway.engines.vllm import read_metrics
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess, free_port
from tests.e2e.conftest import SEATS, SPARK_NAME, get, serve_command, wait_until

pytestmark = pytest.mark.engine
OWNER, TENANT = "hw-the-owner", "hw-a-tenant"
CONFIG = """\
[gateway]
port = {port}
key_hashes = ["{owner}"]
probe_interval_s = 0.5
stall_s = 20.0
[ledger]
store = "sqlite:///{folder}/books.db"
spool = "{folder}/spool"
[[models]]
name = "{model}"
[[models.tiers]]
name = "standard"
[[models.tiers]]
name = "flex"
[[models.replicas]]
url = "{full}"
seats = {seats}
[models.auto]
calibration = "{calibration}"
audit_share = 1.0
[[models]]
name = "{spark}"
[[models.replicas]]
url = "{student}"
seats = {seats}
"""
SCHEMA = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog", "bird"]}}, "required": ["animal"]}
WANTED: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
ASK: Any = [{"role": "user", "content": "Which animal barks? Answer in JSON."}]


@contextmanager
def serving_auto(full: str, student: str, folder: Path) -> Iterator[str]:
    """A gateway in front of these engines, with books that have a key for TENANT."""
    port, calibration = free_port(), folder / "auto.json"
    gate = Gate({"structured": Isotonic([-100.0, 0.0], [0.9, 1.0])})
    certain = [Judged(1.0, is_excess=False)] * 1000
    write_calibration(calibration, GateCalibration(SPARK_NAME, MODEL, "2026-11-15", gate, certain))
    store = SQLiteStore(folder / "books.db")
    store.migrate()
    store.put_key(Key(id="tenant", hash=key_hash(TENANT.encode())))
    store.close()
    config = folder / "headway.toml"
    config.write_text(
        CONFIG.format(port=port, owner=key_hash(OWNER.encode()), folder=folder, model=MODEL, spark=SPARK_NAME,
                      full=full, student=student, seats=SEATS, calibration=calibration)
    )  # fmt: skip
    process = subprocess.Popen(serve_command(config))
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        """Both engines are up, and the gate knows its audits: until then the full model answers."""
        try:
            page = get(url + "/metrics", OWNER)
        except OSError:  # refused, or not answered in time
            return False
        return read_metrics(page, (b"headway_replica_open", b"headway_auto_gate_open")) == (2.0, 1.0)

    try:
        wait_until("both engines and the gate are up", is_up)
        yield url
    finally:
        process.terminate()
        exit_code = process.wait(30)
    assert exit_code == 0


@pytest.fixture(scope="module")
def auto_url(engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    full, student = (engine.url for engine in engines)
    with serving_auto(full, student, tmp_path_factory.mktemp("auto")) as url:
        yield url


@pytest.fixture
def sdk(auto_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=auto_url + "/v1", api_key=TENANT, max_retries=0) as client:
        yield client


def audits(url: str, verdict: str) -> float:
    start = b'headway_auto_audits_total{model="%b-auto",verdict="%b"}' % (MODEL.encode(), verdict.encode())
    lines = [line for line in get(url + "/metrics", OWNER).splitlines() if line.startswith(start)]
    return float(lines[0].rsplit(b" ", 1)[1]) if lines else 0.0


def test_a_structured_answer_is_scored_released_and_audited(auto_url: str, sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model=f"{MODEL}-auto", messages=ASK, response_format=WANTED, temperature=0, max_tokens=40
    )
    assert answer.usage is not None
    proof = answer.usage.model_dump()["headway"]
    assert (proof["rung"], proof["escalated"]) == ("student", None)
    assert json.loads(answer.choices[0].message.content or "")["animal"] in ("cat", "dog", "bird")
    assert answer.choices[0].logprobs is None
    wait_until("the audit is done", lambda: audits(auto_url, "same") == 1)
    assert audits(auto_url, "differs") == 0


def test_a_held_answer_is_streamed_if_the_client_asked_for_a_stream(sdk: OpenAI) -> None:
    text, rungs = "", []
    for event in sdk.chat.completions.create(
        model=f"{MODEL}-auto", messages=ASK, response_format=WANTED, temperature=0, max_tokens=40, stream=True,
        stream_options={"include_usage": True},
    ):  # fmt: skip
        text += "".join(choice.delta.content or "" for choice in event.choices)
        rungs += [event.usage.model_dump()["headway"]["rung"]] if event.usage is not None else []
    assert json.loads(text)["animal"] in ("cat", "dog", "bird")
    assert rungs == ["student"]


def test_the_full_model_serves_truncated_answers_and_free_text(sdk: OpenAI) -> None:
    cut = sdk.chat.completions.create(
        model=f"{MODEL}-auto", messages=ASK, response_format=WANTED, temperature=0, max_tokens=2
    )
    free = sdk.chat.completions.create(model=f"{MODEL}-auto", messages=ASK, temperature=0, max_tokens=4)
    said = [one.usage.model_dump()["headway"] for one in (cut, free) if one.usage is not None]
    assert [(one["rung"], one["escalated"]) for one in said] == [("full", "cut off"), ("full", "free text")]
