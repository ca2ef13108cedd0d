"""Counts the mistakes of every speed, and checks that the auto model keeps its budget. See runs/mistakes.sh."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import uvloop
from rich.progress import Progress
from rich.table import Table

from headway.auto.calibration import allowed, read_calibration, write_calibration
from headway.auto.gate import Isotonic
from headway.auto.risk import Judged
from headway.auto.risk import at_most as upper_bound
from headway.config import load
from headway.distill.publish import FirstRung, Spark, publish
from headway.evals.inspect_run import Settings, find_tasks, run_in_rounds
from headway.evals.page import AskedTasks, write_page
from headway.evals.shares import Share
from headway.evals.targets import offered
from headway.evals.task_files import read_tasks, write_tasks
from headway.evals.tool_calls import Expected, Task
from headway.evals.verdict import ALL_TASKS, Attempt, Run, judge_runs
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_process import free_port
from runs.measure.kept import Stage
from runs.measure.token_times import chat, timed_call
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish
from runs.students.distill import best, run_stages
from runs.students.routine import routine_tasks
from runs.students.stages import SPEED_STREAMS
from runs.students.tasks import vocabulary_of
from runs.students.work import (
    ANSWER_TOKENS,
    SEATS,
    TEACHER,
    Work,
    console,
    engine_of,
    gateway_of,
    keep,
    open_work,
    result_of,
)

BUDGET, MIN_SERVED, GOAL_SERVED, MAX_LATER_MS = 0.02, 0.4, 0.6, 50.0
TEMPERATURES = (0.0, 0.7)  # the first is greedy
CALIBRATION_HARD, ROUTINE_TO_HARD = 163, 4  # 80 % and 20 %
TIMED_ROUTINE, TIMED_HARD = 80, 40
FIX_S = (10.0, 60.0, 600.0)  # a program notices and retries; a person does; somebody has to search for it
# The expected recommendation, by the time to fix a mistake and the kind of task. If a program notices a mistake and
# retries within seconds, a student that is sometimes wrong is worth it. `fast` has the weights of standard.
FULL_MODEL = ("standard", "fast")
RECOMMENDED: dict[float, dict[str, tuple[str, ...]]] = {
    5: {"routine": ("spark",), "hard": FULL_MODEL},
    300: {"routine": FULL_MODEL, "hard": FULL_MODEL},
}
LOOKED_AT_S = (1, 2, 5, 10, 15, 20, 30, 45, 60, 120, 300, 600, 1800)  # fix times at which recommendations are shown
AT_ONCE = 8
CALIBRATION_SEED, TEST_SEED = 71, 72
FLOOR_TPS, CURVE = 5.0, [[1, 18.0], [8, 12.0], [16, 10.0]]
KEY = "hw-runs-mistakes"
COUNTED, TIMED = ("standard", "spark", "auto"), ("standard", "fast", "spark", "auto")
FREE_TEXT = ("Say hello.", "Name a colour.", "What is rain?", "Tell me about cats.", "Describe a door.")
FREE_ROUNDS, FREE_TOKENS = 8, 8


def make_sets(work: Work) -> dict[str, int]:
    """Write the sets: requests with held-out phrasings that no other set has, and hard tasks, split between the two.
    No call with the same tool and arguments is expected in both."""
    hard = read_tasks(work.folder / "hard-test.jsonl")
    words = vocabulary_of(work.base)
    some, others = hard[:CALIBRATION_HARD], hard[CALIBRATION_HARD:]
    routine = routine_tasks("test", ROUTINE_TO_HARD * len(some), CALIBRATION_SEED, words)
    calibration = [*_named(routine, "calibration-routine", "routine"), *_named(some, "calibration-hard", "hard")]
    known = {_call_of(one) for task in calibration for one in task.expected}
    drawn = routine_tasks("test", 2 * ROUTINE_TO_HARD * len(others), TEST_SEED, words)  # half of them are known calls
    new_hard, new_routine = (
        [task for task in tasks if known.isdisjoint(map(_call_of, task.expected))] for tasks in (others, drawn)
    )
    routine = new_routine[: ROUTINE_TO_HARD * len(new_hard)]
    test = [*_named(routine, "test-routine", "routine"), *_named(new_hard, "test-hard", "hard")]
    write_tasks(work.folder / "mix-calibration.jsonl", calibration)
    write_tasks(work.folder / "mix-test.jsonl", test)
    of_kind = {kind: [task for task in test if task.tags["kind"] == kind] for kind in ("routine", "hard")}
    write_tasks(work.folder / "mix-timed.jsonl", [*of_kind["routine"][:TIMED_ROUTINE], *of_kind["hard"][:TIMED_HARD]])
    return {"calibration": len(calibration), **{kind: len(tasks) for kind, tasks in of_kind.items()}}


def _call_of(expected: Expected) -> str:
    return json.dumps([expected.name, expected.arguments], sort_keys=True)


def _named(tasks: list[Task], name: str, kind: str) -> list[Task]:
    return [replace(task, id=f"{name}-{number}", tags={"kind": kind}) for number, task in enumerate(tasks)]


def prices(work: Work) -> dict[str, tuple[float, float]]:
    """Of a million tokens, where an hour of an engine costs 1 and a prompt token a quarter of an output token."""
    speeds = result_of(work, "speeds")
    found = {}
    for name in ("teacher", best(work)):
        [row] = [one for one in speeds if one["model"] == name and one["streams"] == SPEED_STREAMS]
        output = 1e6 / (row["stream_tps"] * SPEED_STREAMS * 3600)
        found[name] = (round(output / 4, 4), round(output, 4))
    return found


@contextlib.contextmanager
def engines(work: Work) -> Iterator[Path]:
    """Start both models on real vLLM, one engine per core, and publish the student. Yields headway.toml."""
    path, store = work.folder / "mistakes.toml", work.folder / "mistakes.db"
    (full_in, full_out), (small_in, small_out) = prices(work).values()
    with (
        engine_of(work, work.model("teacher"), TEACHER, 0) as full,
        engine_of(work, work.model(best(work)), f"{TEACHER}-spark", 1) as small,
    ):
        path.write_text(
            f'[gateway]\nport = {free_port()}\n[ledger]\nstore = "sqlite:///{store}"\n'
            f'spool = "{work.folder}/mistakes-spool"\n'
            f'[[models]]\nname = "{TEACHER}"\nprice = {{ input = {full_in}, output = {full_out} }}\n'
            '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "flex"\n'
            f'[[models.tiers]]\nname = "fast"\nfloor_tps = {FLOOR_TPS}\nprice_multiple = 2.0\n'
            f'[[models.replicas]]\nurl = "{full.url}"\nseats = {SEATS}\ncurve = {CURVE}\n'
        )
        publish(path, TEACHER, Spark(str(work.model(best(work))), small.url, SPEED_STREAMS), None, load)
        priced = f'name = "{TEACHER}-spark"\nprice = {{ input = {small_in}, output = {small_out} }}\n'
        path.write_text(path.read_text().replace(f'name = "{TEACHER}-spark"\n', priced))
        store.unlink(missing_ok=True)
        books = SQLiteStore(store)
        books.migrate()
        books.put_key(Key(id="run", hash=key_hash(KEY.encode())))
        books.close()
        yield path


@dataclass(frozen=True)
class Serving:
    """Both engines are up; `url` is that of the gateway, where one is."""

    work: Work
    config: Path
    url: str = ""


def calibrate(serving: Serving) -> dict[str, Any]:
    path, out = serving.config, serving.work.folder / "auto.json"
    out.with_name(f"{out.name}.closed").unlink(missing_ok=True)
    with gateway_of(path, load(path).gateway.port) as url:
        tasks = str(serving.work.folder / "mix-calibration.jsonl")
        command = [sys.executable, "-m", "headway", "auto", "calibrate", tasks]
        for temperature in TEMPERATURES:
            command += ["--temperature", str(temperature)]
        subprocess.run([*command, "--model", TEACHER, "--url", url, "--out", str(out)], check=True)
    found = allowed(read_calibration(out), BUDGET)
    return {"level": found.level, "served": found.served, "excess": found.excess, "of": found.of}


def ask(
    serving: Serving, tasks: str, names: tuple[str, ...], at_once: int, temperature: float = TEMPERATURES[0]
) -> dict[str, Any]:
    """`headway eval` of these speeds, without its page."""
    folder = serving.work.folder
    chosen = find_tasks(str(folder / tasks), run_commands=False)
    targets = sorted(offered(serving.url, TEACHER, names, temperature), key=lambda one: names.index(one.name))
    with Progress(console=console, transient=True) as progress:
        bars = {name: progress.add_task(f"{name}, {at_once} at once", total=chosen.count) for name in names}
        settings = Settings(folder / "eval" / "logs", None, ANSWER_TOKENS, 120.0, at_once)
        done = run_in_rounds(chosen, targets, settings, lambda name: progress.advance(bars[name]))
    return {one.name: asdict(Run(one.name, one.weights, done[one.name])) for one in targets}


def again(row: dict[str, Any]) -> Run:
    return Run(row["name"], row["weights"], [Attempt(**one) for one in row["attempts"]])


async def first_tokens_s(url: str) -> dict[str, list[float]]:
    """Time to first token of free text, from the student directly and through the auto model, in turns."""
    found: dict[str, list[float]] = {"spark": [], "auto": []}
    for number in range(FREE_ROUNDS * len(FREE_TEXT) + 1):
        for name in found if number % 2 else reversed(found):
            asked = {**chat(FREE_TEXT[number % len(FREE_TEXT)]), "model": f"{TEACHER}-{name}", "ignore_eos": False}
            stream = await timed_call(url, FREE_TOKENS, asked)
            if number:  # skip the warm-up
                found[name].append(stream.first_token_s)
    return found


def measure_first_tokens(serving: Serving) -> dict[str, list[float]]:
    """What the auto model adds where it lets the student speak: its gate is told to, since these prompts have no right
    answer to be calibrated on."""
    work, path = serving.work, serving.config
    trusting = read_calibration(work.folder / "auto.json")
    trusting.gate.rising["text"] = Isotonic([-1e9, 1e9], [1.0, 1.0])
    trusting.judged = [Judged(1.0, is_excess=False)] * 1000
    trusting.temperatures = [0.0, 1.0]
    other = work.folder / "auto-text.json"
    write_calibration(other, trusting)
    config = work.folder / "mistakes-text.toml"
    said = path.read_text().replace(str(work.folder / "auto.json"), str(other))
    said = said.replace("[models.auto]\n", "[models.auto]\nfree_text = true\n")
    config.write_text(re.sub(r"\[ledger\]\n.*\n.*\n", "", said))  # without a ledger, calls need no key
    with gateway_of(config, load(config).gateway.port) as url:
        return uvloop.run(first_tokens_s(url))


def measure(work: Work) -> dict[str, Any]:
    os.environ["HEADWAY_KEY"] = KEY
    at = work.folder
    mix = {name: at / f"mix-{name}.jsonl" for name in ("calibration", "test", "timed")}
    made_of = (at / "hard-test.jsonl", work.base / "tokenizer.json")
    keep(work, Stage("mix", make_sets, 0.2, reads=made_of, makes=tuple(mix.values())))
    models = (work.model("teacher"), work.model(best(work)))
    setup, auto = (engines, gateway_of, publish_auto, prices(work)), at / "auto.json"
    results: dict[str, Any] = {"many": {temperature: {} for temperature in TEMPERATURES}}
    with engines(work) as path:
        serving = Serving(work, path)
        calibrated_on = (*models, mix["calibration"])
        keep(work, Stage("mix-calibrated", calibrate, 16, reads=calibrated_on, makes=(auto,), setup=setup), serving)
        publish_auto(path, auto)
        with gateway_of(path, load(path).gateway.port) as url:
            serving = Serving(work, path, url)
            reads = (*models, auto, mix["test"])
            for temperature, name in product(TEMPERATURES, COUNTED):
                asked = (mix["test"].name, (name,), AT_ONCE, temperature)
                stage = Stage(f"mix-many-{temperature:g}-{name}", ask, 6, asked, reads=reads, setup=setup)
                results["many"][temperature] |= keep(work, stage, serving)
            # As `headway eval` has it, standard last: what an engine remembers of a prompt speaks for it.
            in_turns = (mix["timed"].name, (*TIMED[1:], TIMED[0]), 1)
            stage = Stage("mix-timed", ask, 15, in_turns, reads=(*models, auto, mix["timed"]), setup=setup)
            results["timed"] = keep(work, stage, serving)
        stage = Stage("mix-first", measure_first_tokens, 2, reads=(*models, auto), setup=setup)
        results["first"] = keep(work, stage, Serving(work, path))
    return results


def publish_auto(path: Path, calibration: Path) -> None:
    publish(path, TEACHER, None, None, load, FirstRung(str(calibration), BUDGET))


def mistakes_table(runs: list[Run], temperature: float) -> Table:
    kinds = sorted({one.verdict for run in runs for one in run.attempts if not one.is_right})
    table = Table("set", "speed", "tasks", "right (95 % interval)", *kinds)
    table.title = f"mistakes at temperature {temperature:g}, by kind"
    for kind in ("routine", "hard"):
        for one in runs:
            some = [attempt for attempt in one.attempts if attempt.kind == kind]
            counts = Counter(attempt.verdict for attempt in some)
            right = str(Share(sum(attempt.is_right for attempt in some), len(some)))
            table.add_row(kind, one.name, str(len(some)), right, *[str(counts[name]) for name in kinds])
    return table


def times_table(runs: list[Run]) -> Table:
    """The time to a right answer for each time to fix a mistake, and the cost of a right answer."""
    table = Table(
        "set",
        "speed",
        "tok/s",
        "answer, s",
        *[f"right, fixed in {one:g} s" for one in FIX_S],
        "cost of a right one",
    )
    table.title = "one call at a time, seconds by Headway's proof (95 % interval)"
    attempts = {one.name: one.attempts for one in runs}
    by_fix = [judge_runs(runs, "standard", one) for one in FIX_S]
    for place, verdict in enumerate(by_fix[0]):
        for number, figures in enumerate(verdict.figures):
            speeds = [
                one.speed_tps
                for one in attempts[figures.name]
                if one.speed_tps and verdict.kind in (one.kind, ALL_TASKS)
            ]
            times = [of_fix[place].figures[number].time_to_right_s for of_fix in by_fix]
            cost = figures.cost_per_right_micro
            table.add_row(
                verdict.kind, figures.name, f"{statistics.median(speeds):.1f}",
                f"{figures.answer_s.value:.2f}",
                *[f"{one.value:.1f} ({one.low:.1f} .. {one.high:.1f})" for one in times],
                f"{cost.value:.1f} ({cost.low:.1f} .. {cost.high:.1f}) micro" if cost is not None else "-",
            )  # fmt: skip
    return table


def recommendations(runs: list[Run]) -> dict[float, dict[str, str]]:
    """The page's recommendations, by the time to fix a mistake, which only the owner knows."""
    return {
        fix_s: {one.kind: one.recommended.use for one in judge_runs(runs, "standard", fix_s)} for fix_s in LOOKED_AT_S
    }


