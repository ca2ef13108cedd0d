"""The stages of runs/distill.sh: each takes what earlier ones left in the work folder, and is done once.

Everything the owner of a model would do with `headway distill` is done with the same functions; what is here besides is
the demonstration's own: its tasks, its teacher, and its engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from distill_tasks import write_sets
from rich.console import Console
from streams import process

from headway.bench.client import Client
from headway.bench.load import Load, closed_loop
from headway.config import load
from headway.distill.card import tally
from headway.distill.collect import Collected, Teacher, collect, question_of, read_questions
from headway.distill.publish import Spark, publish
from headway.distill.student import cut_student as cut_from
from headway.distill.template import hermes_template
from headway.distill.training_env import run_script, training_python
from headway.evals.task_files import numbered_rows, read_tasks
from headway.evals.tool_calls import hermes, judge_text, right_answer
from headway.fleet.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.fleet.local import EngineProcess, LocalEngine, cpu_vllm, free_port

console = Console(width=120)
PARSED = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", "2048")
TEACHER, SEATS, ANSWER_TOKENS = "assistant", 64, 128
MAX_TOKENS = 1024
STANDARD_STREAMS, SPARK_STREAMS, SPEED_STREAMS = 64, 1, 16


@dataclass(frozen=True)
class Sizes:
    """What is trained on and for how long; `tiny` is for trying the stages, and shows nothing."""

    teacher_routine: int = 600
    teacher_hard: int = 10_000
    student_routine: int = 2000
    student_hard: int = 300
    test_routine: int = 600
    test_hard: int = 10_000
    layers: int = 10  # of 30: 64 of 134.5 million parameters
    measured_on: int = 48
    teacher_epochs: float = 1.0
    first_epochs: float = 1.0
    more_epochs: float = 2.0
    seeds: int = 2
    generations: int = 4
    keep_wrong: bool = False  # a teacher that learnt next to nothing is never right


TINY = Sizes(16, 8, 24, 8, 8, 6, 10, 2, 1.0, 1.0, 1.0, 2, 1, keep_wrong=True)


class Work:
    """The folder, and which stages are done there with which result."""

    def __init__(self, folder: Path, sizes: Sizes, cores: list[int]) -> None:
        self.folder, self.sizes, self.cores = folder, sizes, cores
        self.threads = len(cores)
        folder.mkdir(parents=True, exist_ok=True)
        self.engine = ensure_cpu_engine(console.print)
        self.base = ensure_smollm2(self.engine, console.print)
        self.training = training_python(console.print)

    def once(self, name: str, stage: Callable[[], Any], minutes: float) -> Any:
        """Run a stage unless its result is there. `minutes` is what it is expected to take at full size."""
        path = self.folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())["result"]
        console.rule(f"{name}: about {minutes:g} min")
        began = time.monotonic()
        result = stage()
        took_min = (time.monotonic() - began) / 60
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps({"result": result, "minutes": round(took_min, 2)}))
        unfinished.replace(path)
        console.print(f"{name}: {took_min:.1f} min (about {minutes:g} expected)")
        return result

    def minutes(self) -> float:
        rows = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        return float(sum(row.get("minutes", 0.0) for row in rows if isinstance(row, dict)))

    def train(self, model: Path, rows: list[str], out: str, **more: Any) -> dict[str, Any]:
        settings = {
            "model": str(model),
            "rows": [str(self.folder / one) for one in rows],
            "out": str(self.folder / out),
            "max_tokens": MAX_TOKENS,
            "threads": self.threads,
            "teacher_cache": str(self.folder),
            **more,
        }
        return run_script(self.training, "train", settings, _say_seldom())

    def model(self, name: str) -> Path:
        return self.folder / name if (self.folder / name / "config.json").exists() else self.folder / name / "model"


def _say_seldom(every_s: float = 60.0) -> Callable[[Any], None]:
    said_at = 0.0

    def say(what: Any) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > every_s or "step" not in what:
            said_at = time.monotonic()
            console.print(str(dict(what)), highlight=False, markup=False)

    return say


def make_tasks(work: Work) -> dict[str, int]:
    sizes = work.sizes
    counts = write_sets(work.folder, sizes.teacher_routine + sizes.student_routine, sizes.test_routine, 0)
    routine = read_tasks(work.folder / "routine-train.jsonl")
    hard = read_tasks(work.folder / "hard-train.jsonl")
    tuning = [*routine[: sizes.teacher_routine], *hard[: sizes.teacher_hard]]
    rows = [{"messages": t.messages, "tools": t.tools, "answer": hermes(right_answer(t))} for t in tuning]
    _write_rows(work.folder / "tuning.jsonl", rows)
    asked = [*routine[sizes.teacher_routine :], *hard[: sizes.student_hard]]
    _write_rows(
        work.folder / "prompts.jsonl", [{"messages": t.messages, "tools": t.tools, "tags": t.tags} for t in asked]
    )
    return {**counts, "tuning": len(rows), "asked": len(asked)}


def tune_teacher(work: Work) -> dict[str, Any]:
    return work.train(
        work.base, ["tuning.jsonl"], "teacher", epochs=work.sizes.teacher_epochs, template=hermes_template()
    )


def collect_answers(work: Work) -> dict[str, Any]:
    """The teacher's answers through Headway's own endpoint, on flex seats."""
    port = free_port()
    with _engine(work, work.model("teacher"), TEACHER) as engine:
        config = work.folder / "collect.toml"
        config.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "{TEACHER}"\n[[models.tiers]]\nname = "standard"\n'
            f'[[models.tiers]]\nname = "flex"\nmax_hold_s = 600.0\n'
            f'[[models.replicas]]\nurl = "{engine.url}"\nseats = {SEATS}\n'
        )
        with _gateway(config, port) as url:
            teacher = Teacher(url, TEACHER, "flex", ANSWER_TOKENS)
            questions, _ = read_questions(work.folder / "prompts.jsonl", teacher)
            got = collect(teacher, questions, work.folder / "answers.jsonl", SEATS, _silent)
    return {"answers": got.answered, "output_tokens": got.output_tokens, "refused": len(got.refused)}


def keep_right(work: Work) -> dict[str, int]:
    """Of the teacher's answers those that are right: its mistakes are nothing to learn."""
    known = {}
    teacher = Teacher("", TEACHER, "flex", ANSWER_TOKENS)
    for name in ("routine-train", "hard-train"):
        for task in read_tasks(work.folder / f"{name}.jsonl"):
            known[question_of(teacher, task.messages, task.tools, {}).key] = task
    rows = [row for _, row in numbered_rows(work.folder / "answers.jsonl")]
    right = [row for row in rows if judge_text(known[row["key"]], row["answer"]) == "right"]
    _write_rows(work.folder / "rows.jsonl", rows if work.sizes.keep_wrong else right)
    return {"of": len(rows), "kept": len(right)}


