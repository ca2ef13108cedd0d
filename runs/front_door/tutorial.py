"""What a new user does with the tutorial: its commands in two terminals, in a fresh clone. See runs/tutorial.sh.

Needs nothing but Python: Headway is what it installs. The commands are read from docs/tutorial.md; what its text asks
for between them (a folder, a second terminal, Ctrl-C) is done here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runs.front_door.terminal import Terminal, TimedOut, without_environment

ROOT = Path(__file__).resolve().parents[2]
MAX_MINUTES = 10.0  # from the start to a fast answer with its proof, without the downloads
GIVE_UP_S = 1800.0
COMMAND_S, INSTALL_S = 120.0, 900.0
BLOCK = re.compile(r"^```(bash|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FINISHED = re.compile(r"(?<!\d)1 round: ")  # the demo's score after its first round
INSTALLED = re.compile(r"[12]/5.*?ready after ([\d.]+) s", re.DOTALL)  # the engine's environment, then the model
OFFERS_CALLS = re.compile(r"Ctrl-C stops the gateway and the engines")
CURL = re.compile(r"^(for tier in standard fast; do curl .*?; done)\s*$", re.MULTILINE)
KEY = re.compile(r"\bhw-[\w-]{20,}")
SERVES = re.compile(r"listens on port 8000")


class WentWrong(Exception):
    """What a reader would have stopped at."""


@dataclass
class Visit:
    """`steps` has what each took and how much of that was downloading, in seconds."""

    steps: list[tuple[str, float, float]] = field(default_factory=list)
    proved_s: float | None = None  # until the first fast answer of a real model with its proof, without the downloads
    speeds: str = ""
    problem: str = ""

    @property
    def spent_s(self) -> float:
        return sum(took_s - downloading_s for _, took_s, downloading_s in self.steps)

    @contextmanager
    def step(self, title: str, is_download: bool = False) -> Iterator[list[float]]:
        """Yields a list for the seconds that were downloading."""
        began, downloads = time.monotonic(), list[float]()
        try:
            yield downloads
        finally:
            took_s = time.monotonic() - began
            self.steps.append((title, took_s, took_s if is_download else sum(downloads)))


@dataclass(frozen=True)
class Tutorial:
    """Its blocks, in order: each step takes the next one of a language."""

    bash: Iterator[str]
    python: Iterator[str]
    toml: Iterator[str]

    @classmethod
    def read(cls, page: str) -> Tutorial:
        blocks = BLOCK.findall(page)
        return cls(*(iter([text for name, text in blocks if name == one]) for one in ("bash", "python", "toml")))


def paste(terminal: Terminal, block: str, limit_s: float) -> None:
    """Each line of the block, after the one before is done."""
    for line in filter(None, block.splitlines()):
        if code := terminal.run(line, limit_s):
            raise WentWrong(f"`{line}` ended with {code}:\n{terminal.output[-2000:]}")


def proof_of(answer: str) -> dict[str, object]:
    """What an answer of chat completions proves."""
    proof: dict[str, object] = json.loads(answer)["usage"]["headway"]
    return proof


def real_demo(clone: Path, env: dict[str, str], first: Terminal, line: str, visit: Visit) -> None:
    with visit.step(line) as downloads:
        first.begin(line)
        first.wait_for(OFFERS_CALLS, GIVE_UP_S)
        said = ESCAPES.sub("", first.output).replace("\r", "")
        downloads += [float(one) for one in INSTALLED.findall(said)]
    with visit.step("the printed curl command, in a second terminal"):
        second = Terminal(clone, env)
        try:
            if (printed := CURL.search(said)) is None:
                raise WentWrong(f"the demo printed no curl command:\n{said[-2000:]}")
            if second.run(printed[1], COMMAND_S):
                raise WentWrong(second.output[-2000:])
            standard, fast = (
                proof_of(one) for one in re.findall(r"^\{.*\}", second.output.replace("\r", ""), re.MULTILINE)
            )
        finally:
            second.close()
    if fast["tier_served"] != "fast":
        raise WentWrong(f"the call that asked for fast was served otherwise: {fast}")
    visit.proved_s = visit.spent_s
    visit.speeds = ", ".join(
        f"{one['tier_served']} {one['tokens_per_second']} tok/s (kept: {json.dumps(one['kept'])})"
        for one in (standard, fast)
    )
    if code := first.interrupt():
        raise WentWrong(f"`{line}` ended with {code} after Ctrl-C")


def own_gateway(blocks: Tutorial, first: Terminal, second: Terminal, folder: Path, visit: Visit) -> None:
    """From two engines to the bill. Both terminals are in the folder, with the environment active."""
    with visit.step("two engines, and their measurement"):
        paste(first, next(blocks.bash), COMMAND_S)
        paste(first, next(blocks.bash), COMMAND_S)
        (folder / "headway.toml").write_text(next(blocks.toml), encoding="utf-8")
    with visit.step("headway.toml, a key, and the gateway"):
        paste(first, next(blocks.bash), COMMAND_S)
        if (key := KEY.search(first.output)) is None:
            raise WentWrong(f"no key was shown:\n{first.output[-2000:]}")
        export, serve = next(blocks.bash).replace("hw-...", key[0]).splitlines()
        paste(first, export, COMMAND_S)
        first.begin(serve)
        first.wait_for(SERVES, COMMAND_S)
        paste(second, export, COMMAND_S)
    with visit.step("the SDKs", is_download=True):
        paste(second, next(blocks.bash), INSTALL_S)
    with visit.step("calls with both SDKs, and a crowd"):
        second.begin(next(blocks.bash).strip())  # python
        second.wait_for(re.compile(r">>> "), COMMAND_S)
        for block in blocks.python:
            if not second.python(block, COMMAND_S):
                raise WentWrong(second.output[-2000:])
            if "fast" not in second.output.rpartition(">>>")[0]:
                raise WentWrong(f"no proof was printed:\n{second.output[-2000:]}")
        second.run("exit()", COMMAND_S)
    with visit.step("the bill"):
        paste(second, next(blocks.bash), COMMAND_S)
    if code := first.interrupt():
        raise WentWrong(f"`{serve}` ended with {code} after Ctrl-C")
    paste(first, "kill %1 %2", COMMAND_S)


def follow(clone: Path, cache: Path) -> Visit:
    visit, env = Visit(), {**without_environment(), "HEADWAY_CACHE": str(cache)}
    blocks = Tutorial.read((clone / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    with ExitStack() as stack:
        first = Terminal(clone, env)
        stack.callback(first.close)
        try:
            with visit.step("install Headway", is_download=True):
                paste(first, next(blocks.bash), INSTALL_S)
            with visit.step(race := next(blocks.bash).strip()):
                first.begin(race)
                first.wait_for(FINISHED, COMMAND_S)
                first.interrupt()
            real_demo(clone, env, first, next(blocks.bash).strip(), visit)
            second = Terminal(clone, env)
            stack.callback(second.close)
            folder = clone / "tutorial"
            folder.mkdir()
            for terminal in (first, second):
                paste(terminal, "source .venv/bin/activate\ncd tutorial", COMMAND_S)
            own_gateway(blocks, first, second, folder, visit)
        except TimedOut as late:
            visit.problem = f"{late}:\n{first.output[-2000:]}"
        except (WentWrong, KeyError, ValueError) as wrong:
            visit.problem = str(wrong)
    return visit


def problems(visit: Visit) -> list[str]:
    found = [visit.problem] if visit.problem else []
    if visit.proved_s is None:
        found.append("no fast answer of a real model was proved")
    elif visit.proved_s > 60 * MAX_MINUTES:
        found.append(f"a fast answer was proved after {visit.proved_s / 60:.1f} minutes, the bar is {MAX_MINUTES:g}")
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory) / "headway"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        visit = follow(clone, Path(directory) / "cache")
    for title, took_s, downloading_s in visit.steps:
        of_which = f" ({downloading_s:.1f} s of it downloading and installing)" if downloading_s else ""
        print(f"{took_s:7.1f} s  {title}{of_which}")
    if visit.speeds:
        print(f"the demo's calls, alone on its engines: {visit.speeds}")
    for problem in (found := problems(visit)):
        print(f"failed: {problem}")
    proved = "not reached" if visit.proved_s is None else f"{visit.proved_s / 60:.1f} minutes"
    print(f"to a fast answer of a real model with its proof, without the downloads: {proved} (bar {MAX_MINUTES:g})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
