"""The stages of runs/distill.sh: each takes what earlier ones left in the work folder, and is done once (work.py).

Uses the functions behind `headway distill`. Only the tasks, the teacher and the engines are specific to this run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from headway.config import load
from headway.distill.card import tally
from headway.distill.collect import Collected, Teacher, collect, question_of, read_questions
from headway.distill.publish import Spark, publish
from headway.distill.student import cut_student as cut_from
from headway.distill.template import hermes_template
from headway.distill.training_env import run_script
from headway.evals.task_files import numbered_rows, read_tasks
from headway.evals.tool_calls import hermes, judge_text, right_answer
from headway.local.engine_process import free_port
from runs.measure.kept import Stage
from runs.measure.token_times import TimedStream, timed_call
from runs.students.tasks import vocabulary_of, write_sets
from runs.students.work import ANSWER_TOKENS, SEATS, TEACHER, Work, engine_of, gateway_of, keep

TOP_LOGPROBS = 10
STANDARD_STREAMS, SPARK_STREAMS, SPEED_STREAMS = 64, 1, 16
MIN_ARRIVALS = 8  # events: with fewer a speed says little
TEST_SETS = ("routine-test", "hard-test")


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
    """Collect the teacher's answers and likely tokens through Headway as flex calls, with one engine per core."""
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
            questions, _ = read_questions([work.folder / "prompts.jsonl"], teacher)
            got = collect(teacher, questions, work.folder / "answers.jsonl", SEATS * len(engines), _silent)
    return {"answers": got.answered, "output_tokens": got.output_tokens, "refused": len(got.refused)}


def keep_right(work: Work) -> dict[str, int]:
    """Keep the teacher's right answers: its mistakes should not be learned."""
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
    """Train all seeds at once, one per core."""
    with ThreadPoolExecutor(len(work.cores)) as pool:
        return list(pool.map(lambda seed: _train_student(work, seed), range(work.sizes.seeds)))


def _train_student(work: Work, seed: int) -> dict[str, Any]:
    """Train the same first epochs; then continue once with SFT and once with the teacher's distribution."""
    sizes = work.sizes
    first, rows = f"first-{seed}", ["rows.jsonl"]
    # The rows are short: they share little, and attention over a long pack costs more than the padding it saves.
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
    """A stage for each model; several at once, each on a core of its own."""

    def count(name: str) -> dict[str, dict[str, int]]:
        reads = (work.model(name), *(work.folder / f"{one}.jsonl" for one in TEST_SETS))
        makes = tuple(work.folder / f"{one}-{name}.jsonl" for one in TEST_SETS)
        stage = Stage(f"mistakes-{name}", count_mistakes, 3, (name,), reads=reads, makes=makes)
        return dict(keep(work, stage))

    with ThreadPoolExecutor(len(work.cores)) as pool:
        return dict(zip(names, pool.map(count, names), strict=True))


def count_mistakes(work: Work, name: str) -> dict[str, dict[str, int]]:
    """All held-out tasks on real vLLM, greedy, with the engine's own parser."""
    found: dict[str, dict[str, int]] = {}
    limits = (work.sizes.test_routine, work.sizes.test_hard)
    with work.a_core() as place, engine_of(work, work.model(name), name, place) as engine:
        asked = Teacher(engine.url, name, "default", ANSWER_TOKENS)
        for task_set, limit in zip(TEST_SETS, limits, strict=True):
            tasks = read_tasks(work.folder / f"{task_set}.jsonl")[:limit]
            questions = {task.id: question_of(asked, task.messages, task.tools, {}) for task in tasks}
            out = work.folder / f"{task_set}-{name}.jsonl"
            collect(asked, list({one.key: one for one in questions.values()}.values()), out, SEATS, _silent)
            answers = {row["key"]: row["answer"] for _, row in numbered_rows(out)}
            # A prompt that the engine refused is a task that was not solved.
            verdicts = [judge_text(task, answers.get(questions[task.id].key, "")) for task in tasks]
            found[task_set.removesuffix("-test")] = tally(verdicts)
    return found


def measure_speeds(work: Work) -> list[dict[str, Any]]:
    """Measure each model alone on one core with routine calls, at 1 and at 16 streams."""
    rows = []
    for name in ("teacher", "student-0", "student-int8"):
        with engine_of(work, work.model(name), name) as engine:
            for streams in (1, SPEED_STREAMS):
                uvloop.run(_calls(work, engine.url, name, streams, 1))  # the first calls of a batch size are slower
                calls = uvloop.run(_calls(work, engine.url, name, streams, work.sizes.generations))
                tps = [one.speed_tps for one in calls]
                rows.append({"model": name, "streams": streams, "stream_tps": statistics.median(tps), "all": tps})
    return rows


def spark_beside_standard(work: Work, best: str) -> dict[str, Any]:
    """Publish the student and measure spark calls while standard streams fill the full model's engine."""
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
    """Run standard streams during the spark calls. Only those that ended in that time count."""
    rounds = 8 * work.sizes.generations
    standard: list[TimedStream] = []
    busy = asyncio.create_task(_calls(work, url, TEACHER, STANDARD_STREAMS, rounds, standard))
    while len(standard) < STANDARD_STREAMS and not busy.done():  # until all are aboard, and the first wave has ended
        await asyncio.sleep(0.1)
    began = time.perf_counter()
    spark = await _calls(work, url, f"{TEACHER}-spark", SPARK_STREAMS, 2 * rounds)
    ended, still_busy = time.perf_counter(), not busy.done()
    if not still_busy:
        raise RuntimeError("the standard load ended before the spark calls did: the comparison would be unfair")
    await busy
    return [one for one in standard if began <= one.arrivals[-1][0] <= ended], spark


async def _calls(
    work: Work, url: str, model: str, streams: int, rounds: int, done: list[TimedStream] | None = None
) -> list[TimedStream]:
    """Routine calls, so many at once; whoever has its answer asks the next. Pass a list to watch it while it fills."""
    tasks = read_tasks(work.folder / "routine-test.jsonl")
    numbers = iter(range(streams * rounds))
    done = [] if done is None else done

    async def one_after_the_other() -> None:
        for number in numbers:
            task = tasks[number % len(tasks)]
            asked = {"model": model, "messages": task.messages, "tools": task.tools, "ignore_eos": False}
            stream = await timed_call(url, ANSWER_TOKENS, asked)
            if len(stream.arrivals) > MIN_ARRIVALS:
                done.append(stream)

    await asyncio.gather(*[one_after_the_other() for _ in range(streams)])
    return done


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _silent(_now: Collected) -> None:
    pass
