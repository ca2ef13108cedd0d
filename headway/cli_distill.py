"""`headway distill`: a teacher's answers, a student cut from it, trained, made small, published, with its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.fares import read_frontier
from headway.config import load
from headway.distill.card import card_page, read_results
from headway.distill.collect import Collected, Teacher, answered_keys, estimate, read_questions
from headway.distill.collect import collect as ask_all
from headway.distill.fit import fits, places, weigh
from headway.distill.losses import draw_losses
from headway.distill.publish import FirstRung, Guessing, Spark, best_tokens
from headway.distill.publish import publish as write_published
from headway.distill.student import cut_student
from headway.distill.template import hermes_template
from headway.distill.training_env import run_script, training_python
from headway.errors import SetupError
from headway.evals.task_files import read_tasks

console = Console()
distill_app = typer.Typer(
    no_args_is_help=True,
    help="From a teacher to a student: many times faster, less right, and honest about it.",
    epilog="Example: `headway distill collect prompts.jsonl --model my-model --out answers.jsonl`",
)
Rows = Annotated[list[Path], typer.Option("--rows", help="Answers, as `collect` writes them; may be given again.")]
ByHeart = Annotated[
    Path | None, typer.Option(help="Tasks whose tools it shall know by heart: its template does not show them.")
]
Hermes = Annotated[bool, typer.Option(help="Show tools in the Hermes form: for models whose own template has none.")]
WordsAgain = Annotated[
    bool, typer.Option(help="Say a request's words again as they begin in an answer: small models then copy them.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Of the CPU; else all.")]
Bytes = Annotated[Path, typer.Argument(help="A folder with a model.")]


@distill_app.command(
    epilog="Example: `headway distill collect prompts.jsonl --url http://127.0.0.1:8000 --model m --out answers.jsonl`"
)
def collect(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with `messages` or a `prompt`, and `tools` if any.")],
    model: Annotated[str, typer.Option(help="The teacher, as the endpoint has it.")],
    url: Annotated[str, typer.Option(help="Headway, or any endpoint of the OpenAI dialect.")] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="The answers; a run that was cut off goes on.")] = Path("answers.jsonl"),
    tier: Annotated[str, typer.Option(help="Stand-by seats by default.")] = "flex",
    at_once: Annotated[int, typer.Option(min=1, max=512, help="Calls under way.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.0,
    top_logprobs: Annotated[
        int, typer.Option(min=0, max=20, help="Also keep so many likely tokens; 0 where the engine is not vLLM.")
    ] = 10,
    input_price: Annotated[float, typer.Option(min=0, help="Of a million prompt tokens, for the estimate.")] = 0.0,
    output_price: Annotated[float, typer.Option(min=0, help="Of a million output tokens.")] = 0.0,
    key: Annotated[str | None, typer.Option(envvar="HEADWAY_KEY", help="Where the gateway asks for one.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it starts.")] = False,
) -> None:
    """Ask the teacher every prompt of a file, once each, and keep its answers."""
    teacher = Teacher(url, model, tier, max_tokens, temperature, top_logprobs, key)
    questions, doubles = read_questions(prompts, teacher)
    left = estimate(questions, doubles, answered_keys(out))
    console.print(
        f"{left.questions} calls to make ({left.answered} answered already, {doubles} doubles left out): about "
        f"{left.prompt_tokens:,} prompt tokens, at most {left.most_output_tokens:,} output tokens, "
        f"at most {left.cost(input_price, output_price):,.2f} at the prices given.",
        highlight=False,
    )
    if left.questions == 0 or not (yes or typer.confirm("Start?", default=True)):
        return
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("asking", total=left.questions)

        def show(now: Collected) -> None:
            done = now.answered + len(now.refused)
            progress.update(bar, completed=done, description=f"{now.output_tokens:,} tokens, {now.put_off} put off")

        got = ask_all(teacher, questions, out, at_once, show)
    console.print(
        f"{got.answered} answers, {got.prompt_tokens:,} + {got.output_tokens:,} tokens: {out}", highlight=False
    )
    for said in sorted(set(got.refused))[:5]:
        console.print(f"not answered ({got.refused.count(said)}): {said}", markup=False, highlight=False)


@distill_app.command(epilog="Example: `headway distill cut teacher --rows answers.jsonl --layers 10 --out student`")
def cut(
    teacher: Annotated[Path, typer.Argument(help="The folder of the model whose layers are cut.")],
    rows: Annotated[Path, typer.Option(help="Answers to measure the layers' influence on.")],
    layers: Annotated[int, typer.Option(min=2, help="How many to keep.")],
    out: Annotated[Path, typer.Option(help="The folder for the student.")] = Path("student"),
    count: Annotated[int, typer.Option(min=1, help="How many rows to measure on.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Layers dropped between two measurements.")] = 1,
    hermes: Hermes = False,
    by_heart: ByHeart = None,
    words_again: WordsAgain = False,
    threads: Threads = None,
) -> None:
    """Make a student out of a teacher by dropping the layers that change the least, as measured."""
    _require_new(out)

    def show(influences: list[float]) -> None:
        least = min(influences[1:-1])
        console.print(f"{len(influences)} layers left, least influence {least:.4f}", highlight=False)

    done = cut_student(
        training_python(_note), teacher, rows, layers, out,
        count=count, at_once=at_once, template=_template(by_heart, hermes, words_again), threads=threads, measured=show,
    )  # fmt: skip
    share = done.params / done.teacher_params
    console.print(
        f"kept layers {done.layers}: {done.params:,} parameters, {share:.0%} of the teacher's: {out}", highlight=False
    )


@distill_app.command(
    epilog="Example: `headway distill train student --teacher-share 0.8 --rows answers.jsonl --out trained`"
)
def train(
    model: Annotated[Path, typer.Argument(help="The folder of the model to train.")],
    rows: Rows,
    out: Annotated[Path, typer.Option(help="For checkpoints, losses and the model; goes on there.")] = Path("trained"),
    teacher_share: Annotated[
        float, typer.Option(min=0, max=1, help="Of the loss: the teacher's distribution over its answers.")
    ] = 0.0,
    epochs: Annotated[float, typer.Option(min=0.01)] = 1.0,
    batch: Annotated[int, typer.Option(min=1, help="Packs to a step.")] = 4,
    pack_tokens: Annotated[int, typer.Option(min=1, help="Rows are laid together up to so many tokens.")] = 1024,
    learning_rate: Annotated[float, typer.Option(min=0)] = 3e-4,
    max_tokens: Annotated[int, typer.Option(min=16, help="Longer rows are left out.")] = 1024,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after so many, with what was learnt.")] = None,
    train_embedding: Annotated[
        bool, typer.Option(help="Also the embedding; a frozen one keeps the words that no row has.")
    ] = True,
    hermes: Hermes = False,
    by_heart: ByHeart = None,
    words_again: WordsAgain = False,
    threads: Threads = None,
) -> None:
    """Train on answers with TRL: plainly (SFT), or towards the teacher's distribution (logit distillation)."""
    settings: dict[str, Any] = {
        "model": str(model.resolve()),
        "rows": [str(one.resolve()) for one in rows],
        "out": str(out.resolve()),
        "teacher_share": teacher_share, "epochs": epochs, "batch": batch, "pack_tokens": pack_tokens,
        "learning_rate": learning_rate, "max_tokens": max_tokens, "train_embedding": train_embedding,
        "seed": seed, "minutes": minutes, "threads": threads, "template": _template(by_heart, hermes, words_again),
    }  # fmt: skip
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("loading", total=None)

        def show(said: Mapping[str, Any]) -> None:
            tps = f"{(said.get('tokens') or 0) / said['s']:,.0f} tok/s" if said.get("s") else ""
            if "step" in said:
                text = f"loss {said['loss']}, {tps}"
                progress.update(bar, completed=said["step"], total=said["of"], description=text)
            elif "rows" in said:
                text = f"{said['used']} of {said['rows']} rows, {said['tokens_an_epoch']:,} tokens an epoch " + (
                    f"({said['tokens_alone']:,} if nothing were shared)"
                )
                progress.console.print(text, highlight=False)

        done = run_script(training_python(_note), "train", settings, show)
    picture = draw_losses(out / "losses.csv", f"{model.name}: {'distillation' if teacher_share else 'SFT'}")
    console.print(f"{done['written']}; {picture} shows its losses.", highlight=False)


