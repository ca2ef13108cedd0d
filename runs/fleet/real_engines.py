"""Real vLLM that Ray holds: kill -9 of its server, its core, its actor and of both engines. See runs/fleet-vllm.sh."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import uvloop
from rich.console import Console
from rich.table import Table

from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import LocalEngine, cpu_vllm
from runs.fleet.ray_nodes import GATEWAY, Node, Placed, RayNodes, open_engines
from runs.measure.streams import process
from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
PORT, FIRST_PORT, SEATS = 8790, 9200, 8
KEY, ADMIN = "hw-caller", "hw-admin"
BACK_S = 300.0
PROGRAM = "vllm.entrypoints.openai.api_server"
ASK: list[Any] = [{"role": "user", "content": "Tell me about trains."}]
AFTER_S = 5.0  # for the last calls that a death concerns


@dataclass
class Outage:
    """What was killed, and what became of the calls until all engines served again."""

    what: str
    back_s: float = float("nan")
    ends: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class RealFigures:
    outages: int
    back: int  # of these, after which all engines served again without help
    fast: int  # fast calls while seats were away
    not_as_said: int  # of these, that ended otherwise than served as fast, or as their dialect says
    served_after: int  # fast calls served as fast after the last outage
    left: int  # processes of engines after `headway fleet down`


def verdict(figures: RealFigures) -> Verdict:
    bars = (
        at_least("outages", figures.outages, 4, "d"),
        none_of("after which an engine did not serve again by itself", figures.outages - figures.back),
        at_least("fast calls while seats were away", figures.fast, 20, "d"),
        none_of("of these, that ended otherwise than their dialect says", figures.not_as_said),
        at_least("fast calls served as fast afterwards", figures.served_after, 4, "d"),
        none_of("processes of engines after `headway fleet down`", figures.left),
    )
    figure = (
        f"real vLLM held by Ray, {figures.outages} outages by kill -9: {figures.back} times all engines served again "
        f"without help; {figures.not_as_said} of {figures.fast} fast calls meanwhile ended otherwise than their "
        f"dialect says (bar 0)"
    )
    return Verdict(figure, bars)


class FastCallers:
    """Fast calls in both dialects, one after the other."""

    def __init__(self) -> None:
        url = f"http://{GATEWAY}:{PORT}"
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120)
        self._anthropic = anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=120)
        self.ended: list[tuple[float, float, str]] = []  # (sent, ended, how)
        self._is_done = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(self._keep(self._by_openai), self._keep(self._by_anthropic))

    def stop(self) -> None:
        self._is_done.set()

    async def _keep(self, call: Callable[[], Awaitable[str]]) -> None:
        while not self._is_done.is_set():
            sent_s = time.monotonic()
            how = await call()
            self.ended.append((sent_s, time.monotonic(), how))
            await asyncio.sleep(0.2)

    async def _by_openai(self) -> str:
        """A fast call without a seat is served as standard and says so; one without any engine is refused."""
        try:
            answer = await self._openai.chat.completions.create(
                model=MODEL_NAME, messages=ASK, max_tokens=12, extra_body={"service_tier": "fast"}
            )
        except openai.APIStatusError as error:
            return _refusal("OpenAI", error.status_code, error.body)
        except openai.APIConnectionError as error:
            return f"OpenAI: {error!r}"
        return "OpenAI: fast" if answer.service_tier == "fast" else f"OpenAI: served as {answer.service_tier}"

    async def _by_anthropic(self) -> str:
        """A fast call without a seat is refused."""
        try:
            answer: Any = await self._anthropic.beta.messages.create(
                model=MODEL_NAME, messages=ASK, max_tokens=12, extra_body={"speed": "fast"}
            )
        except anthropic.APIStatusError as error:
            return _refusal("Anthropic", error.status_code, error.body)
        except anthropic.APIConnectionError as error:
            return f"Anthropic: {error!r}"
        return f"Anthropic: {answer.usage.speed}"


# Served as fast, downgraded where the dialect has that, or refused for want of seats.
AS_SAID = {
    "OpenAI: fast",
    "OpenAI: served as default",
    "OpenAI: 429 hold_timeout",
    "OpenAI: 503 no_replica",
    "Anthropic: fast",
    "Anthropic: 429 rate_limit_error",
    "Anthropic: 529 overloaded_error",
}


def _refusal(dialect: str, status: int, body: object) -> str:
    said = body.get("error", body) if isinstance(body, dict) else {}
    word = said.get("type") if dialect == "Anthropic" else said.get("code")
    return f"{dialect}: {status} {word}"


def write_files(folder: Path) -> tuple[Path, Path]:
    """headway.toml and fleet.toml."""
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    (folder / "admin.key").write_text(ADMIN)
    hashed, admin = (hashlib.sha256(key.encode()).hexdigest() for key in (KEY, ADMIN))
    config = folder / "headway.toml"
    config.write_text(
        f'[gateway]\nhost = "{GATEWAY}"\nport = {PORT}\nkey_hashes = ["{hashed}"]\nadmin_key_hashes = ["{admin}"]\n'
        f'[[models]]\nname = "{MODEL_NAME}"\n[[models.tiers]]\nname = "standard"\nmax_hold_s = 20.0\n'
        '[[models.tiers]]\nname = "fast"\nfloor_tps = 2.0\nmax_hold_s = 2.0\n'
        f"[models.discover]\nregistered = true\nseats = {SEATS}\ncurve = [[1, 9.0], [8, 6.0]]\n"
    )
    engine = LocalEngine(cpu_vllm(python), model, MODEL_NAME, FIRST_PORT, SEATS, on_cpu=True, host="{host}")
    words = ["{port}" if word == str(FIRST_PORT) else word for word in engine.arguments()]
    # Each on a core of its own, as two engines of one machine need.
    env = {"VLLM_CPU_OMP_THREADS_BIND": "{index}", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    command = ["env", *(f"{name}={value}" for name, value in env.items()), *words]
    fleet = folder / "fleet.toml"
    fleet.write_text(
        f'[gateway]\nurl = "http://{GATEWAY}:{PORT}"\nadmin_key_file = "{folder}/admin.key"\n'
        f'[[processes]]\nname = "vllm"\nmodel = "{MODEL_NAME}"\ncommand = {json.dumps(command)}\ncount = 2\n'
        f"port = {FIRST_PORT}\nstart_s = 300\n"
    )
    return config, fleet


def placed(node: Node) -> list[Placed]:
    return sorted(node.placed(PROGRAM, lambda command: int(command[command.index("--port") + 1])), key=lambda x: x.url)


def core_of(engine: Placed, node: Node) -> int:
    """The process that computes. Its title begins with VLLM::EngineCore."""
    group = os.getpgid(engine.engine_pid)
    return next(pid for pid in node.pids("VLLM::EngineCore") if os.getpgid(pid) == group)


async def outage(what: str, callers: FastCallers, pids: list[int]) -> Outage:
    done = Outage(what)
    since_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    deadline = since_s + BACK_S
    while await asyncio.to_thread(open_engines, PORT, ADMIN) == 2:  # until the gateway has noticed
        await asyncio.sleep(0.1)
        if time.monotonic() > deadline:
            return done
    while await asyncio.to_thread(open_engines, PORT, ADMIN) < 2:
        await asyncio.sleep(0.5)
        if time.monotonic() > deadline:
            return done
    done.back_s = time.monotonic() - since_s
    await asyncio.sleep(AFTER_S)
    done.ends.update(how for _, ended_s, how in callers.ended if ended_s > since_s)
    console.print(f"{what}: all engines serve again after {done.back_s:.1f} s")
    return done


async def measure(node: Node) -> tuple[list[Outage], int]:
    callers = FastCallers()
    calling = asyncio.create_task(callers.run())
    await asyncio.sleep(3.0)
    outages = []
    first, second = placed(node)
    outages.append(await outage("the API server of an engine", callers, [first.engine_pid]))
    first, second = placed(node)
    outages.append(await outage("the core of an engine", callers, [core_of(second, node)]))
    first, second = placed(node)
    outages.append(await outage("the actor that holds an engine", callers, [first.holder_pid]))
    first, second = placed(node)
    outages.append(await outage("both engines", callers, [first.engine_pid, second.engine_pid]))
    before = len(callers.ended)
    await asyncio.sleep(10.0)
    callers.stop()
    await calling
    served_after = sum(how in ("OpenAI: fast", "Anthropic: fast") for _, _, how in callers.ended[before:])
    return outages, served_after


def show(outages: list[Outage]) -> None:
    table = Table("killed with -9", "all serve again after", "fast calls meanwhile")
    for one in outages:
        ends = ", ".join(f"{how} {count}" for how, count in one.ends.most_common())
        table.add_row(one.what, f"{one.back_s:.1f} s", ends)
    console.print(table)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="headway-fleet-vllm-"))
    config, fleet = write_files(folder)
    serve = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
    with RayNodes(folder, count=1, cpus=2) as nodes, process(serve, f"http://{GATEWAY}:{PORT}/health"):
        node = nodes.nodes[0]
        nodes.fleet_up(fleet)
        console.print("two engines are placed; vLLM loads")
        nodes.until(lambda: open_engines(PORT, ADMIN) == 2, "the engines do not open", BACK_S)
        outages, served_after = uvloop.run(measure(node))
        try:
            nodes.headway("fleet", "down", timeout_s=120)
        except subprocess.TimeoutExpired:
            console.print("headway fleet down did not end in time", style="red")
        left = len(node.pids(PROGRAM)) + len(node.pids("VLLM::"))
    show(outages)
    ends = sum((one.ends for one in outages), Counter[str]())
    figures = RealFigures(
        outages=len(outages),
        back=sum(one.back_s < BACK_S for one in outages),
        fast=ends.total(),
        not_as_said=sum(count for how, count in ends.items() if how not in AS_SAID),
        served_after=served_after,
        left=left,
    )
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
