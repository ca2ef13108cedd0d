"""A finished stage is kept for the same code and the same inputs: touching either has it done anew, nothing else does."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from runs.measure.kept import Stage, content_hash, once
from runs.measure.sources import ROOT, Sources
from runs.mistakes import by_speed
from runs.students import drafter, stages

# A small repository: a stage, what it uses, and what it does not.
FILES = {
    "runs/stage.py": '''
"""Stages."""

from headway.core import rule
from headway.training import run_script
from runs.tools import double

SCALE = 3
UNUSED = 4


def train(context, size):
    """Train."""
    context.append(size)
    run_script("python", "train", {})
    return helper(size) + rule(size)


def helper(size):
    return double(size) * SCALE


def other():
    return [UNUSED, "-m", "headway", "serve"]


def serve():
    return ["python", "-m", "headway", "serve", "--config"]
''',
    "runs/tools.py": "def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n",
    "headway/core.py": "from headway import units\n\n\ndef rule(x):\n    return units.ONE * x\n",
    "headway/units.py": "ONE = 1\n",
    "headway/training.py": "def run_script(python, name, settings):\n    pass\n",
    "headway/distill/train.py": 'def load_sibling(name):\n    pass\n\n\npacks = load_sibling("packs")\n',
    "headway/distill/packs.py": "SIZE = 1\n",
    "headway/run.py": "PORT = 8000\n",
    "headway/unrelated.py": "X = 1\n",
}


REAL = Sources()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def train_hash(root: Path) -> str:
    return Sources(root).hash("runs.stage", "train")


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("runs/stage.py", "helper(size) + rule(size)", "helper(size) - rule(size)"),
        ("runs/stage.py", "double(size) * SCALE", "double(size) + SCALE"),
        ("runs/stage.py", "SCALE = 3", "SCALE = 5"),
        ("runs/tools.py", "2 * x", "2 * x + 1"),
        ("headway/core.py", "* x", "+ x"),
        ("headway/units.py", "ONE = 1", "ONE = 2"),
        ("headway/training.py", "pass", "return 1"),
        ("headway/distill/train.py", "pass", "return 1"),
        ("headway/distill/packs.py", "SIZE = 1", "SIZE = 2"),
    ],
)
def test_code_that_a_stage_reaches_changes_its_hash(root: Path, name: str, old: str, new: str) -> None:
    before = train_hash(root)
    edit(root, name, old, new)
    assert train_hash(root) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("runs/stage.py", "UNUSED = 4", "UNUSED = 5"),
        ("runs/stage.py", "return [UNUSED,", "return [0, UNUSED,"),
        ("runs/stage.py", '"""Train."""', '"""Train a model."""'),
        ("runs/stage.py", "SCALE = 3", "SCALE = 3  # three"),
        ("runs/stage.py", "context.append(size)", "context.append(\n        size\n    )"),
        ("runs/tools.py", "3 * x", "4 * x"),
        ("headway/run.py", "8000", "9000"),
        ("headway/unrelated.py", "X = 1", "X = 2"),
    ],
)
def test_nothing_else_does(root: Path, name: str, old: str, new: str) -> None:
    before = train_hash(root)
    edit(root, name, old, new)
    assert train_hash(root) == before


def test_a_command_that_is_started_counts(root: Path) -> None:
    before = Sources(root).hash("runs.stage", "serve")
    edit(root, "headway/run.py", "8000", "9000")
    assert Sources(root).hash("runs.stage", "serve") != before


@pytest.mark.parametrize("name", ["gateway/trip.py", "ledger/spool.py", "dispatch/leading.py"])
def test_a_cell_counts_that_is_started_as_processes(name: str) -> None:
    assert ROOT / "headway" / name in {one.path for one in REAL.reached("runs.torture.on_vllm")}


@pytest.mark.parametrize("name", ["first", "second"])
def test_modules_that_are_imported_as_one_name_all_count(root: Path, name: str) -> None:
    edit(root, "headway/core.py", "from headway", "import headway.first, headway.second\nfrom headway")
    for one in ("first", "second"):
        (root / f"headway/{one}.py").write_text("X = 1\n")
    before = train_hash(root)
    edit(root, f"headway/{name}.py", "1", "2")
    assert train_hash(root) != before


def test_the_version_of_a_package_counts_unless_it_only_prints() -> None:
    """These modules import msgspec and rich."""
    parts = REAL.parts("runs.students.stages", "measure_speeds")
    assert any(part.startswith("msgspec==") for part in parts)
    assert not any(part.startswith("rich==") for part in parts)


@pytest.mark.parametrize(
    ("stage", "module"),
    [
        (stages.tune_teacher, "headway.distill.train"),
        (stages.train_students, "headway.distill.packing"),
        (stages.quantise, "headway.distill.quantise"),
        (stages.cut_student, "headway.distill.cut"),
        (stages.collect_answers, "headway.core.machine"),
        (stages.make_tasks, "runs.students.routine:APPLICATION"),
        (drafter.measure, "runs.engine.pairs:compare"),
        (by_speed.ask, "headway.evals.verdict"),
    ],
)
def test_the_real_stages_reach_what_makes_their_results(stage: Callable[..., Any], module: str) -> None:
    home = Path(stage.__code__.co_filename).relative_to(Path(__file__).parents[2]).with_suffix("")
    parts = REAL.parts(".".join(home.parts), stage.__name__)
    assert any(part.startswith(f"{module}:") for part in parts)
    assert not any("is not there" in part[:200] for part in parts)
    assert not any(part.startswith("runs.measure.kept:") for part in parts), "how results are kept makes none of them"


# --- kept results ---


def loaded(root: Path) -> ModuleType:
    """The module of stages as it stands now. What it imports is not called."""
    source = (root / "runs/stage.py").read_text().replace("from headway", "# from headway").replace("from runs", "# ")
    path = root / "runs/stage.py"
    spec = importlib.util.spec_from_loader("stage", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, str(path), "exec"), module.__dict__)
    module.__dict__.update(rule=lambda x: x, double=lambda x: 2 * x, run_script=lambda *_: None)
    return module


class Keeper:
    """Runs the stage of the small repository; `context` has an entry for each time it was really done."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.context, self.said = root, root / "work", list[int](), io.StringIO()
        self.folder.mkdir()
        self.data = self.folder / "data.jsonl"
        self.data.write_text("1\n")
        self.model = self.folder / "model"
        self.model.mkdir()
        (self.model / "weights").write_text("w")

    def stage(self) -> Stage:
        train = loaded(self.root).train
        made = self.folder / "made"
        return Stage("train", self._making(train, made), 1, (7,), reads=(self.data, self.model), makes=(made,))

    def _making(self, train: Callable[..., Any], made: Path) -> Callable[..., Any]:
        def run(context: list[int], size: int) -> Any:
            with made.open("a") as file:
                file.write("row\n")
            return train(context, size)

        run.__wrapped__ = train  # type: ignore[attr-defined]  # it is the code of `train` that counts
        return run

    def run(self, stage: Stage | None = None, settings: Any = None) -> Any:
        console = Console(file=self.said, width=200)
        return once(stage or self.stage(), self.folder, self.context, settings, Sources(self.root), console)