@distill_app.command(epilog="Example: `headway distill quantise trained/model --out student-int8`")
def quantise(model: Bytes, out: Annotated[Path, typer.Option(help="The folder for the int8 model.")]) -> None:
    """Write a model with int8 weights and activations (W8A8), as vLLM loads it."""
    _require_new(out)
    settings = {"model": str(model.resolve()), "to": str(out.resolve())}
    done = run_script(training_python(_note), "quantise", settings, lambda _said: None)
    before = weigh(model).file_bytes
    console.print(
        f"{before:,} bytes became {done['bytes']:,}; the largest relative error of a layer's weights is "
        f"{done['worst_relative_error']:.1%}. A quantised model is another model: count its mistakes too.",
        highlight=False,
    )


@distill_app.command(epilog="Example: `headway distill fit student-int8`")
def fit(
    model: Bytes,
    bench: Annotated[Path | None, typer.Option(help="Its bench.json: the measured step is shown beside.")] = None,
) -> None:
    """Show a model's bytes beside the memories it could live in, and the least time a step takes there."""
    weights = weigh(model)
    console.print(f"{weights.params:,} parameters, {weights.file_bytes:,} bytes, a step reads {weights.step_bytes:,}")
    table = Table("memory", "bytes", "holds it", "least step, ms")
    for one in fits(weights, places()):
        step = "unknown" if one.least_step_ms is None else f"{one.least_step_ms:.3g}"
        held = "yes" if one.holds else f"no: {one.needed:,} of them would"
        table.add_row(one.place.name, f"{one.place.size_bytes:,.0f}", held, step)
    console.print(table)
    if bench is not None:
        alone = read_frontier(bench)[0]
        step_ms = 1000 / alone.nine_in_ten_tps
        rate = weights.step_bytes / step_ms / 1e6
        console.print(f"measured with {alone.streams} stream(s): {step_ms:.1f} ms a step, {rate:.1f} GB/s of weights")