def recommendations_table(by_fix: dict[float, dict[str, str]]) -> Table:
    table = Table("a mistake is fixed in", "routine", "hard", "all, 2 to 1", title="what the page recommends")
    for fix_s, uses in by_fix.items():
        table.add_row(f"{fix_s} s", uses["routine"], uses["hard"], uses[ALL_TASKS])
    return table


@dataclass(frozen=True)
class Counted:
    """The calls to the auto model at one temperature."""

    calls: int
    excess: int  # wrong answers of the student to tasks that the full model got right
    by_student: int  # answers that the student served

    @property
    def excess_bound(self) -> float:
        """The share of excess mistakes is below this with 95 % confidence."""
        return upper_bound(self.excess, self.calls)


def count(full: Run, auto: Run) -> Counted:
    right = {attempt.task for attempt in full.attempts if attempt.is_right}
    served = [attempt for attempt in auto.attempts if attempt.rung == "student"]
    excess = sum(attempt.task in right and not attempt.is_right for attempt in served)
    return Counted(len(auto.attempts), excess, len(served))


@dataclass(frozen=True)
class Figures:
    counted: dict[float, Counted]  # by temperature
    later_ms: float  # first token of free text: auto minus student
    recommended: dict[float, dict[str, str]]  # by seconds to fix a mistake, and kind of task


