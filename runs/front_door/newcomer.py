"""What a new user does with a clone of this repository: the README's commands in a terminal. See runs/front-door.sh.

Needs nothing but Python: Headway is what it installs.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select

ROOT = Path(__file__).resolve().parents[2]
RACE = "headway demo --scripted"
INSTALL = "pip install"
FINISHED = re.compile(r"(?<!\d)1 round: ")  # the demo's score after its first round
DONE = re.compile(r"^::(\d+)::", re.MULTILINE)  # what the script prints after each line
KEPT_CHARACTERS = 20_000  # of the output: more than a frame of the race
CTRL_C = b"\x03"
MAX_RACE_S = 60.0
GIVE_UP_S = 900.0
MAX_STOP_S = 15.0


@dataclass
class Visit:
    """When each line of the README was done, in seconds since the first began."""

    lines: list[str]
    done_s: dict[int, float] = field(default_factory=dict)
    raced_s: float | None = None
    exit_code: int | None = None  # of the shell; None: it did not end
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
    script = "set -e\n" + "".join(f"{line}\necho '::{number}::'\n" for number, line in enumerate(here.lines))
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored if this run is a shell's background job
        os.chdir(clone)
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        os.execvpe("bash", ["bash", "-c", script], {**env, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    began, limit_s = time.monotonic(), GIVE_UP_S
    while (now_s := time.monotonic() - began) < limit_s:
        if not select([terminal], [], [], 0.1)[0]:
            continue
        try:
            here.output = (here.output + os.read(terminal, 65536).decode(errors="replace"))[-KEPT_CHARACTERS:]
        except OSError:  # the other end is closed: the shell has ended
            here.exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
        for number in DONE.findall(here.output):
            here.done_s.setdefault(int(number), now_s)
        if here.raced_s is None and FINISHED.search(here.output):
            here.raced_s, limit_s = now_s, now_s + MAX_STOP_S
            os.write(terminal, CTRL_C)
    else:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os.close(terminal)
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
