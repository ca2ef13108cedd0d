"""`headway distill`: collect a teacher's answers, then cut, train, quantise, publish and describe a student."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.fares import read_frontier
from headway.cli.options import DEFAULT_CONFIG, ApiKey, ConfigPath
from headway.config import load
from headway.config.profiles import valid_name
from headway.distill.card import card_page, read_results
from headway.distill.collect import Collected, Teacher, answered_keys, estimate, read_questions
from headway.distill.collect import collect as ask_all
from headway.distill.fit import fits, places, weigh
from headway.distill.losses import draw_losses
from headway.distill.publish import Drafting, FirstRung, Spark, best_tokens, profile_lines
from headway.distill.publish import publish as write_published
from headway.distill.student import cut_student
from headway.distill.template import hermes_template
from headway.distill.training_env import run_script, training_python
from headway.errors import SetupError
from headway.evals.task_files import read_tasks

console = Console()
distill = typer.Typer()
Rows = Annotated[list[Path], typer.Option("--rows", help="File of answers from `collect`. Repeat for several.")]
ByHeart = Annotated[
    Path | None, typer.Option(help="Task file whose tools the student learns, so that its prompts need not list them.")
]
Hermes = Annotated[bool, typer.Option(help="List tools in Hermes format, for models whose own template has no tools.")]
WordsAgain = Annotated[
    bool, typer.Option(help="Repeat the words of a request as tokens of an answer, which small models copy better.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.", show_default="all")]
ModelFolder = Annotated[Path, typer.Argument(help="Folder of the model.")]


@distill.command(
    epilog="Example: `headway distill collect prompts.jsonl --url http://127.0.0.1:8000 --model m --out answers.jsonl`"
)
def collect(
    prompts: Annotated[
        list[Path], typer.Argument(help="Files of JSON lines with `messages` or `prompt`, and optional `tools`.")
    ],
    model: Annotated[str, typer.Option(help="Name of the teacher on the endpoint.")],
    url: Annotated[
        str, typer.Option(help="URL of Headway or of an OpenAI-compatible server.")
    ] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="File for the answers. An interrupted run continues.")] = Path(
        "answers.jsonl"
    ),
    tier: Annotated[str, typer.Option(help="Tier of the calls.")] = "flex",
    at_once: Annotated[int, typer.Option(min=1, max=512, help="Number of concurrent calls.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Sampling temperature.")] = 0.0,
    top_logprobs: Annotated[
        int, typer.Option(min=0, max=20, help="Likely tokens to keep per token. 0 if the engine is not vLLM.")
    ] = 10,
    input_price: Annotated[float, typer.Option(min=0, help="Price per million prompt tokens, to estimate.")] = 0.0,
    output_price: Annotated[float, typer.Option(min=0, help="Price per million output tokens, to estimate.")] = 0.0,
    key: ApiKey = None,
    yes: Annotated[bool, typer.Option("--yes", help="Start without asking.")] = False,
) -> None:
    """Send every prompt of these files to the teacher and keep its answers."""
    teacher = Teacher(url, model, tier, max_tokens, temperature, top_logprobs, key)
    questions, doubles = read_questions(prompts, teacher)
    left = estimate(questions, doubles, answered_keys(out))
    console.print(
        f"{left.questions} calls to make ({left.answered} answered already, {doubles} duplicates skipped): about "
        f"{left.prompt_tokens:,} prompt tokens, at most {left.max_output_tokens:,} output tokens, "
        f"at most {left.cost(input_price, output_price):,.2f} at the prices given.",
        highlight=False,
    )
    if left.questions == 0 or not (yes or typer.confirm("Start?", default=True)):
        return
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("asking", total=left.questions)

        def show(now: Collected) -> None:
            done = now.answered + len(now.refused)
            progress.update(bar, completed=done, description=f"{now.output_tokens:,} tokens, {now.retries} retries")

        got = ask_all(teacher, questions, out, at_once, show)
    console.print(
        f"{got.answered} answers, {got.prompt_tokens:,} + {got.output_tokens:,} tokens: {out}", highlight=False
    )
    for said in sorted(set(got.refused))[:5]:
        console.print(f"not answered ({got.refused.count(said)}): {said}", markup=False, highlight=False)


@distill.command(epilog="Example: `headway distill cut teacher --rows answers.jsonl --layers 10 --out student`")
def cut(
    teacher: Annotated[Path, typer.Argument(help="Folder of the teacher.")],
    rows: Annotated[Path, typer.Option(help="File of answers on which the layers are measured.")],
    layers: Annotated[int, typer.Option(min=2, help="Number of layers to keep.")],
    out: Annotated[Path, typer.Option(help="Folder for the student.")] = Path("student"),
    count: Annotated[int, typer.Option(min=1, help="Number of answers to measure on.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Layers removed between two measurements.")] = 1,
    hermes: Hermes = False,
    by_heart: ByHeart = None,
    words_again: WordsAgain = False,
    threads: Threads = None,
) -> None:
    """Create a student from a teacher by removing the layers with the least measured influence."""
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


@distill.command(
    epilog="Example: `headway distill train student --teacher-share 0.8 --rows answers.jsonl --out trained`"
)
def train(
    model: Annotated[Path, typer.Argument(help="Folder of the model to train.")],
    rows: Rows,
    out: Annotated[
        Path, typer.Option(help="Folder for checkpoints, losses and the model. An interrupted run continues.")
    ] = Path("trained"),
    teacher_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Weight of the teacher's token distribution in the loss. 0 is plain SFT."),
    ] = 0.0,
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the answers.")] = 1.0,
    batch: Annotated[int, typer.Option(min=1, help="Packs per step.")] = 4,
    pack_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a pack of answers.")] = 1024,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = 3e-4,
    max_tokens: Annotated[int, typer.Option(min=16, help="Maximum tokens of an answer and its prompt.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random number generators.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after this many minutes and keep the model.", show_default="no limit"),
    ] = None,
    train_embedding: Annotated[
        bool, typer.Option(help="Train the embedding too. A frozen one keeps tokens that the answers do not contain.")
    ] = True,
    hermes: Hermes = False,
    by_heart: ByHeart = None,
    words_again: WordsAgain = False,
    threads: Threads = None,
) -> None:
    """Train on answers with TRL: supervised fine-tuning, or distillation towards the teacher's token distribution."""
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
                text = f"{said['used']} of {said['rows']} rows, {said['tokens_an_epoch']:,} tokens per epoch " + (
                    f"({said['tokens_alone']:,} without shared prefixes)"
                )
                progress.console.print(text, highlight=False)

        done = run_script(training_python(_note), "train", settings, show)
    picture = draw_losses(out / "losses.csv", f"{model.name}: {'distillation' if teacher_share else 'SFT'}")
    console.print(f"Wrote {done['written']} and {picture}.", highlight=False)


