"""Makes and publishes a student from scratch, and measures its mistakes and speed. See runs/distill.sh."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from headway.distill.card import card_page, ratio_interval
from headway.distill.fit import fits, places, weigh
from headway.evals.shares import Share
from headway.evals.tool_calls import MISTAKES
from runs.measure.kept import Stage
from runs.measure.machine import require
from runs.measure.verdict import Verdict, at_least, at_most, finish
from runs.students.stages import (
    SPEED_STREAMS,
    collect_answers,
    count_all_mistakes,
    cut_student,
    keep_right,
    make_tasks,
    measure_speeds,
    quantise,
    spark_beside_standard,
    train_students,
    tune_teacher,
)
from runs.students.work import Work, console, keep, minutes_of, open_work, result_of

MIN_TEACHER, MIN_OF_TEACHER, MIN_TIMES, GOAL_TIMES, MAX_PARAMS, MAX_MINUTES = 0.95, 0.90, 5.0, 15.0, 0.5, 150.0
Verdicts = dict[str, dict[str, int]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a student and count its mistakes.")
    parser.add_argument("--tiny", action="store_true", help="try every stage with very little data")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="cores to use")
    parser.add_argument("--until", default="", help="stop after this stage")
    given = parser.parse_args()
    if not given.tiny and not given.until:
        require(console, fast_cores=True, free_cores=True)  # one of its bars is the time it takes
    work = open_work(given.cores, tiny=given.tiny)
    results = run_stages(work, given.until)
    return 0 if given.until else report(work, results)


def models_of(work: Work) -> list[str]:
    trained = [f"{kind}-{seed}" for seed in range(work.sizes.seeds) for kind in ("sft", "student")]
    return ["teacher", "cut", *trained, "student-int8"]


def stages_before_mistakes(work: Work) -> Iterator[Stage]:
    """Each is made when the one before it is done: where a model lies is known then."""
    at = work.folder
    sets = tuple(at / f"{name}.jsonl" for name in ("routine-train", "hard-train", "routine-test", "hard-test"))
    tuning, prompts, answers, rows = (at / f"{name}.jsonl" for name in ("tuning", "prompts", "answers", "rows"))
    yield Stage("tasks", make_tasks, 0.2, reads=(work.base / "tokenizer.json",), makes=(*sets, tuning, prompts))
    yield Stage("teacher", tune_teacher, 42, reads=(work.base, tuning), makes=(at / "teacher",))
    yield Stage("answers", collect_answers, 10, reads=(work.model("teacher"), prompts), makes=(answers,))
    yield Stage("kept", keep_right, 0.1, reads=(answers, *sets[:2]), makes=(rows,))
    yield Stage("cut", cut_student, 4, reads=(work.model("teacher"), rows, sets[2]), makes=(at / "cut",))
    trained = tuple(at / f"{kind}-{seed}" for seed in range(work.sizes.seeds) for kind in ("first", "sft", "student"))
    yield Stage("training", train_students, 42, reads=(work.model("cut"), rows), makes=trained)
    into = "student-int8"
    yield Stage("int8", quantise, 0.3, ("student-0", into), reads=(work.model("student-0"),), makes=(at / into,))


def stages_after_mistakes(work: Work) -> Iterator[Stage]:
    routine = work.folder / "routine-test.jsonl"
    models = tuple(work.model(name) for name in ("teacher", "student-0", "student-int8"))
    yield Stage("speeds", measure_speeds, 6, reads=(*models, routine))
    reads = (work.model("teacher"), work.model(best(work)), routine)
    yield Stage("beside", spark_beside_standard, 5, (best(work),), reads=reads)


def run_stages(work: Work, until: str = "") -> dict[str, Any]:
    console.print(f"work folder {work.folder}; about 125 min in all", highlight=False)
    results: dict[str, Any] = {}
    for stage in stages_before_mistakes(work):
        results[stage.name] = keep(work, stage)
        if stage.name == until:
            return results
    results["mistakes"] = count_all_mistakes(work, models_of(work))
    if until == "mistakes":
        return results
    for stage in stages_after_mistakes(work):
        results[stage.name] = keep(work, stage)
        if stage.name == until:
            return results
    return results


def minutes(work: Work, results: dict[str, Any]) -> float:
    """What the stages took; the models' mistakes are counted on all cores at once."""
    counted = sum(minutes_of(work, f"mistakes-{name}") for name in models_of(work)) / len(work.cores)
    return counted + sum(minutes_of(work, name) for name in results if name != "mistakes")


def best(work: Work) -> str:
    """The student to publish: int8 if it is hardly more often wrong than the one it was made from."""
    right = {}
    for name in ("student-0", "student-int8"):
        counts = result_of(work, f"mistakes-{name}")["routine"]
        right[name] = counts.get("right", 0) / max(1, sum(counts.values()))
    return "student-int8" if right["student-int8"] >= right["student-0"] - 0.01 else "student-0"


def report(work: Work, results: dict[str, Any]) -> int:
    models = models_of(work)
    mistakes: dict[str, Verdicts] = {
        task_set: {name: results["mistakes"][name][task_set] for name in models} for task_set in ("routine", "hard")
    }
    for task_set, verdicts in mistakes.items():
        kinds = [kind for kind in MISTAKES if any(counts.get(kind) for counts in verdicts.values())]
        table = Table("model", "tasks", "right (95 % interval)", *kinds, title=f"{task_set}, held out")
        for name, counts in verdicts.items():
            of = sum(counts.values())
            share = str(Share(counts.get("right", 0), of))
            table.add_row(name, str(of), share, *[str(counts.get(kind, 0)) for kind in kinds])
        console.print(table)
    console.print(speed_table(work, results["speeds"]))
    write_card(work, results, mistakes)
    return finish(console, verdict(figures_of(work, results, mistakes)))


