"""The demo from its first line to its last. A stand-in for vLLM answers with the scripted engine; the gateway, the calls that
are pasted and the official SDKs are real."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from rich.console import Console

from headway.bench.fares import FrontierPoint
from headway.config import load, parse
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from headway.gateway.serve import Gateway
from headway.local.demo import run as demo_run
from headway.local.demo.calls import calls_to_paste
from headway.local.demo.engines import cpu_engines, gpu_engines, visible_gpus
from headway.local.demo.offer import config_text, offer_for, stage_for
from headway.local.demo.run import DemoOptions, run_demo
from headway.local.demo.speed import DemoSpeed, keep_speed, measure_speed, read_speed, speed_file
from headway.local.engine_process import EngineProcess, free_port
from headway.local.guard import group_members
from tests.local.demo_process import DemoProcess, assert_all_ended, paste, processes_of, tiers_proved
from tests.local.test_engine_process import STAND_IN

# Among 16 streams each gets a quarter of the speed of one alone.
SCRIPTED_VLLM = f"""#!{sys.executable}
import sys
from headway.engines.scripted import Script, ScriptedEngine, serve_scripted
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
seats = int(option("--max-num-seqs"))
script = Script(option("--served-model-name"), 0.01, ((1, 0.004), (16, 0.016)), seats)
serve_scripted(ScriptedEngine(script), option("--host"), int(option("--port")))
"""
MODEL = "it's/mine"  # a quote, to see that what is printed can be pasted
POINTS = [FrontierPoint(1, 8.0, [9.0]), FrontierPoint(8, 6.0, [7.0]), FrontierPoint(64, 2.0, [2.5])]


def add_command(folder: Path, name: str, source: str) -> None:
    (folder / name).write_text(source)
    (folder / name).chmod(0o755)


def add_gpus(folder: Path, count: int) -> None:
    gpus = "\n".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number}a-b)" for number in range(count))
    add_command(folder, "nvidia-smi", f"#!/bin/sh\necho '{gpus}'\n")


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stand-ins for `vllm` and `nvidia-smi`, on a machine with two GPUs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    add_command(folder, "vllm", SCRIPTED_VLLM)
    add_gpus(folder, 2)
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


# --- the whole, as a process -----------------------------------------------------------------------------------------


def test_the_demo_races_prints_calls_that_run_as_pasted_and_leaves_nothing(tmp_path: Path) -> None:
    demo = DemoProcess("--model", MODEL, "--seats", "16", "--rounds", "1000")
    try:
        demo.wait_for("round 1: ")
        demo.process.send_signal(signal.SIGINT)  # ends the race, and nothing else
        demo.wait_for("Ctrl-C stops the gateway and the engines.")
        calls = calls_to_paste(MODEL, demo.port)
        for command in calls.values():
            assert f"\n{command}\n" in demo.output
            assert tiers_proved(paste(command)) == ["standard", "fast"]
        config = load(tmp_path / "cache" / "demo" / "headway.toml")
        found = re.search(rf"http://127\.0\.0\.1:{demo.port}/console#key=(\S+)", demo.output)
        assert found
        assert config.gateway.admin_key_hashes == [hashlib.sha256(found[1].encode()).hexdigest()]
        assert len(processes_of(tmp_path / "cache")) >= 1 + 2
        assert demo.end(signal.SIGINT) == 0
    finally:
        demo.close()
    assert_all_ended(tmp_path / "cache")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", demo.port), 1)
    for said in (
        "1/3",
        "2/3",
        "3/3",
        "Real engines: vLLM with it's/mine, on 2 GPUs.",
        "ready after",
        "Nothing is left",
    ):
        assert said in demo.output
    assert "Traceback" not in demo.output
    assert [tier.name for tier in config.models[0].tiers] == ["standard", "fast", "flex"]
    assert [replica.seats for replica in config.models[0].replicas] == [16, 16]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_with_one_gpu_there_is_one_engine_and_no_race(commands: Path, tmp_path: Path, number: signal.Signals) -> None:
    add_gpus(commands, 1)
    demo = DemoProcess("--model", MODEL, "--seats", "16")
    try:
        demo.wait_for("Ctrl-C stops the gateway and the engines.")
        assert "There is no race: it needs two engines, and this machine has one GPU." in demo.output
        assert "round" not in demo.output
        assert tiers_proved(paste(calls_to_paste(MODEL, demo.port)["curl"])) == ["standard", "fast"]
        assert demo.end(number) == 0
    finally:
        demo.close()
    assert_all_ended(tmp_path / "cache")


# --- each end of it --------------------------------------------------------------------------------------------------


def options(model: str | None = "owner/model", port: int | None = None) -> DemoOptions:
    return DemoOptions(model=model, port=port or free_port(), engine_port=None, seats=16, rounds=1)


def never_opened(path: Path) -> AbstractAsyncContextManager[tuple[Gateway, int]]:
    raise SetupError("no gateway")


def interrupted(*args: object, **more: object) -> AbstractAsyncContextManager[tuple[Gateway, int]]:
    raise KeyboardInterrupt


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process group of every engine started."""
    started: list[int] = []
    start = EngineProcess.start

    def remembered(engine: EngineProcess) -> None:
        start(engine)
        started.append(engine.pid)

    monkeypatch.setattr(EngineProcess, "start", remembered)
    return started


