"""A command that does not outlive us, with all the processes it starts: not after `end`, nor if we are killed.

Between us and the command runs a guard, a small Python of its own that holds one end of a pipe. When our end closes,
by `end` or because this process is gone, even by kill -9, it ends the command's process group. (The kernel can
signal a child at its parent's death, PR_SET_PDEATHSIG, but only one process, and vLLM's API server ignores SIGTERM
while it loads and leaves its children when it dies.)

Knows: process groups, signals, Linux's /proc. Does not know: what the command is. The guard runs this file by its
path, so it imports nothing but the standard library.

Invariant: the guard collects the command last, so its process id, which is the group's, is nobody else's until then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

POLL_INTERVAL_S = 0.05
# vLLM takes 0.5 s, or 5 s when its API server was killed; a process killed sooner may leave shared memory behind.
DEFAULT_GRACE_S = 20.0
# Python's resource tracker removes the shared memory of processes that were killed, once it is alone.
CLEAR_UP_S = 2.0


class GuardedProcess:
    """A running command. `output` is the file that gets all it prints; `pid` is its process group's id, too."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], output: int, keep_open: tuple[int, ...] = ()
    ) -> None:
        """`keep_open` are files held open until the last process has ended: for a lock."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *command],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            pass_fds=keep_open,
            start_new_session=True,  # Ctrl-C is for us; we end the command
        )
        assert self._guard.stdout is not None
        with self._guard.stdout as first_words:
            pid = first_words.readline()
        if not pid:
            self._guard.communicate()
            raise FileNotFoundError(f"{command[0]} can not be run.")
        self.pid = int(pid)

    def has_exited(self) -> bool:
        """Whether the command has; what it started may live on."""
        return self.pid not in group_members(self.pid)

    def end(self, grace_s: float = DEFAULT_GRACE_S) -> int:
        """End the whole group: asked first, killed after `grace_s`. Returns the command's exit code. Call it once."""
        try:
            self._guard.communicate(str(grace_s).encode())
        except BaseException:  # a second Ctrl-C: no grace
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            raise
        return self._guard.returncode


def group_members(group: int) -> list[int]:
    """Living processes of a process group. Zombies are left out: nobody may ever collect an orphan's."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name comes second, in brackets, and may hold spaces and brackets itself.
            state, _parent, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(process_group) == group and state not in "ZX":
            members.append(int(entry.name))
    return members


def _end_group(group: int, grace_s: float) -> None:
    os.killpg(group, signal.SIGTERM)
    os.killpg(group, signal.SIGCONT)  # a stopped process could not follow
    if not _group_ends_within(group, grace_s):
        os.kill(group, signal.SIGKILL)
        _group_ends_within(group, CLEAR_UP_S)
        os.killpg(group, signal.SIGKILL)
        _group_ends_within(group, CLEAR_UP_S)


def _group_ends_within(group: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while group_members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _guard(command: list[str]) -> int:
    """The guard's whole life. stdin is the pipe to our owner, stdout takes the process id, stderr is the output."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    # Whoever reads the output sees its end when the command ends, not when we do.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(BrokenPipeError):  # the owner is gone already, as the next line will see
        os.write(1, f"{process.pid}\n".encode())
    grace_s = sys.stdin.read()
    _end_group(process.pid, float(grace_s) if grace_s else DEFAULT_GRACE_S)
    exit_code = process.wait()
    return exit_code if exit_code >= 0 else 128 - exit_code  # as a shell tells a signal


if __name__ == "__main__":
    sys.exit(_guard(sys.argv[1:]))