def verdict(figures: Figures) -> Verdict:
    calls = sum(one.calls for one in figures.counted.values())
    served = sum(one.by_student for one in figures.counted.values()) / calls
    bars = [
        at_most(f"excess mistakes of auto at temperature {temperature:g}, 95 % bound", one.excess_bound, BUDGET, ".1%")
        for temperature, one in figures.counted.items()
    ]
    bars += [
        at_least("calls of auto that the student served", served, MIN_SERVED, ".0%"),
        at_most("first token of free text through auto, later by", figures.later_ms, MAX_LATER_MS, "+.0f", " ms"),
    ]
    for fix_s, wanted in RECOMMENDED.items():
        for kind, uses in wanted.items():
            said = figures.recommended.get(fix_s, {}).get(kind, "nothing")
            limit = " or ".join(uses)
            bars.append(Bar(f"recommended for {kind} tasks, fixed in {fix_s:g} s", said, limit, said in uses))
    excess = "; ".join(
        f"{one.excess} excess mistakes of {one.calls} at temperature {temperature:g} (at most {one.excess_bound:.1%} "
        "with 95 %)"
        for temperature, one in figures.counted.items()
    )
    figure = (
        f"auto: {excess}; budget {BUDGET:.0%}; the student served {served:.0%} of the calls (bar {MIN_SERVED:.0%}, "
        f"goal {GOAL_SERVED:.0%})"
    )
    return Verdict(figure, tuple(bars))


