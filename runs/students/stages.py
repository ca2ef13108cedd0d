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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import uvloop
from rich.console import Console

from headway.config import load
from headway.distill.card import tally
from headway.distill.collect import Collected, Teacher, collect, question_of, read_questions
from headway.distill.publish import Spark, publish
from headway.distill.student import cut_student as cut_from
from headway.distill.template import hermes_template
from headway.distill.training_env import run_script, training_python
from headway.evals.task_files import numbered_rows, read_tasks
from headway.evals.tool_calls import hermes, judge_text, right_answer
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.streams import process
from runs.measure.token_times import TimedStream, timed_call
from runs.students.tasks import vocabulary_of, write_sets

console = Console(width=120)
PARSED = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", "2048")
TEACHER, SEATS, ANSWER_TOKENS = "assistant", 64, 128
MAX_TOKENS, TOP_LOGPROBS = 1024, 10
STANDARD_STREAMS, SPARK_STREAMS, SPEED_STREAMS = 64, 1, 16
MIN_ARRIVALS = 8  # events: with fewer a speed says little


@dataclass(frozen=True)
class Sizes:
    """What is trained on and for how long; `tiny` is for trying the stages, and shows nothing."""

    teacher_routine: int = 5000
    teacher_hard: int = 600
    student_routine: int = 5000
    student_hard: int = 120
    test_routine: int = 600
    test_hard: int = 10_000
    layers: int = 10  # of 30: 64 of 134.5 million parameters
    measured_on: int = 24
    first_epochs: float = 1.75
    more_epochs: float = 0.9
    seeds: int = 2
    generations: int = 4
    keep_wrong: bool = False  # a teacher that learnt next to nothing is never right


TINY = Sizes(16, 8, 24, 8, 8, 6, 10, 2, 1.0, 1.0, 2, 1, keep_wrong=True)


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

    def minutes(self, stages: Iterable[str]) -> float:
        return sum(float(json.loads((self.folder / f"{name}.json").read_text())["minutes"]) for name in stages)

    def train(self, model: Path, rows: list[str], out: str, **more: Any) -> dict[str, Any]:
        settings = {
            "model": str(model),
            "rows": [str(self.folder / one) for one in rows],
            "out": str(self.folder / out),
            "max_tokens": MAX_TOKENS,
            "threads": self.threads,
            # Words that no row has keep their place: 45 % were right with a frozen embedding, 32 % with a trained one.
            "train_embedding": False,
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
    words = vocabulary_of(work.base)
    counts = write_sets(work.folder, sizes.teacher_routine + sizes.student_routine, sizes.test_routine, 0, words)
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
    template = hermes_template(words_again=True)
    return work.train(work.base, ["tuning.jsonl"], "teacher", batch=2, template=template)


def collect_answers(work: Work) -> dict[str, Any]:
    """The teacher's answers and likely tokens through Headway's own endpoint, on flex seats of an engine per core."""
    port = free_port()
    with contextlib.ExitStack() as running:
        places = range(len(work.cores))
        engines = [running.enter_context(engine_of(work, work.model("teacher"), TEACHER, place)) for place in places]
        config = work.folder / "collect.toml"
        config.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "{TEACHER}"\n[[models.tiers]]\nname = "standard"\n'
            f'[[models.tiers]]\nname = "flex"\nmax_hold_s = 600.0\n'
            + "".join(f'[[models.replicas]]\nurl = "{engine.url}"\nseats = {SEATS}\n' for engine in engines)
        )
        with gateway_of(config, port) as url:
            teacher = Teacher(url, TEACHER, "flex", ANSWER_TOKENS, top_logprobs=TOP_LOGPROBS)
            questions, _ = read_questions(work.folder / "prompts.jsonl", teacher)
            got = collect(teacher, questions, work.folder / "answers.jsonl", SEATS * len(engines), _silent)
    return {"answers": got.answered, "output_tokens": got.output_tokens, "refused": len(got.refused)}


def keep_right(work: Work) -> dict[str, int]:
    """Of the teacher's answers those that are right: its mistakes are nothing to learn."""
    known = {}
    teacher = Teacher("", TEACHER, "flex", ANSWER_TOKENS, top_logprobs=TOP_LOGPROBS)
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
        count=work.sizes.measured_on, template=hermes_template(by_heart, words_again=True), threads=work.threads,
    )  # fmt: skip
    return asdict(done)


def train_students(work: Work) -> list[dict[str, Any]]:
    """Every seed at once, on a core of its own."""
    with ThreadPoolExecutor(len(work.cores)) as pool:
        return list(pool.map(lambda seed: _train_student(work, seed), range(work.sizes.seeds)))


def _train_student(work: Work, seed: int) -> dict[str, Any]:
    """The same first epochs; then the same number more with the answers alone, and with the teacher's distribution."""
    sizes = work.sizes
    first, rows = f"first-{seed}", ["rows.jsonl"]
    # Its rows are short: little is shared, and a long pack's attention would cost more than the padding it saves.
    always: dict[str, Any] = {"seed": seed, "threads": 1, "batch": 4, "pack_tokens": 256}
    work.train(work.model("cut"), rows, first, epochs=sizes.first_epochs, learning_rate=1e-3, **always)
    always |= {"epochs": sizes.more_epochs, "learning_rate": 4e-4}
    sft = work.train(work.model(first), rows, f"sft-{seed}", **always)
    distilled = work.train(work.model(first), rows, f"student-{seed}", teacher_share=0.8, **always)
    return {"sft_loss": sft.get("loss"), "distilled_loss": distilled.get("loss")}