def screen() -> Console:
    return Console(file=io.StringIO(), width=60)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("place", "engines", "code"),
    [
        ("ensure_cpu_engine", 0, 130),
        ("ensure_smollm2", 0, 130),
        ("wait_all_ready", 2, 130),
        ("measure_speed", 2, 130),
        ("", 2, 0),  # when the gateway opens
    ],
)
def test_interrupt_at_any_step_ends_quietly(
    place: str, engines: int, code: int, monkeypatch: pytest.MonkeyPatch, groups: list[int], commands: Path
) -> None:
    monkeypatch.setattr(demo_run, "ensure_cpu_engine", lambda say: Path(sys.executable))
    if place.startswith("measure"):
        add_command(commands, "vllm", f"#!{sys.executable}\n{STAND_IN}")
    if place:
        monkeypatch.setattr(demo_run, place, interrupted)
    console = screen()
    on_cpu = place.startswith("ensure")
    assert run_demo(options(None if on_cpu else "owner/model"), console, interrupted) == code
    assert "Stopped." in text_of(console)
    assert [group_members(group) for group in groups] == [[]] * engines


def test_engines_are_stopped_when_the_gateway_fails(groups: list[int]) -> None:
    with pytest.raises(SetupError, match="no gateway"):
        run_demo(options(), screen(), never_opened)
    assert [group_members(group) for group in groups] == [[], []]


def test_named_model_without_vllm_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SetupError, match="pip install vllm"):
        run_demo(options(), screen(), never_opened)


def test_taken_gateway_port_is_reported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "ensure_cpu_engine", interrupted)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError, match="--port"):
        run_demo(options(None, taken.getsockname()[1]), screen(), never_opened)


# --- its engines -----------------------------------------------------------------------------------------------------


def test_each_engine_has_a_core_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5})
    both = cpu_engines(Path("/python"), Path("/model"), 9000, 64)
    assert [(engine.core, engine.port, engine.seats) for engine in both.engines] == [(3, 9000, 64), (5, 9001, 64)]
    assert both.why_one == ""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    single = cpu_engines(Path("/python"), Path("/model"), None, 64)
    assert [engine.core for engine in single.engines] == [0]
    assert "one core" in single.why_one