@distill.command(epilog="Example: `headway distill quantise trained/model --out student-int8`")
def quantise(model: ModelFolder, out: Annotated[Path, typer.Option(help="Folder for the int8 model.")]) -> None:
    """Quantise a model to int8 weights and activations (W8A8) for vLLM."""
    _require_new(out)
    settings = {"model": str(model.resolve()), "to": str(out.resolve())}
    done = run_script(training_python(_note), "quantise", settings, lambda _said: None)
    before = weigh(model).file_bytes
    console.print(
        f"{before:,} bytes became {done['bytes']:,}. The largest relative error of a layer's weights is "
        f"{done['worst_relative_error']:.1%}. Quantisation changes answers: count the mistakes with `headway eval`.",
        highlight=False,
    )


@distill.command(epilog="Example: `headway distill fit student-int8`")
def fit(
    model: ModelFolder,
    bench: Annotated[Path | None, typer.Option(help="bench.json of the model, to show the measured step time.")] = None,
) -> None:
    """Compare the size of a model with the memories of chips, and show the minimum time per step there."""
    weights = weigh(model)
    console.print(f"{weights.params:,} parameters, {weights.file_bytes:,} bytes, a step reads {weights.step_bytes:,}")
    table = Table("memory", "bytes", "fits", "minimum step, ms")
    for one in fits(weights, places()):
        step = "unknown" if one.least_step_ms is None else f"{one.least_step_ms:.3g}"
        held = "yes" if one.holds else f"no: needs {one.needed:,}"
        table.add_row(one.place.name, f"{one.place.size_bytes:,.0f}", held, step)
    console.print(table)
    if bench is not None:
        alone = read_frontier(bench)[0]
        step_ms = 1000 / alone.nine_in_ten_tps
        rate = weights.step_bytes / step_ms / 1e6
        console.print(f"measured with {alone.streams} stream(s): {step_ms:.1f} ms per step, {rate:.1f} GB/s of weights")