def report(work: Work, results: dict[str, Any]) -> int:
    many = {of: [again(rows[name]) for name in COUNTED] for of, rows in results["many"].items()}
    timed = [again(results["timed"][name]) for name in TIMED]
    by_fix = recommendations(timed)
    for temperature, runs in many.items():
        console.print(mistakes_table(runs, temperature))
    for table in (times_table(timed), recommendations_table(by_fix)):
        console.print(table)
    fix_s = min(RECOMMENDED)
    asked = AskedTasks("mix-timed.jsonl", "standard", fix_s, 1, ANSWER_TOKENS)
    page = write_page(asked, timed, judge_runs(timed, "standard", fix_s), work.folder / "eval")
    console.print(f"page, where a mistake is fixed in {fix_s:g} s: {page}", highlight=False)
    first = {name: statistics.median(times) for name, times in results["first"].items()}
    console.print(f"first token of free text by the student: {1000 * first['spark']:.0f} ms")
    counted = {temperature: count(runs[0], runs[-1]) for temperature, runs in many.items()}
    later_ms = 1000 * (first["auto"] - first["spark"])
    return finish(console, verdict(Figures(counted, later_ms, by_fix)))


def main() -> int:
    work = open_work(sorted(os.sched_getaffinity(0)))
    run_stages(work, until="speeds")
    return report(work, measure(work))


if __name__ == "__main__":
    sys.exit(main())
