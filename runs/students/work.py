"""The work folder of runs/distill.sh, runs/drafter.sh and runs/mistakes.sh: sizes, models, engines and kept stages."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console

from headway.distill.training_env import run_script, training_python
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cache_dir, cpu_vllm, free_port
from runs.measure.kept import Stage, once
from runs.measure.sources import Sources
from runs.measure.streams import process

console = Console(width=120)
SOURCES = Sources()
PARSED = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", "2048")
TEACHER, SEATS, ANSWER_TOKENS = "assistant", 64, 128
MAX_TOKENS = 1024


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
    """The folder, and what its stages need. What is here is part of every stage's code: how they are kept is not."""

    def __init__(self, folder: Path, sizes: Sizes, cores: list[int]) -> None:
        self.folder, self.sizes, self.cores = folder, sizes, cores
        self.threads = len(cores)
        self._places: SimpleQueue[int] = SimpleQueue()
        for place in range(len(cores)):
            self._places.put(place)
        folder.mkdir(parents=True, exist_ok=True)
        self.engine = ensure_cpu_engine(console.print)
        self.base = ensure_smollm2(self.engine, console.print)
        self.training = training_python(console.print)

    @contextlib.contextmanager
    def a_core(self) -> Iterator[int]:
        """The place of a core among `cores` that nobody else has; waits for one."""
        place = self._places.get()
        try:
            yield place
        finally:
            self._places.put(place)

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


def open_work(cores: list[int], *, tiny: bool = False) -> Work:
    return Work(cache_dir() / ("distill-tiny" if tiny else "distill"), TINY if tiny else Sizes(), cores)


def keep(work: Work, stage: Stage, context: Any = None) -> Any:
    """The result of the stage: kept if code and inputs are the same, else made now, from `context` or `work`."""
    settings = {**asdict(work.sizes), "threads": work.threads}
    return once(stage, work.folder, context or work, settings, SOURCES, console)


def result_of(work: Work, name: str) -> Any:
    """Of a stage that is done."""
    return json.loads((work.folder / f"{name}.json").read_text())["result"]


def minutes_of(work: Work, name: str) -> float:
    return float(json.loads((work.folder / f"{name}.json").read_text())["minutes"])


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
