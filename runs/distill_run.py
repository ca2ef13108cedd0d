"""Distillation from nothing to a published student, with its mistakes and speeds. See runs/distill.sh."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from distill_stages import (
    SPEED_STREAMS,
    TINY,
    Sizes,
    Work,
    collect_answers,
    console,
    count_mistakes,
    cut_student,
    keep_right,
    make_tasks,
    measure_speeds,
    quantise,
    spark_beside_standard,
    train_students,
    tune_teacher,
)
from rich.table import Table

from headway.distill.card import Share, card_page, ratio_interval
from headway.distill.fit import weigh
from headway.evals.tool_calls import MISTAKES
from headway.fleet.local import cache_dir

MIN_TEACHER, MIN_OF_TEACHER, MIN_TIMES, GOAL_TIMES, MAX_MINUTES = 0.95, 0.90, 5.0, 15.0, 150.0
Verdicts = dict[str, dict[str, int]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a student and count its mistakes.")
    parser.add_argument("--tiny", action="store_true", help="try every stage with next to no data")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="to compute on")
    parser.add_argument("--until", default="", help="stop after this stage")
    given = parser.parse_args()
    sizes = TINY if given.tiny else Sizes()
    work = Work(cache_dir() / ("distill-tiny" if given.tiny else "distill"), sizes, given.cores)
    stages: list[tuple[str, Any, float]] = [
        ("tasks", lambda: make_tasks(work), 0.2),
        ("teacher", lambda: tune_teacher(work), 27),
        ("answers", lambda: collect_answers(work), 7),
        ("kept", lambda: keep_right(work), 0.1),
        ("cut", lambda: cut_student(work), 5),
        *[(f"training-{seed}", lambda seed=seed: train_students(work, seed), 24) for seed in range(sizes.seeds)],
        ("int8", lambda: quantise(work), 0.3),
    ]
    of_models = ["teacher", "cut", *[f"{kind}-{seed}" for seed in range(sizes.seeds) for kind in ("sft", "student")]]
    of_models.append("student-int8")
    stages += [(f"mistakes-{name}", lambda name=name: count_mistakes(work, name), 3) for name in of_models]
    stages += [
        ("speeds", lambda: measure_speeds(work), 6),
        ("beside", lambda: spark_beside_standard(work, best(work, of_models)), 5),
    ]
    console.print(f"{len(stages)} stages in {work.folder}, about {sum(one[2] for one in stages):.0f} min in all")
    results: dict[str, Any] = {}
    for name, stage, minutes in stages:
        results[name] = work.once(name, stage, minutes)
        if name == given.until:
            return 0
    return report(work, results, of_models)


def best(work: Work, models: list[str]) -> str:
    """What is published: the int8 student if it is hardly more often wrong than the one it was made from."""
    right = {}
    for name in ("student-0", "student-int8"):
        counts = json.loads((work.folder / f"mistakes-{name}.json").read_text())["result"]["routine"]
        right[name] = counts.get("right", 0) / max(1, sum(counts.values()))
    del models
    return "student-int8" if right["student-int8"] >= right["student-0"] - 0.01 else "student-0"


def report(work: Work, results: dict[str, Any], models: list[str]) -> int:
    mistakes: dict[str, Verdicts] = {
        task_set: {name: results[f"mistakes-{name}"][task_set] for name in models} for task_set in ("routine", "hard")
    }
    for task_set, verdicts in mistakes.items():
        kinds = [kind for kind in MISTAKES if any(counts.get(kind) for counts in verdicts.values())]
        table = Table("model", "tasks", "right (95 % interval)", *kinds, title=f"{task_set}, held out")
        for name, counts in verdicts.items():
            of = sum(counts.values())
            share = str(Share(of, counts.get("right", 0)))
            table.add_row(name, str(of), share, *[str(counts.get(kind, 0)) for kind in kinds])
        console.print(table)
    speeds = Table("model", "streams", "tok/s each, median", "slowest .. fastest", title="speed, alone on one core")
    for row in results["speeds"]:
        spread = f"{min(row['all']):.1f} .. {max(row['all']):.1f}"
        speeds.add_row(row["model"], str(row["streams"]), f"{row['stream_tps']:.1f}", spread)
    console.print(speeds)
    write_card(work, results, mistakes)
    return verdict(work, results, mistakes)


def write_card(work: Work, results: dict[str, Any], mistakes: dict[str, Verdicts]) -> None:
    student, teacher = weigh(work.model("student-0")), weigh(work.model("teacher"))
    named = {"teacher": "teacher", "student": "student-0", "untrained cut": "cut", "SFT only": "sft-0"}
    named |= {"student, seed 1": "student-1", "SFT only, seed 1": "sft-1", "student, int8": "student-int8"}
    shown = {
        task_set: {label: verdicts[name] for label, name in named.items() if name in verdicts}
        for task_set, verdicts in mistakes.items()
    }
    asked, kept = results["tasks"], results["kept"]
    card = {
        "name": "assistant-spark",
        "teacher": "SmolLM2-135M-Instruct, tuned on both task sets",
        "params": student.params, "teacher_params": teacher.params,
        "bytes": student.file_bytes, "teacher_bytes": teacher.file_bytes,
        "layers": ", ".join(map(str, results["cut"]["layers"])),
        "precision": "bf16; the int8 form stands beside it",
        "mistakes": shown,
        "speeds": results["speeds"],
        "trained_on": {
            "answers of the teacher": f"{kept['kept']} that were right, of {kept['of']}",
            "routine requests asked": work.sizes.student_routine,
            "hard (BFCL) items asked": asked["asked"] - work.sizes.student_routine,
        },
    }  # fmt: skip
    (work.folder / "card.json").write_text(json.dumps(card))
    (work.folder / "CARD.md").write_text(card_page(card), encoding="utf-8")
    console.print(f"card: {work.folder / 'CARD.md'}", highlight=False)


def verdict(work: Work, results: dict[str, Any], mistakes: dict[str, Verdicts]) -> int:
    shares = {name: Share(sum(counts.values()), counts.get("right", 0)) for name, counts in mistakes["routine"].items()}
    ratios = []
    for seed in range(work.sizes.seeds):
        ratio, low, high = ratio_interval(shares[f"student-{seed}"], shares["teacher"])
        ratios.append(ratio)
        console.print(f"student ÷ teacher on routine, seed {seed}: {ratio:.3f} ({low:.3f} .. {high:.3f})")
    params = results["cut"]["params"] / results["cut"]["teacher_params"]
    beside, minutes = results["beside"], work.minutes()
    times = beside["spark_tps"] / beside["standard_tps"]
    tps = {(row["model"], row["streams"]): row["stream_tps"] for row in results["speeds"]}
    console.print(
        f"parameters {params:.0%} of the teacher's (at most 50 %); {minutes:.0f} min (bar {MAX_MINUTES:.0f}); "
        f"student ÷ teacher tok/s alone {tps['student-0', 1] / tps['teacher', 1]:.1f}, at {SPEED_STREAMS} streams "
        f"{tps['student-0', SPEED_STREAMS] / tps['teacher', SPEED_STREAMS]:.1f}"
    )
    console.print(
        f"teacher right on routine {shares['teacher'].value:.1%} (bar {MIN_TEACHER:.0%}); student ÷ teacher "
        f"{min(ratios):.3f} (bar {MIN_OF_TEACHER}); spark {beside['spark_tps']:.1f} beside standard "
        f"{beside['standard_tps']:.1f} tok/s: {times:.1f} times (bar {MIN_TIMES:g}, goal {GOAL_TIMES:g})"
    )
    holds = shares["teacher"].value >= MIN_TEACHER and min(ratios) >= MIN_OF_TEACHER and times >= MIN_TIMES
    return 0 if holds and params <= 0.5 and minutes <= MAX_MINUTES else 1


if __name__ == "__main__":
    sys.exit(main())
