"""What a new user does with a clone of this repository: the README's commands in a terminal. See runs/front-door.sh.

Needs nothing but Python: Headway is what it installs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from runs.front_door.terminal import Terminal, TimedOut, without_environment

ROOT = Path(__file__).resolve().parents[2]
RACE = "headway demo --scripted"
INSTALL = "pip install"
FINISHED = re.compile(r"(?<!\d)1 round: ")  # the demo's score after its first round
MAX_RACE_S = 60.0
GIVE_UP_S = 900.0


@dataclass
class Visit:
    """When each line of the README was done, in seconds since the first began."""

    lines: list[str]
    done_s: dict[int, float] = field(default_factory=dict)
    raced_s: float | None = None
    exit_code: int | None = None  # of the race; None: it did not end
    output: str = ""  # the end of it

    @property
    def installed_s(self) -> float | None:
        return next((self.done_s.get(number) for number, line in enumerate(self.lines) if INSTALL in line), None)

    @property
    def race_s(self) -> float | None:
        """From the end of the install to the first finished race."""
        if self.raced_s is None or self.installed_s is None:
            return None
        return self.raced_s - self.installed_s


def problems(visit: Visit) -> list[str]:
    found = []
    if visit.race_s is None:
        found.append("no race was finished")
    elif visit.race_s > MAX_RACE_S:
        found.append(f"the first race was finished after {visit.race_s:.1f} s, the bar is {MAX_RACE_S:g}")
    if visit.exit_code != 0:
        found.append(f"exit code {visit.exit_code} after Ctrl-C")
    return found


def commands(readme: str) -> list[str]:
    """The README's first block of commands that has the race, down to the race."""
    for block in re.findall(r"```bash\n(.*?)```", readme, re.DOTALL):
        lines = [line for line in block.splitlines() if line.strip()]
        if RACE in lines:
            return lines[: lines.index(RACE) + 1]
    raise SystemExit(f"README.md has no block with the line `{RACE}`")


def visit(clone: Path) -> Visit:
    """Run the commands in a terminal, wait for the first finished race, press Ctrl-C."""
    here = Visit(commands((clone / "README.md").read_text(encoding="utf-8")))
    terminal = Terminal(clone, without_environment())
    began = time.monotonic()
    try:
        for number, line in enumerate(here.lines[:-1]):
            if terminal.run(line, GIVE_UP_S) != 0:
                return here
            here.done_s[number] = time.monotonic() - began
        terminal.begin(here.lines[-1])
        terminal.wait_for(FINISHED, GIVE_UP_S)
        here.raced_s = time.monotonic() - began
        here.exit_code = terminal.interrupt()
        here.done_s[len(here.lines) - 1] = time.monotonic() - began
    except TimedOut as late:
        print(f"failed: {late}")
    finally:
        here.output = terminal.output
        terminal.close()
    return here


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory) / "headway"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        result = visit(clone)
    before_s = 0.0
    for number, line in enumerate(result.lines):
        done_s = result.done_s.get(number)
        print(f"{'not done' if done_s is None else f'{done_s - before_s:6.1f} s'}  $ {line}")
        before_s = done_s or before_s
    found = problems(result)
    for problem in found:
        print(f"failed: {problem}")
    if found:
        print(result.output[-3000:])
    print(f"from the end of the install to the first finished race: {result.race_s or 0:.1f} s (bar {MAX_RACE_S:g})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