def quantise(work: Work, name: str, to: str) -> dict[str, Any]:
    settings = {"model": str(work.model(name)), "to": str(work.folder / to)}
    return run_script(work.training, "quantise", settings, lambda _said: None)


def count_all_mistakes(work: Work, names: list[str]) -> dict[str, dict[str, dict[str, int]]]:
    """Several models at once, each on a core of its own."""
    places: SimpleQueue[int] = SimpleQueue()
    for place in range(len(work.cores)):
        places.put(place)

    def count(name: str) -> dict[str, dict[str, int]]:
        place = places.get()
        try:
            return dict(work.once(f"mistakes-{name}", lambda: _count_mistakes(work, name, place), 3))
        finally:
            places.put(place)

    with ThreadPoolExecutor(len(work.cores)) as pool:
        return dict(zip(names, pool.map(count, names), strict=True))


def _count_mistakes(work: Work, name: str, place: int) -> dict[str, dict[str, int]]:
    """All held-out tasks on real vLLM, greedy, with the engine's own parser."""
    found: dict[str, dict[str, int]] = {}
    limits = {"routine-test": work.sizes.test_routine, "hard-test": work.sizes.test_hard}
    with engine_of(work, work.model(name), name, place) as engine:
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
    """Each model alone on one core, with routine calls: one stream, and sixteen."""
    rows = []
    for name in ("teacher", "student-0", "student-int8"):
        with engine_of(work, work.model(name), name) as engine:
            for streams in (1, SPEED_STREAMS):
                uvloop.run(_calls(work, engine.url, name, streams, 1))  # the first of a size are slower
                calls = uvloop.run(_calls(work, engine.url, name, streams, work.sizes.generations))
                tps = [one.speed_tps for one in calls]
                rows.append({"model": name, "streams": streams, "stream_tps": statistics.median(tps), "all": tps})
    return rows


def spark_beside_standard(work: Work, best: str) -> dict[str, Any]:
    """Published as an owner would: spark calls while the full model's engine is full of standard streams."""
    port, path = free_port(), work.folder / "headway.toml"
    with (
        engine_of(work, work.model("teacher"), TEACHER, 0) as full,
        engine_of(work, work.model(best), f"{TEACHER}-spark", 1) as small,
    ):
        path.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "{TEACHER}"\n[[models.replicas]]\nurl = "{full.url}"\n'
            f'seats = {SEATS}\n[models.engine]\nweights = "{work.model("teacher")}"\n'
        )
        publish(path, TEACHER, Spark(str(work.model(best)), small.url, SPEED_STREAMS), None, load)
        with gateway_of(path, port) as url:
            standard, spark = uvloop.run(_both(work, url))
    tps = {"standard": [one.speed_tps for one in standard], "spark": [one.speed_tps for one in spark]}
    return {
        "model": best,
        "standard_tps": statistics.median(tps["standard"]),
        "spark_tps": statistics.median(tps["spark"]),
        "standard_streams": STANDARD_STREAMS,
        "spark_streams": SPARK_STREAMS,
        "all": tps,
    }


async def _both(work: Work, url: str) -> tuple[list[TimedStream], list[TimedStream]]:
    """Standard streams for as long as the spark calls take, and only those that ended meanwhile are counted."""
    rounds = 8 * work.sizes.generations
    busy = asyncio.create_task(_calls(work, url, TEACHER, STANDARD_STREAMS, rounds))
    await asyncio.sleep(15)  # until they are all aboard
    began = time.perf_counter()
    spark = await _calls(work, url, f"{TEACHER}-spark", SPARK_STREAMS, 2 * rounds)
    ended, still_busy = time.perf_counter(), not busy.done()
    if not still_busy:
        raise RuntimeError("the standard load ended before the spark calls did: the comparison would be unfair")
    standard = await busy
    return [one for one in standard if began <= one.arrivals[-1][0] <= ended], spark


async def _calls(work: Work, url: str, model: str, streams: int, rounds: int) -> list[TimedStream]:
    """Routine calls, so many at once; whoever has its answer asks the next."""
    tasks = read_tasks(work.folder / "routine-test.jsonl")
    numbers = iter(range(streams * rounds))
    done: list[TimedStream] = []

    async def one_after_the_other() -> None:
        for number in numbers:
            task = tasks[number % len(tasks)]
            asked = {"model": model, "messages": task.messages, "tools": task.tools, "ignore_eos": False}
            stream = await timed_call(url, ANSWER_TOKENS, asked)
            if len(stream.arrivals) > MIN_ARRIVALS:
                done.append(stream)

    await asyncio.gather(*[one_after_the_other() for _ in range(streams)])
    return done


@contextlib.contextmanager
def engine_of(work: Work, model: Path, name: str, place: int = 0) -> Iterator[EngineProcess]:
    """On the first of the cores, or at another place among them."""
    core = work.cores[place % len(work.cores)]
    engine = LocalEngine(
        cpu_vllm(work.engine), str(model), name, free_port(), SEATS, on_cpu=True, core=core, extra_args=PARSED
    )
    with EngineProcess(engine) as running:
        running.wait_ready(300)
        yield running


@contextlib.contextmanager
def gateway_of(config: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    with process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"{url}/ready"):
        yield url


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _silent(_now: Collected) -> None:
    pass