def test_each_engine_has_a_gpu_of_its_own(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_gpus(commands, 4)
    both = gpu_engines("owner/model", None, 64)
    assert [engine.environment()["CUDA_VISIBLE_DEVICES"] for engine in both.engines] == ["0", "1"]
    assert both.hardware == "NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert [engine.gpu for engine in gpu_engines("owner/model", None, 64).engines] == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert [engine.gpu for engine in gpu_engines("owner/model", None, 64).engines] == [None]


@pytest.mark.parametrize("source", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho 'No devices were found'\n"])
def test_a_machine_that_does_not_list_gpus_has_one_engine(source: str, commands: Path) -> None:
    add_command(commands, "nvidia-smi", source)
    assert visible_gpus() == []
    assert [engine.gpu for engine in gpu_engines("owner/model", None, 64).engines] == [None]


# --- their speed -----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_engine_is_measured_while_the_other_one_is_full() -> None:
    script = Script("m", 0.002, ((1, 0.002), (8, 0.008)), max_num_seqs=8)
    said: list[str] = []
    async with running(script) as measured, running(script) as other:
        speed = await measure_speed([measured.url, other.url], "m", 8, ["settings"], said.append)
        assert other.steps.highest_running == measured.steps.highest_running == 8
        async with asyncio.timeout(20):  # its calls have left
            while other.steps.running:
                await asyncio.sleep(0.01)
    assert said == ["reading prompts", "one stream", "3 streams", "8 streams"]
    assert [point.streams for point in speed.points] == [1, 3, 8]


def test_a_measured_speed_is_kept_for_the_same_settings() -> None:
    one = cpu_engines(Path("/python"), Path("/model"), None, 64).speed_depends_on()
    assert one == cpu_engines(Path("/python"), Path("/model"), None, 64).speed_depends_on()
    speed = DemoSpeed(one, 150.0, POINTS)
    assert read_speed(one) is None
    keep_speed(speed)
    assert read_speed(one) == speed
    assert read_speed(cpu_engines(Path("/python"), Path("/model"), None, 32).speed_depends_on()) is None


def test_a_broken_file_is_measured_again() -> None:
    keep_speed(DemoSpeed(["settings"], 150.0, POINTS))
    speed_file(["settings"]).write_text("{")
    assert read_speed(["settings"]) is None


# --- what it offers --------------------------------------------------------------------------------------------------


def test_the_floor_is_above_the_standard_speed_and_kept_by_several_streams() -> None:
    offer = offer_for(POINTS)
    assert offer.standard_tps == 2.0
    assert 1.3 * offer.standard_tps < offer.floor_tps < offer.target_tps < 8.0
    assert offer.light_seats == 6
    assert offer.curve.speed_tps(offer.light_seats) >= offer.target_tps
    assert offer.price_multiple > 1


def test_engines_without_a_faster_speed_have_nothing_to_offer() -> None:
    with pytest.raises(SetupError, match="hardly faster than 4: there is no speed to sell"):
        offer_for([FrontierPoint(1, 8.0, [8.0]), FrontierPoint(2, 8.0, [8.0]), FrontierPoint(4, 7.5, [7.5])])


def test_the_configuration_is_valid_and_has_what_was_measured() -> None:
    offer = offer_for(POINTS)
    text = config_text(
        offer, DemoSpeed([], 150.0, POINTS), 'a "model"', 64, ["http://h:1", "http://h:2"], 8000, "a" * 64
    )
    model = parse(text, "demo").models[0]
    assert model.name == 'a "model"'
    assert model.price is not None
    assert [(tier.name, tier.floor_tps, tier.target_tps) for tier in model.tiers] == [
        ("standard", None, None),
        ("fast", offer.floor_tps, offer.target_tps),
        ("flex", None, None),
    ]
    assert [replica.curve for replica in model.replicas] == [[(1, 8.0), (8, 6.0), (64, 2.0)]] * 2


@pytest.mark.parametrize(("times", "tokens"), [(0.5, 24), (1.0, 30), (100.0, 200)])
def test_a_round_takes_about_as_long_on_any_engine(times: float, tokens: int) -> None:
    points = [FrontierPoint(one.streams, times * one.nine_in_ten_tps, [times]) for one in POINTS]
    stage = stage_for(offer_for(points), "m", 64, "note")
    assert stage.race_tokens == tokens
    assert stage.callers["standard"] > 64
