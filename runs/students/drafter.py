"""Measures whether the student speeds up the full model as its drafter, and chooses a method. See runs/drafter.sh."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import uvloop
from rich.progress import Progress

from headway.config import load
from headway.config.engine_commands import vllm_speculation
from headway.distill.card import card_page
from headway.distill.publish import Drafting, publish
from headway.distill.speculation import Choice, Tried, choose
from headway.distill.template import hermes_template
from headway.evals.task_files import read_tasks
from headway.evals.tool_calls import Task, judge_text
from headway.evals.two_samples import divergence, same_distribution
from runs.engine.pairs import COUNTERS, SEATS, Pairs, Text, compare, table_of, two_engines
from runs.measure.kept import Stage
from runs.measure.token_times import timed_call
from runs.measure.verdict import Bar, Verdict, at_least, finish
from runs.students.distill import run_stages
from runs.students.drafter_plan import CHIP, PAYS, planned_table
from runs.students.stages import quantise
from runs.students.work import TEACHER, Work, console, keep, open_work

BATCHES = (1, 2, 4, 8)
MIN_GAIN, NOISE, MIN_P = 1.3, 0.95, 0.01
TRAINING_MINUTES = 8.0
DRAFTER = "drafter-int8"
COMPARED, SAMPLED_PROMPTS, SAMPLES, SAMPLED_TOKENS = 200, 18, 64, 6
CONTROL_TEMPERATURE = 1.25  # the test must distinguish this from 1, or passing it would prove nothing
CANDIDATES: dict[str, tuple[str | None, int]] = {
    "ngram-4": (None, 4),
    "drafter-2": (DRAFTER, 2),
    "drafter-4": (DRAFTER, 4),
}
# Open-ended prompts: answers to the tuned model's own tasks hardly vary.
BEGINNINGS = (
    "My favourite colour is", "She was born in the month of", "For breakfast he had", "The animal at the door was a",
    "In winter the weather is", "The train left on", "They travelled to the capital of", "He plays the",
    "It takes about two", "The first planet is", "I feel very", "The doctor said",
)  # fmt: skip


def asked(task: Task) -> dict[str, object]:
    """The task as a text completion. In a chat the engine would parse the calls; here texts are compared."""
    own = {"model": TEACHER, "messages": task.messages, "ignore_eos": False}
    return {**own, "tools": task.tools, "tool_choice": "none"} if task.tools else own


def texts_of(work: Work) -> dict[str, Text]:
    texts = {}
    for name in ("routine", "hard"):
        tasks = read_tasks(work.folder / f"{name}-test.jsonl")
        texts[name] = Text(lambda number, tasks=tasks: asked(tasks[number]), len(tasks), 128)  # type: ignore[misc]
    return texts


def train_drafter(work: Work) -> dict[str, Any]:
    """Train on the teacher's prompts, with tools: the student knows the tools by heart and has hardly seen them."""
    return work.train(
        work.model("student-0"), ["rows.jsonl"], "drafter", template=hermes_template(words_again=True),
        teacher_share=0.8, batch=2, learning_rate=3e-4, minutes=TRAINING_MINUTES, max_tokens=1024,
    )  # fmt: skip


def settings(work: Work, weights: str | None, by_streams: list[tuple[int, int, int]]) -> dict[str, object]:
    """vLLM's speculative settings, from a headway.toml that is published with this drafter."""
    path = work.folder / "drafting.toml"
    path.write_text(
        f'[[models]]\nname = "{TEACHER}"\n[[models.replicas]]\nurl = "http://127.0.0.1:8001"\n'
        f'[models.engine]\nweights = "{work.model("teacher")}"\n'
    )
    own = str(work.model(weights)) if weights else None
    publish(path, TEACHER, None, Drafting(own, by_streams), load)
    engine = load(path).models[0].engine
    said = vllm_speculation(engine.speculation) if engine is not None else None
    if said is None:
        raise RuntimeError("the choice is no speculation: there is nothing to run")
    return said


def measure(work: Work, what: str, config: dict[str, object], rounds: int) -> dict[str, Any]:
    """Run the plain engine and this one in turns. Each gets each core for half of the pairs."""
    texts, pairs = texts_of(work), Pairs()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(what, total=2 * rounds * len(texts) * len(BATCHES))
        for plain_core in (0, 1):
            with two_engines(work.engine, str(work.model("teacher")), TEACHER, config, plain_core) as (plain, other):
                uvloop.run(compare(plain.url, other.url, texts, BATCHES, rounds, pairs, progress, bar))
    console.print(table_of(what, pairs))
    counted = {
        name: {
            counter: sum(one.counted[counter] for (text, _), found in pairs.items() if text == name for one in found)
            for counter in COUNTERS
        }
        for name in texts
    }
    gains = [[text, batch, [one.ratio for one in found]] for (text, batch), found in pairs.items()]
    return {"gains": gains, "counted": counted}