def cut_student(work: Work) -> dict[str, Any]:
    by_heart = sorted({tool["function"]["name"] for tool in read_tasks(work.folder / "routine-test.jsonl")[0].tools})
    done = cut_from(
        work.training, work.model("teacher"), work.folder / "rows.jsonl", work.sizes.layers, work.folder / "cut",
        count=work.sizes.measured_on, template=hermes_template(by_heart), threads=work.threads,
    )  # fmt: skip
    return asdict(done)


def train_students(work: Work, seed: int) -> dict[str, Any]:
    """The same first epochs; then the same number more with the answers alone, and with the teacher's distribution."""
    sizes = work.sizes
    first, rows = f"first-{seed}", ["rows.jsonl"]
    batch = 16  # its rows are short: with fewer, a step is mostly the optimizer's
    work.train(work.model("cut"), rows, first, epochs=sizes.first_epochs, seed=seed, batch=batch, learning_rate=5e-4)
    more: dict[str, Any] = {"epochs": sizes.more_epochs, "seed": seed, "batch": batch, "learning_rate": 3e-4}
    sft = work.train(work.model(first), rows, f"sft-{seed}", **more)
    distilled = work.train(work.model(first), rows, f"student-{seed}", teacher=str(work.model("teacher")), **more)
    return {"sft_loss": sft.get("loss"), "distilled_loss": distilled.get("loss")}


def quantise(work: Work) -> dict[str, Any]:
    settings = {"model": str(work.model("student-0")), "to": str(work.folder / "student-int8")}
    return run_script(work.training, "quantise", settings, lambda _said: None)


