"""Run a command that does not outlive this process, with all the processes that it starts, even if we are killed.

The command runs under a guard, a small Python process that holds one end of a pipe. When our end closes, by `end` or
because this process died, even by SIGKILL, the guard ends the command's process group. (PR_SET_PDEATHSIG is not enough:
it signals only one process, and vLLM's API server ignores SIGTERM while it loads and leaves its children when it dies.)

The guard is no child of this process: Ray kills the children of an actor when it ends, and a guard that is killed
guards nothing.

Knows: process groups, signals, Linux's /proc. Does not know: what the command is. The guard runs this file by its
path, so it imports only the standard library.

Invariant: the guard reaps the command last, so the process id, which is also the group's, is not reused before.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
POLL_INTERVAL_S = 0.05
# vLLM exits in 0.5 s, or 5 s if its API server was killed; if killed sooner it may leave shared memory behind.
DEFAULT_GRACE_S = 20.0
# Python's resource tracker removes the shared memory of killed processes when it is the only one left.
CLEAR_UP_S = 2.0


class GuardedProcess:
    """A running command. Its output goes to the file `output`; `pid` is also the id of its process group."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], output: int, keep_open: tuple[int, ...] = ()
    ) -> None:
        """`keep_open` are files, such as a lock, that stay open until the last process has ended."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *command],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            pass_fds=keep_open,
            start_new_session=True,  # Ctrl-C must reach only us; we end the command
        )
        self._guard.wait()  # it has forked, and the fork goes on
        assert self._guard.stdout is not None
        pid = self._guard.stdout.readline()
        if not pid:
            self._guard.communicate()
            raise FileNotFoundError(f"{command[0]} cannot be run.")
        self.pid = int(pid)

    def has_exited(self) -> bool:
        """Whether the command has exited. Processes that it started may still run."""
        return self.pid not in group_members(self.pid)

    def end(self, grace_s: float = DEFAULT_GRACE_S) -> int:
        """End the whole group with SIGTERM, then SIGKILL after `grace_s`. Returns the exit code. Call it once."""
        with ExitStack() as if_interrupted:  # by a second Ctrl-C: no grace
            if_interrupted.callback(self._kill)
            exit_code, _ = self._guard.communicate(str(grace_s).encode())
            if_interrupted.pop_all()
        if not exit_code:  # the guard was killed, and its command with it
            self._kill_group()
            return 128 + signal.SIGKILL
        return int(exit_code)

    def _kill(self) -> None:
        self._kill_group()
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        with self._guard.stdout as last_words:
            last_words.read()  # until the guard has ended

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _end_with_guard() -> None:
    """Called in the new process: let the command end if its guard is killed. What it has started may run on."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def group_members(group: int) -> list[int]:
    """Return the running processes of a process group. Zombies are left out: an orphan may never be reaped."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name is the second field, in parentheses, and may contain spaces and parentheses.
            state, _parent, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(process_group) == group and state not in "ZX":
            members.append(int(entry.name))
    return members


def _end_group(group: int, grace_s: float) -> None:
    os.killpg(group, signal.SIGTERM)
    os.killpg(group, signal.SIGCONT)  # a stopped process cannot handle SIGTERM
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


def _guard(command: list[str]) -> None:
    """Run as the guard. stdin is the pipe to the owner, stdout gets the process id and, at the end, the exit code;
    stderr is the command's output."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, preexec_fn=_end_with_guard
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return
    # Close our copy of the output, so that its reader sees the end when the command ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(BrokenPipeError):  # the owner is gone; the next line notices
        os.write(1, f"{process.pid}\n".encode())
    grace_s = sys.stdin.read()
    _end_group(process.pid, float(grace_s) if grace_s else DEFAULT_GRACE_S)
    exit_code = process.wait()
    exit_code = exit_code if exit_code >= 0 else 128 - exit_code  # as a shell reports a signal
    with suppress(BrokenPipeError):
        os.write(1, f"{exit_code}\n".encode())


if __name__ == "__main__":
    if os.fork() == 0:
        _guard(sys.argv[1:])
    os._exit(0)
