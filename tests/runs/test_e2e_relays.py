"""What runs/e2e-relays.sh relies on, without vLLM: the fixtures of the end-to-end tests start relays when they are told to."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from headway.dispatch.record import replay
from headway.engines.vllm import read_metrics
from headway.local.engine_env import MODEL_NAME
from runs.cell.end_to_end import RELAYS, Watch
from runs.cell.relays import processes_of
from tests.bench.mock_process import mock_engine
from tests.e2e import conftest
from tests.e2e import test_auto_on_vllm as auto_on_vllm

E2E = Path(conftest.__file__).parent
# With a rule that has reasoning, these engines are asked for whole answers, and only those have log-probabilities here.
ANIMAL = """\
[[answers]]
when = { user_contains = "think" }
reasoning = "Let me see."
text = "A dog."
[[answers]]
text = '{"animal": "dog"}'
"""


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


@pytest.mark.parametrize("relays", [1, RELAYS], ids=["one process", "relays"])
def test_the_tests_of_the_auto_model_pass_on_scripted_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relays: int
) -> None:
    monkeypatch.setattr(conftest, "RELAYS", relays)
    answers = tmp_path / "answers.toml"
    answers.write_text(ANIMAL)
    with ExitStack() as stack:
        full, student = (
            stack.enter_context(mock_engine(5, "1:2", options=("--model", name, "--answers", str(answers))))
            for name in (MODEL_NAME, conftest.SPARK_NAME)
        )
        url = stack.enter_context(auto_on_vllm.serving_auto(full, student, tmp_path))
        sdk = stack.enter_context(OpenAI(base_url=url + "/v1", api_key=auto_on_vllm.TENANT, max_retries=0))
        auto_on_vllm.test_a_structured_answer_is_scored_released_and_audited(url, sdk)
        auto_on_vllm.test_a_held_answer_is_streamed_if_the_client_asked_for_a_stream(sdk)
        auto_on_vllm.test_the_full_model_serves_truncated_answers_and_free_text(sdk)


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