@pytest.fixture
def keeper(root: Path) -> Keeper:
    return Keeper(root)


def test_a_stage_is_done_once(keeper: Keeper) -> None:
    assert keeper.run() == keeper.run() == 2 * 7 * 3 + 7
    assert keeper.context == [7]
    assert "train: kept, made 20" in keeper.said.getvalue()


def test_a_stage_is_done_anew_for_other_code(keeper: Keeper) -> None:
    keeper.run()
    edit(keeper.root, "runs/stage.py", "SCALE = 3", "SCALE = 5")
    assert keeper.run() == 2 * 7 * 5 + 7
    assert keeper.context == [7, 7]


def change_data(keeper: Keeper) -> None:
    keeper.data.write_text("2\n")


def change_model(keeper: Keeper) -> None:
    (keeper.model / "weights").write_text("v")


def add_to_model(keeper: Keeper) -> None:
    (keeper.model / "config").write_text("{}")


def lose_what_it_made(keeper: Keeper) -> None:
    (keeper.folder / "made").unlink()


def lose_the_key(keeper: Keeper) -> None:
    path = keeper.folder / "train.json"
    path.write_text(json.dumps({"result": 1, "minutes": 2.0}))  # as it was written before there were keys


@pytest.mark.parametrize("change", [change_data, change_model, add_to_model, lose_what_it_made, lose_the_key])
def test_a_stage_is_done_anew_for_other_inputs(keeper: Keeper, change: Callable[[Keeper], None]) -> None:
    keeper.run()
    change(keeper)
    keeper.run()
    assert keeper.context == [7, 7]
    assert (keeper.folder / "made").read_text() == "row\n", "what an earlier one made is gone"