def count_mistakes(work: Work, name: str) -> dict[str, dict[str, int]]:
    """All held-out tasks on real vLLM, greedy, with the engine's own parser."""
    found: dict[str, dict[str, int]] = {}
    limits = {"routine-test": work.sizes.test_routine, "hard-test": work.sizes.test_hard}
    with _engine(work, work.model(name), name) as engine:
        asked = Teacher(engine.url, name, "default", ANSWER_TOKENS)
        for task_set, limit in limits.items():
            tasks = read_tasks(work.folder / f"{task_set}.jsonl")[:limit]
            questions = {task.id: question_of(asked, task.messages, task.tools, {}) for task in tasks}
            out = work.folder / f"{task_set}-{name}.jsonl"
            collect(asked, list({one.key: one for one in questions.values()}.values()), out, SEATS, _silent)
            answers = {row["key"]: row["answer"] for _, row in numbered_rows(out)}
            # A prompt the engine refused is a task that was not done.
            verdicts = [judge_text(task, answers.get(questions[task.id].key, "")) for task in tasks]
            found[task_set.removesuffix("-test")] = tally(verdicts)
    return found


def measure_speeds(work: Work) -> list[dict[str, Any]]:
    """Each model alone on one core: one stream, and sixteen."""
    rows = []
    for name in ("teacher", "student-0", "student-int8"):
        with _engine(work, work.model(name), name) as engine:
            for streams in (1, SPEED_STREAMS):
                run = uvloop.run(_loaded(engine.url, name, streams, work.sizes.generations))
                tps = [1 / one.tpot_s for one in run.complete]
                rows.append({"model": name, "streams": streams, "stream_tps": statistics.median(tps), "all": tps})
    return rows


def spark_beside_standard(work: Work, best: str) -> dict[str, Any]:
    """Published as an owner would: spark calls while the full model's engine is full of standard streams."""
    port, path = free_port(), work.folder / "headway.toml"
    with (
        _engine(work, work.model("teacher"), TEACHER, 0) as full,
        _engine(work, work.model(best), f"{TEACHER}-spark", 1) as small,
    ):
        path.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "{TEACHER}"\n[[models.replicas]]\nurl = "{full.url}"\n'
            f'seats = {SEATS}\n[models.engine]\nweights = "{work.model("teacher")}"\n'
        )
        publish(path, TEACHER, Spark(str(work.model(best)), small.url, SPEED_STREAMS), None, load)
        with _gateway(path, port) as url:
            standard, spark = uvloop.run(_both(url, work.sizes.generations))
    return {
        "standard_tps": statistics.median(1 / one.tpot_s for one in standard.complete),
        "spark_tps": statistics.median(1 / one.tpot_s for one in spark.complete),
        "standard_streams": STANDARD_STREAMS,
        "spark_streams": SPARK_STREAMS,
    }


async def _both(url: str, generations: int) -> tuple[Load, Load]:
    busy = asyncio.create_task(_loaded(url, TEACHER, STANDARD_STREAMS, 4 * generations))
    await asyncio.sleep(15)  # until they are all aboard
    spark = await _loaded(url, f"{TEACHER}-spark", SPARK_STREAMS, 4 * generations)
    still_busy = not busy.done()
    standard = await busy
    if not still_busy:
        raise RuntimeError("the standard load ended before the spark calls did: the comparison would be unfair")
    return standard, spark


async def _loaded(url: str, model: str, streams: int, generations: int) -> Load:
    client = Client(url, model, seed=int(time.time()))
    try:
        return await closed_loop(client, streams, 64, 64, generations)
    finally:
        client.close()


@contextlib.contextmanager
def _engine(work: Work, model: Path, name: str, place: int = 0) -> Iterator[EngineProcess]:
    """On the first of the cores, or at another place among them."""
    core = work.cores[place % len(work.cores)]
    engine = LocalEngine(
        cpu_vllm(work.engine), str(model), name, free_port(), SEATS, on_cpu=True, core=core, extra_args=PARSED
    )
    with EngineProcess(engine) as running:
        running.wait_ready(300)
        yield running


@contextlib.contextmanager
def _gateway(config: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    with process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"{url}/ready"):
        yield url


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _silent(_now: Collected) -> None:
    pass