@distill.command(
    epilog="Example: `headway distill publish student --model m --url http://127.0.0.1:8002 --bench spark/bench.json`"
)
def publish(
    student: Annotated[Path, typer.Argument(help="Folder of the student.")],
    model: Annotated[str, typer.Option(help="Name of the full model in headway.toml.")],
    url: Annotated[str | None, typer.Option(help="URL of the student's engine. Adds the -spark model.")] = None,
    seats: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent streams of that engine.")] = 16,
    floor: Annotated[float | None, typer.Option(min=0.1, help="Floor of its tier `fast`, in tok/s.")] = None,
    bench: Annotated[
        Path | None, typer.Option(help="bench.json of that engine, for its curve. Required with --floor.")
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=0, max=16, help="Draft tokens for the full model. 0 turns drafting off.")
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Measured acceptance of the first, second, ... draft token, such as 0.8,0.7,0.5. Sets --draft-tokens."
        ),
    ] = None,
    draft_cost: Annotated[float, typer.Option(min=0, help="Step time of the student ÷ that of the full model.")] = 0.3,
    draft_up_to: Annotated[
        int | None, typer.Option(min=1, help="Streams up to which drafting is on.", show_default="no limit")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Print the drafter as a [[models.profiles]] of this name to paste, for some of the engines."),
    ] = None,
    auto: Annotated[
        Path | None, typer.Option(help="File written by `headway auto calibrate`. Adds the -auto model.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Maximum share of calls with an excess mistake.")
    ] = 0.02,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Add a student to headway.toml: as the -spark model, as the drafter of the full model, or for -auto."""
    weigh(student)  # raises SetupError if the folder is not a model
    profile = valid_name(profile)
    if acceptance is not None:
        draft_tokens, gain = best_tokens(_chances(acceptance), draft_cost)
        console.print(f"{draft_tokens} draft tokens, expected speed-up {gain:.2f}", highlight=False)
    if url is None and draft_tokens is None and auto is None:
        raise SetupError(
            "Nothing to publish: set --url for the -spark model, --draft-tokens for the drafter, or --auto for -auto."
        )
    weights = str(student.resolve())
    curve = [(one.streams, one.nine_in_ten_tps) for one in read_frontier(bench)] if bench is not None else []
    spark = Spark(weights, url, seats, floor, curve) if url is not None else None
    drafting = Drafting.up_to(weights, draft_tokens, draft_up_to) if draft_tokens is not None else None
    first_rung = FirstRung(str(auto), budget) if auto is not None else None
    if profile is not None:
        _print_profile(profile, drafting)
        drafting = None
    if spark is None and drafting is None and first_rung is None:
        return
    for change in write_published(config, model, spark, drafting, load, first_rung):
        console.print(f"[green]{config}[/green]: {change}.", highlight=False)


@distill.command(epilog="Example: `headway distill card card.json --out student/CARD.md`")
def card(
    results: Annotated[Path, typer.Argument(help="JSON file with the measured results.")],
    out: Annotated[Path, typer.Option(help="Markdown file for the card.")] = Path("CARD.md"),
) -> None:
    """Write the card of a student from measured results: mistakes, speed, size, training and weaknesses."""
    out.write_text(card_page(read_results(results)), encoding="utf-8")
    console.print(f"Wrote {out}.", highlight=False)


def _print_profile(name: str, drafting: Drafting | None) -> None:
    if drafting is None:
        raise SetupError("--profile is for a drafter: set --draft-tokens or --acceptance.")
    console.print(profile_lines(name, drafting), markup=False, highlight=False, soft_wrap=True, end="")
    _note(f"Start an engine with it (`headway engine`), and add what `headway calibrate --profile {name}` prints.")


def _template(by_heart: Path | None, hermes: bool, words_again: bool) -> str | None:
    """Return the template that these options ask for, or None to keep the model's own."""
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
        raise SetupError(f"--acceptance {said}: must look like 0.8,0.7,0.5, with at most 16 values.")
    return chances


def _require_new(out: Path) -> None:
    if out.exists():
        raise SetupError(f"{out} already exists: choose another folder with --out, or remove it.")


def _note(text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False)
