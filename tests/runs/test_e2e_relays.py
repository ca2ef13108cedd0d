"""What runs/e2e-relays.sh relies on, without vLLM: the fixtures of the end-to-end tests start relays when they are told to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.config import Config
from headway.deciding import check_can_be_shared
from headway.dispatch.record import replay
from headway.engines.vllm import read_metrics
from headway.errors import SetupError
from runs.cell.end_to_end import LEFT_OUT, RELAYS, Watch
from runs.cell.relays import processes_of
from tests.bench.mock_process import mock_engine
from tests.e2e import conftest

E2E = Path(conftest.__file__).parent


@pytest.fixture
def relays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "RELAYS", RELAYS)


@pytest.mark.usefixtures("relays")
def test_a_gateway_of_the_end_to_end_tests_has_relays(tmp_path: Path) -> None:
    with mock_engine(5, "1:2", options=("--model", "m")) as url:
        replica = f'[[models.replicas]]\nurl = "{url}"\nseats = 8\n'
        gateway = conftest.start_gateway_of(f'[[models]]\nname = "m"\n{replica}', 1, tmp_path)
        try:
            assert set(processes_of(gateway.process.pid)) == {"dispatcher", "relay-1", "relay-2"}
            said = gateway.openai.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "two words"}], max_tokens=5
            )
            assert said.usage is not None
            assert said.usage.completion_tokens == 5
            conftest.wait_until("the call is counted", lambda: calls_of(gateway) == 1)
        finally:
            code = gateway.stop()
    assert code == 0
    assert replay(gateway.record).first_difference is None


def calls_of(gateway: conftest.GatewayProcess) -> float:
    return read_metrics(conftest.get(gateway.url + "/metrics"), (b"headway_calls_total",))[0]


def test_without_being_told_a_gateway_is_one_process(tmp_path: Path) -> None:
    assert conftest.RELAYS == 1
    assert "--relays" not in conftest.serve_command(tmp_path / "headway.toml")


def test_every_gateway_of_the_end_to_end_tests_is_started_by_that_command() -> None:
    assert [path.name for path in sorted(E2E.glob("*.py")) if '"serve"' in path.read_text()] == ["conftest.py"]


def test_no_end_to_end_test_builds_a_gateway_in_its_own_process() -> None:
    """Such a test would not be of relays, whatever the run says."""
    builds = re.compile(r"make_gateway|running_gateway|run_gateway|Gateway\(")
    assert [path.name for path in sorted(E2E.glob("*.py")) if builds.search(path.read_text())] == []


@pytest.mark.usefixtures("relays")
def test_the_run_counts_gateways_with_and_without_relays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: object) -> None:
        watch.on_audit("subprocess.Popen", ("python", command, None, None))

    watch = Watch()
    watch.pytest_runtest_logstart("starts its own")
    start(conftest.serve_command(tmp_path, "--record", "run.jsonl"))
    start(["python", "-m", "headway", "replay", "run.jsonl"])
    start("vllm serve")
    monkeypatch.setattr(conftest, "RELAYS", 1)
    start(conftest.serve_command(tmp_path))
    watch.pytest_runtest_logreport(report("starts its own", "call", "passed"))
    figures = watch.figures()
    assert (figures.with_relays, figures.without_relays, figures.through) == (1, 1, 1)


def report(nodeid: str, when: str, outcome: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid, 0, nodeid), {}, outcome, None, when)  # type: ignore[arg-type]


def test_a_test_has_passed_if_all_its_parts_have() -> None:
    watch = Watch()
    outcomes = {
        "good": ("passed", "passed", "passed"),
        "no fixture": ("failed", "", "passed"),
        "wrong": ("passed", "failed", "passed"),
        "left a process": ("passed", "passed", "failed"),
        "not here": ("skipped", "", "passed"),
    }
    for nodeid, parts in outcomes.items():
        for when, outcome in zip(("setup", "call", "teardown"), parts, strict=True):
            if outcome:
                watch.pytest_runtest_logreport(report(nodeid, when, outcome))
    assert watch.figures().outcomes == {"passed": 1, "failed": 3, "skipped": 1}


def test_what_is_left_out_is_what_relays_refuse() -> None:
    assert [Path(name).name for name in LEFT_OUT] == ["test_auto_on_vllm.py"]
    assert all((E2E.parents[1] / name).exists() for name in LEFT_OUT)
    full, student = ([{"url": f"http://127.0.0.1:{port}", "seats": 1}] for port in (8, 9))
    auto = {"name": "m", "replicas": full, "auto": {"calibration": "auto.json"}}
    with pytest.raises(SetupError, match="auto"):
        check_can_be_shared(Config.model_validate({"models": [auto, {"name": "m-spark", "replicas": student}]}))
