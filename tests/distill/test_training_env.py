"""The training environment: its packages, and running scripts in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from headway.distill import training_env
from headway.distill.training_env import run_script, script, training_python
from headway.errors import SetupError

ROOT = Path(__file__).parent.parent.parent


def test_this_python_is_used_if_it_has_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_env, "MODULES", ("json",))
    assert training_python(print) == Path(sys.executable)


def test_scripts_import_nothing_of_headway() -> None:
    """They run in a Python in which Headway is not installed."""
    for name in ("cut", "train", "quantise", "packing"):
        text = (ROOT / "headway" / "distill" / f"{name}.py").read_text()
        assert not re.search(r"^\s*(from|import) headway", text, re.MULTILINE), name


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(training_env, "__file__", str(tmp_path / "training_env.py"))
    return tmp_path


def test_a_script_prints_and_reads_json(scripts: Path) -> None:
    (scripts / "echo.py").write_text(
        "import json, sys\nprint('noise')\nprint(json.dumps({'got': json.loads(sys.argv[1])['a']}), flush=True)\n"
        "for line in sys.stdin: print(json.dumps({'told': json.loads(line)['b']}), flush=True)\n"
    )
    with script(Path(sys.executable), "echo", {"a": 1}) as running:
        said = running.lines()
        assert next(said) == {"got": 1}
        running.send({"b": 2})
        assert next(said) == {"told": 2}


def test_the_error_quotes_the_output_of_a_failed_script(scripts: Path) -> None:
    (scripts / "bad.py").write_text("print('{\"step\": 1}')\nraise SystemExit('out of memory')\n")
    seen: list[object] = []
    with pytest.raises(SetupError, match="out of memory"):
        run_script(Path(sys.executable), "bad", {}, seen.append)
    assert seen == [{"step": 1}]


def test_the_error_quotes_a_script_that_dies_while_it_reads(scripts: Path) -> None:
    (scripts / "dies.py").write_text(
        "import sys\nsys.stdin.close()\nprint('{}', flush=True)\nsys.exit('no such layer')\n"
    )
    with (
        pytest.raises(SetupError, match=r"dies.py failed(.|\n)*no such layer"),
        script(Path(sys.executable), "dies", {}) as running,
    ):
        said = running.lines()
        next(said)
        for _ in range(1000):
            running.send({"measure": [0] * 1000})
        next(said)