def gains_of(measured: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    return {(text, batch): ratios for text, batch, ratios in measured["gains"]}


def taken(counted: dict[str, int]) -> float:
    """The share of draft tokens that were accepted."""
    return counted["accepted_tokens"] / max(1, counted["draft_tokens"])


def decide(measured: dict[str, Any]) -> Choice:
    tried = [
        Tried("draft_model" if weights else "ngram", tokens, gains_of(measured[name]))
        for name, (weights, tokens) in CANDIDATES.items()
    ]
    return choose(tried)


async def _in_batches(url: str, requests: list[dict[str, object]], tokens: int, at_once: int = 8) -> list[str]:
    texts = []
    for first in range(0, len(requests), at_once):
        some = requests[first : first + at_once]
        texts += [stream.text for stream in await asyncio.gather(*[timed_call(url, tokens, one) for one in some])]
    return texts


async def _of_both(
    urls: list[str], requests: list[list[dict[str, object]]], tokens: int, at_once: int = 8
) -> list[list[str]]:
    """Ask both engines at once, one per core, because no times are measured here."""
    return list(
        await asyncio.gather(*[_in_batches(url, own, tokens, at_once) for url, own in zip(urls, requests, strict=True)])
    )


def _sampled(prompts: list[dict[str, object]], temperature: float, first_seed: int) -> list[dict[str, object]]:
    seeds = range(first_seed, first_seed + SAMPLES)
    return [{**prompt, "temperature": temperature, "seed": seed} for prompt in prompts for seed in seeds]


def look_for_differences(work: Work, config: dict[str, object]) -> dict[str, Any]:
    """Compare greedy answers, and the distributions of samples at temperature 1."""
    routine, hard = (read_tasks(work.folder / f"{name}-test.jsonl") for name in ("routine", "hard"))
    tasks = [*routine[: COMPARED // 2], *hard[: COMPARED // 2]]
    prompts: list[dict[str, object]] = [{"model": TEACHER, "prompt": beginning} for beginning in BEGINNINGS]
    prompts += [asked(task) for task in hard[-(SAMPLED_PROMPTS - len(prompts)) :]]
    # Different seeds: the first token is never drafted and would be the same on both sides.
    plain, other = _sampled(prompts, 1.0, 0), _sampled(prompts, 1.0, SAMPLES)
    control = _sampled(prompts, CONTROL_TEMPERATURE, 2 * SAMPLES)
    with two_engines(work.engine, str(work.model("teacher")), TEACHER, config, 0) as engines:
        urls = [one.url for one in engines]
        greedy = uvloop.run(_of_both(urls, [[asked(task) for task in tasks]] * 2, 128))
        # The schedule drafts only in small batches. One stream at a time would take too long, so use two.
        drawn = uvloop.run(_of_both(urls, [plain, other], SAMPLED_TOKENS, at_once=2))
        drawn += uvloop.run(_of_both(urls[:1], [control], SAMPLED_TOKENS, at_once=2))
    of_plain, of_other, of_control = (
        [texts[at : at + SAMPLES] for at in range(0, len(texts), SAMPLES)] for texts in drawn
    )
    (work.folder / "drawn.json").write_text(json.dumps([of_plain, of_other, of_control]))  # for inspection
    parted = divergence(*greedy)
    right = [
        sum(judge_text(task, text) == "right" for task, text in zip(tasks, texts, strict=True)) for texts in greedy
    ]
    return {
        "compared": parted.of, "same": parted.same, "parted_after": parted.parted_after,
        "right_plain": right[0], "right_speculative": right[1],
        "different_answers": statistics.mean(len(set(one)) for one in of_plain),
        "p_value": same_distribution(of_plain, of_other),
        "control_p_value": same_distribution(of_plain, of_control),
    }  # fmt: skip


def main(rounds: int) -> int:
    work = open_work(sorted(os.sched_getaffinity(0)))
    run_stages(work, until="training")
    at, trained, rows = work.folder, work.folder / "drafter", work.folder / "rows.jsonl"
    reads = (work.model("student-0"), rows)
    keep(work, Stage("drafter-training", train_drafter, TRAINING_MINUTES, reads=reads, makes=(trained,)))
    into = ("drafter", DRAFTER)
    keep(work, Stage(DRAFTER, quantise, 0.1, into, reads=(work.model("drafter"),), makes=(at / DRAFTER,)))
    tests = (at / "routine-test.jsonl", at / "hard-test.jsonl")
    models = (work.model("teacher"), work.model(DRAFTER), *tests)
    measured: dict[str, Any] = {}
    for name, (weights, tokens) in CANDIDATES.items():
        config = settings(work, weights, [(1, SEATS, tokens)])
        measured[name] = keep(work, Stage(f"drafter-{name}", measure, 10, (name, config, rounds), reads=models))
    choice = decide(measured)
    console.print(f"chosen: {choice.method or 'none'}, tokens by streams {choice.by_streams}")
    report(work, measured)
    if choice.method is None:
        return finish(console, verdict(Figures(None, {}, 0.0, 0.0)))
    weights = DRAFTER if choice.method == "draft_model" else None
    config = settings(work, weights, choice.schedule(SEATS))
    chosen = keep(work, Stage("drafter-chosen", measure, 10, ("as chosen", config, rounds), reads=models))
    differences = keep(work, Stage("drafter-differences", look_for_differences, 12, (config,), reads=models))
    show_differences(differences)
    gains = {cell: statistics.median(ratios) for cell, ratios in gains_of(chosen).items()}
    figures = Figures(choice.method, gains, differences["p_value"], differences["control_p_value"])
    return finish(console, verdict(figures))


@dataclass(frozen=True)
class Figures:
    method: str | None  # the choice; None if nothing is faster than no speculation
    gains: dict[tuple[str, int], float]  # of the choice ÷ the plain speed, by text and streams
    p_value: float  # of samples with and without speculation having one distribution
    control_p_value: float  # the same for samples at two temperatures, which differ


def verdict(figures: Figures) -> Verdict:
    if figures.method is None:
        chosen = Bar("a choice that is faster than no speculation", "none", "one", holds=False)
        return Verdict("nothing is faster than no speculation here, which is what is run", (chosen,))
    at_one, least = figures.gains["routine", 1], min(figures.gains.values())
    control = f"temperature {CONTROL_TEMPERATURE} against 1, p"
    bars = (
        at_least("times the plain speed on tool calls, 1 stream", at_one, MIN_GAIN),
        at_least("the same at the least, over texts and streams", least, NOISE),
        at_least("with and without speculation the same distribution, p", figures.p_value, MIN_P, ".3f"),
        Bar(control, f"{figures.control_p_value:.3f}", f"< {MIN_P:.3f}", figures.control_p_value < MIN_P),
    )
    figure = (
        f"{figures.method} as chosen: {at_one:.2f} times the plain speed on tool calls at 1 stream (bar {MIN_GAIN}), "
        f"{least:.2f} at the least over texts and batches (bar {NOISE}); same distribution with p = "
        f"{figures.p_value:.3f} (bar {MIN_P})"
    )
    return Verdict(figure, bars)


def report(work: Work, measured: dict[str, Any]) -> None:
    for name, one in measured.items():
        for text, counted in one["counted"].items():
            gains = {batch: statistics.median(r) for (t, batch), r in gains_of(one).items() if t == text}
            said = ", ".join(f"{gain:.2f} at {batch}" for batch, gain in gains.items())
            console.print(f"{name}, {text}: {taken(counted):.0%} of drafts accepted; times the plain speed: {said}")
    add_to_card(work, measured)
    show_plan(measured)


def show_differences(found: dict[str, Any]) -> None:
    console.print(
        f"greedy, {found['compared']} answers: {found['same']} the same, right {found['right_plain']} without and "
        f"{found['right_speculative']} with; at temperature 1, {found['different_answers']:.1f} different answers of "
        f"{SAMPLES} to a prompt"
    )


def show_plan(measured: dict[str, Any]) -> None:
    """Show planned gains on other hardware: on two cores a drafter's step costs nearly as much as a full model's."""
    name, tokens = max((name, tokens) for name, (weights, tokens) in CANDIDATES.items() if weights)
    table, words = planned_table(taken(measured[name]["counted"]["routine"]), tokens)
    console.print(table)
    console.print(f"by the planner, a drafter with this acceptance gains {PAYS} times on {CHIP}: {'; '.join(words)}")


def add_to_card(work: Work, measured: dict[str, Any]) -> None:
    path = work.folder / "card.json"
    if not path.exists():
        return
    card = json.loads(path.read_text())
    card["acceptance"] = {
        f"{text}, {tokens} ahead": {
            "tokens": tokens,
            "acceptance": taken(counted),
            "speedup": statistics.median(gains_of(measured[name])[text, 1]),
        }
        for name, (weights, tokens) in CANDIDATES.items()
        if weights
        for text, counted in measured[name]["counted"].items()
    }
    path.write_text(json.dumps(card))
    (work.folder / "CARD.md").write_text(card_page(card), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