def speed_table(work: Work, rows: list[dict[str, Any]]) -> Table:
    """Speeds with the bytes that a step reads and the memory of this machine that holds them."""
    table = Table("model", "streams", "tok/s each, median", "slowest .. fastest", "MB a step", "held by", "GB/s")
    table.title = "speed, alone on one core"
    for row in rows:
        weights = weigh(work.model(row["model"]))
        spread = f"{min(row['all']):.1f} .. {max(row['all']):.1f}"
        held = next((one.place.name for one in fits(weights, places()) if one.holds), "nothing here")
        rate = weights.step_bytes * row["stream_tps"] / 1e9
        cells = (f"{row['stream_tps']:.1f}", spread, f"{weights.step_bytes / 1e6:.0f}", held, f"{rate:.1f}")
        table.add_row(row["model"], str(row["streams"]), *cells)
    return table


def write_card(work: Work, results: dict[str, Any], mistakes: dict[str, Verdicts]) -> None:
    student, teacher = weigh(work.model("student-0")), weigh(work.model("teacher"))
    named = {"teacher": "teacher", "student": "student-0", "untrained cut": "cut", "SFT only": "sft-0"}
    named |= {"student, seed 1": "student-1", "SFT only, seed 1": "sft-1", "student, int8": "student-int8"}
    shown = {
        task_set: {label: verdicts[name] for label, name in named.items() if name in verdicts}
        for task_set, verdicts in mistakes.items()
    }
    asked, kept, beside = results["tasks"], results["kept"], results["beside"]
    full = f"while {beside['standard_streams']} standard streams fill the teacher's engine"
    under_load = [
        {"model": beside["model"], "streams": beside["spark_streams"], "stream_tps": beside["spark_tps"], "note": full},
        {
            "model": "teacher",
            "streams": beside["standard_streams"],
            "stream_tps": beside["standard_tps"],
            "note": "those",
        },
    ]
    card = {
        "name": "assistant-spark",
        "teacher": "SmolLM2-135M-Instruct, tuned on both task sets",
        "params": student.params, "teacher_params": teacher.params,
        "bytes": student.file_bytes, "teacher_bytes": teacher.file_bytes,
        "layers": ", ".join(map(str, results["cut"]["layers"])),
        "precision": "bf16; also available in int8",
        "mistakes": shown,
        "speeds": [*({**row, "note": "alone"} for row in results["speeds"]), *under_load],
        "trained_on": {
            "answers of the teacher": f"{kept['kept']} that were right, of {kept['of']}",
            "routine requests asked": work.sizes.student_routine,
            "hard (BFCL) items asked": asked["asked"] - work.sizes.student_routine,
        },
    }  # fmt: skip
    (work.folder / "card.json").write_text(json.dumps(card))
    (work.folder / "CARD.md").write_text(card_page(card), encoding="utf-8")
    console.print(f"card: {work.folder / 'CARD.md'}", highlight=False)


@dataclass(frozen=True)
class Figures:
    teacher: Share  # of routine tasks that are right
    students: tuple[Share, ...]  # the same for each seed
    params: float  # student ÷ teacher
    minutes: float
    spark_tps: float  # speed of a stream while standard streams fill the teacher's engine
    standard_tps: float  # speed of one of these standard streams


def verdict(figures: Figures) -> Verdict:
    ratio = min(ratio_interval(student, figures.teacher)[0] for student in figures.students)
    times = figures.spark_tps / figures.standard_tps
    bars = (
        at_least("teacher right on routine tasks", figures.teacher.value, MIN_TEACHER, ".1%"),
        at_least("student ÷ teacher on routine tasks, lowest seed", ratio, MIN_OF_TEACHER, ".3f"),
        at_least("spark ÷ standard under load, tok/s", times, MIN_TIMES, ".1f"),
        at_most("parameters of the student ÷ teacher", figures.params, MAX_PARAMS, ".0%"),
        at_most("minutes, all stages", figures.minutes, MAX_MINUTES, ".0f"),
    )
    figure = (
        f"teacher right on routine {figures.teacher.value:.1%} (bar {MIN_TEACHER:.0%}); student ÷ teacher "
        f"{ratio:.3f} (bar {MIN_OF_TEACHER}); spark {figures.spark_tps:.1f} beside standard "
        f"{figures.standard_tps:.1f} tok/s: {times:.1f} times (bar {MIN_TIMES:g}, goal {GOAL_TIMES:g})"
    )
    return Verdict(figure, bars)


def figures_of(work: Work, results: dict[str, Any], mistakes: dict[str, Verdicts]) -> Figures:
    shares = {name: Share(counts.get("right", 0), sum(counts.values())) for name, counts in mistakes["routine"].items()}
    students = tuple(shares[f"student-{seed}"] for seed in range(work.sizes.seeds))
    for seed, share in enumerate(students):
        ratio, low, high = ratio_interval(share, shares["teacher"])
        console.print(f"student ÷ teacher on routine, seed {seed}: {ratio:.3f} ({low:.3f} .. {high:.3f})")
    tps = {(row["model"], row["streams"]): row["stream_tps"] for row in results["speeds"]}
    for name in ("student-0", "student-int8"):
        alone, many = (tps[name, streams] / tps["teacher", streams] for streams in (1, SPEED_STREAMS))
        console.print(f"{name} ÷ teacher, tok/s: {alone:.1f} at 1 stream, {many:.1f} at {SPEED_STREAMS}")
    params, beside = results["cut"]["params"] / results["cut"]["teacher_params"], results["beside"]
    return Figures(
        shares["teacher"], students, params, minutes(work, results), beside["spark_tps"], beside["standard_tps"]
    )


if __name__ == "__main__":
    sys.exit(main())