def test_arguments_settings_and_setup_are_inputs(keeper: Keeper) -> None:
    keeper.run()
    stage = keeper.stage()
    keeper.run(replace(stage, arguments=(8,)))
    keeper.run(replace(stage, arguments=(8,), setup=(loaded(keeper.root).serve, {"price": 1})))
    keeper.run(replace(stage, arguments=(8,), setup=(loaded(keeper.root).serve, {"price": 2})))
    edit(keeper.root, "headway/run.py", "8000", "9000")
    keeper.run(replace(stage, arguments=(8,), setup=(loaded(keeper.root).serve, {"price": 2})))
    keeper.run(replace(stage, arguments=(8,), setup=(loaded(keeper.root).serve, {"price": 2})), {"threads": 2})
    assert keeper.context == [7, 8, 8, 8, 8, 8]


def touch_data(keeper: Keeper) -> None:
    os.utime(keeper.data, (1, 1))


def add_a_file_beside(keeper: Keeper) -> None:
    (keeper.folder / "notes.txt").write_text("x")


def change_other_code(keeper: Keeper) -> None:
    edit(keeper.root, "headway/unrelated.py", "X = 1", "X = 2")
    edit(keeper.root, "runs/stage.py", "UNUSED = 4", "UNUSED = 5")


@pytest.mark.parametrize("change", [touch_data, add_a_file_beside, change_other_code])
def test_a_stage_is_kept_for_anything_else(keeper: Keeper, change: Callable[[Keeper], None]) -> None:
    keeper.run()
    change(keeper)
    keeper.run()
    assert keeper.context == [7]


def interrupted(keeper: Keeper) -> None:
    def fails(context: list[int], size: int) -> None:
        (keeper.folder / "made").write_text("half\n")
        raise KeyboardInterrupt

    fails.__wrapped__ = loaded(keeper.root).train  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        keeper.run(replace(keeper.stage(), run=fails))


def test_an_interrupted_stage_goes_on_from_what_it_made(keeper: Keeper) -> None:
    interrupted(keeper)
    keeper.run()
    assert (keeper.folder / "made").read_text() == "half\nrow\n"


def test_an_interrupted_stage_of_other_code_begins_anew(keeper: Keeper) -> None:
    interrupted(keeper)
    edit(keeper.root, "runs/stage.py", "SCALE = 3", "SCALE = 5")
    keeper.run()
    assert (keeper.folder / "made").read_text() == "row\n"


def test_what_is_not_there_has_a_hash_of_its_own(tmp_path: Path) -> None:
    assert content_hash(tmp_path / "none") == "missing"
    (tmp_path / "none").write_text("")
    assert content_hash(tmp_path / "none") != "missing"
