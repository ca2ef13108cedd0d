"""All of `headway distill` on a small scale: a tiny teacher, its student, and real vLLM that loads the result.

The model learns nothing in a minute. The test checks that every step accepts the output of the step before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from headway.config import load
from headway.distill.fit import weigh
from headway.distill.losses import read_losses
from headway.distill.training_env import run_script, training_python
from headway.evals.task_files import write_tasks
from headway.evals.tool_calls import Task, hermes, right_answer
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.engines import TOOL_PARSER
from runs.students.routine import routine_tasks

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]  # the first run creates an environment
ROOT = Path(__file__).parent.parent.parent
CONFIG = """\
[[models]]
name = "tiny"
[[models.replicas]]
url = "http://127.0.0.1:8001"
[models.engine]
weights = "teacher"
"""


def headway(folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-m", "headway", "distill", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return routine_tasks("train", 24, 0)


@pytest.fixture(scope="module")
def folder(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tasks, a tiny model with random weights, the right answers and the model's answers."""
    folder = tmp_path_factory.mktemp("distill")
    write_tasks(folder / "tasks.jsonl", tasks)
    rows = [{"messages": one.messages, "tools": one.tools, "answer": hermes(right_answer(one))} for one in tasks]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    smollm2 = ensure_smollm2(ensure_cpu_engine(print), print)
    script = Path(__file__).with_name("make_tiny_llama.py")
    subprocess.run([training_python(print), script, smollm2, folder / "tiny"], check=True, capture_output=True)
    collect_from_vllm(folder, "tiny")
    return folder


def collect_from_vllm(folder: Path, model: str) -> None:
    command = cpu_vllm(ensure_cpu_engine(print))
    engine = LocalEngine(
        command, str(folder / model), "tiny", free_port(), 8, on_cpu=True, core=0, extra_args=TOOL_PARSER
    )
    with EngineProcess(engine) as process:
        process.wait_ready(300)
        asked = ("tasks.jsonl", "--url", process.url, "--model", "tiny", "--tier", "default", "--max-tokens", 24)
        said = headway(folder, "collect", *asked, "--yes")
    assert "24 answers" in said, said


def test_from_a_teacher_to_a_student_that_an_engine_serves(folder: Path, tasks: list[Task]) -> None:
    one_thread = ("--threads", 1, "--learning-rate", 0.003)
    rows = ("--rows", "rows.jsonl")
    headway(folder, "train", "tiny", *rows, "--hermes", "--epochs", 4, "--out", "tuned", *one_thread)
    said = headway(folder, "cut", "tuned/model", *rows, "--layers", 2, "--by-heart", "tasks.jsonl", "--threads", 1)
    assert "kept layers [0, " in said
    assert "4]" in said
    short = ("--pack-tokens", 64)  # its rows are short: longer packs would leave hardly a step
    headway(folder, "train", "student", *rows, "--epochs", 4, "--out", "sft", *short, *one_thread)
    taught = ("--rows", "answers.jsonl", "--teacher-share", 0.8, *short)
    distil = ("train", "sft/model", *taught, "--out", "distilled", *one_thread)
    headway(folder, *distil, "--epochs", 4)
    losses = read_losses(folder / "distilled" / "losses.csv")
    assert losses[-1][1] < losses[0][1]
    assert (folder / "distilled" / "losses.svg").stat().st_size > 1000

    headway(folder, *distil, "--epochs", 8)
    longer = read_losses(folder / "distilled" / "losses.csv")
    assert longer[: len(losses)] == losses, "it did not resume from its checkpoint"
    assert longer[-1][0] > losses[-1][0]

    said = headway(folder, "quantise", "distilled/model", "--out", "int8")
    assert weigh(folder / "int8").file_bytes < weigh(folder / "distilled" / "model").file_bytes
    assert "wse-3" in headway(folder, "fit", "int8")
    (folder / "headway.toml").write_text(CONFIG)
    url = f"http://127.0.0.1:{free_port()}"
    headway(folder, "publish", "int8", "--model", "tiny", "--url", url, "--draft-tokens", 2)
    spark = load(folder / "headway.toml").models[1]
    assert spark.name == "tiny-spark"
    assert spark.engine is not None
    answer_on_vllm(spark.engine.weights, tasks[0])


def test_the_distance_of_a_model_to_itself_is_zero(folder: Path) -> None:
    """vLLM's log-probabilities match the trainer's at the same tokens, except for the rounding of bf16."""
    said = settings_for(folder, "tiny", "self", rows="answers.jsonl", teacher_share=1.0)
    done = run_script(training_python(print), "train", said, lambda _said: None)
    assert abs(done["loss"]) < 0.02


def test_packing_does_not_change_the_loss(folder: Path) -> None:
    losses = []
    for limit, batch in ((1, 24), (1024, 24)):  # eager attention, then fused
        said = settings_for(folder, "tiny", f"packed-{limit}", pack_tokens=limit, batch=batch)
        losses.append(run_script(training_python(print), "train", said, lambda _said: None)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.005)


def settings_for(folder: Path, model: str, out: str, rows: str = "rows.jsonl", **more: Any) -> dict[str, Any]:
    """Settings of a training that does not change the model; the tests only look at its loss."""
    paths = {"model": str(folder / model), "rows": [str(folder / rows)], "out": str(folder / out)}
    return {**paths, "learning_rate": 0.0, "threads": 1, **more}


def answer_on_vllm(weights: str, task: Task) -> None:
    """The engine loads the int8 model and uses its template: tools known by heart cost no prompt tokens."""
    command = cpu_vllm(ensure_cpu_engine(print))
    engine = LocalEngine(command, weights, "tiny-spark", free_port(), 4, on_cpu=True, core=1, extra_args=TOOL_PARSER)
    with EngineProcess(engine) as process:
        process.wait_ready(300)
        with OpenAI(base_url=process.url + "/v1", api_key="none", max_retries=0) as sdk:
            asked: Any = {"model": "tiny-spark", "messages": task.messages, "tools": task.tools, "max_tokens": 8}
            answer = sdk.chat.completions.create(**asked, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert answer.usage.prompt_tokens < 60, "the tools are in the prompt"