@distill_app.command(
    epilog="Example: `headway distill publish student --model m --url http://127.0.0.1:8002 --bench spark/bench.json`"
)
def publish(
    student: Bytes,
    model: Annotated[str, typer.Option(help="The full model, as headway.toml has it.")],
    url: Annotated[str | None, typer.Option(help="Where an engine serves the student: makes the -spark model.")] = None,
    seats: Annotated[int, typer.Option(min=1, help="Of that engine.")] = 16,
    floor: Annotated[float | None, typer.Option(min=0.1, help="In tok/s, promised to its `fast` streams.")] = None,
    bench: Annotated[
        Path | None, typer.Option(help="That engine's bench.json: its curve, which a floor needs.")
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, max=16, help="Guess so many ahead for the full model; 0 switches it off.")
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Measured chance that the first, second, .. guess is taken, as 0.8,0.7,0.5: chooses how many."
        ),
    ] = None,
    draft_cost: Annotated[float, typer.Option(min=0, help="A step of the student ÷ one of the full model.")] = 0.3,
    draft_up_to: Annotated[
        int | None, typer.Option(min=1, help="Streams up to which guessing was found to pay.")
    ] = None,
    auto: Annotated[
        Path | None, typer.Option(help="What `headway auto calibrate` wrote: makes the -auto model.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Share of calls that may be excess mistakes.")
    ] = 0.02,
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")] = Path("headway.toml"),
) -> None:
    """Write a student into headway.toml: as the -spark model, as drafter of the full one, as first rung of -auto."""
    weigh(student)  # says what is wrong with a folder that is no model
    if acceptance is not None:
        draft_tokens, gain = best_tokens(_chances(acceptance), draft_cost)
        console.print(f"{draft_tokens} tokens ahead, {gain:.2f} times the speed expected", highlight=False)
    if url is None and draft_tokens is None and auto is None:
        raise SetupError(
            "Nothing to publish: give --url for the -spark model, --draft-tokens for the drafter, --auto for -auto."
        )
    weights = str(student.resolve())
    curve = [(one.streams, one.nine_in_ten_tps) for one in read_frontier(bench)] if bench is not None else []
    spark = Spark(weights, url, seats, floor, curve) if url is not None else None
    guessing = Guessing.up_to(weights, draft_tokens, draft_up_to) if draft_tokens is not None else None
    first_rung = FirstRung(str(auto), budget) if auto is not None else None
    for change in write_published(config, model, spark, guessing, load, first_rung):
        console.print(f"[green]{config}[/green]: {change}.", highlight=False)


@distill_app.command(epilog="Example: `headway distill card card.json --out student/CARD.md`")
def card(
    results: Annotated[Path, typer.Argument(help="What was measured, as JSON.")],
    out: Annotated[Path, typer.Option(help="The card, as Markdown.")] = Path("CARD.md"),
) -> None:
    """Write a student's card from measured results: mistakes, speed, bytes, its training, and what it is bad at."""
    out.write_text(card_page(read_results(results)), encoding="utf-8")
    console.print(f"{out} is written.", highlight=False)


def _template(by_heart: Path | None, hermes: bool, words_again: bool) -> str | None:
    """None: the model's own stays. The other two are said of ours only, so any of them asks for it."""
    if not (by_heart or hermes or words_again):
        return None
    tasks = read_tasks(by_heart) if by_heart is not None else []
    names = {tool["function"]["name"] for task in tasks for tool in task.tools}
    return hermes_template(sorted(names), words_again=words_again)


def _chances(said: str) -> list[float]:
    try:
        chances = [float(one) for one in said.split(",")]
    except ValueError:
        chances = []
    if not 1 <= len(chances) <= 16 or any(not 0 <= one <= 1 for one in chances):
        raise SetupError(f"--acceptance {said}: must be like 0.8,0.7,0.5, at most 16 of them.")
    return chances


def _require_new(out: Path) -> None:
    if out.exists():
        raise SetupError(f"{out} is there already: name another folder with --out, or remove it.")


def _note(text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False)
