"""The scripted demo: what it measures, what it draws, and that nothing of it is left when it ends."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from headway.core.types import Tier
from headway.local.guard import group_members
from headway.local.race.calls import AnswerReader
from headway.local.race.drawing import draw, in_words, round_in_words
from headway.local.race.scripted import PRICE_MULTIPLE, REPLICAS, STAGE
from headway.local.race.state import Lane, OfferedTier, Proof, Race, ReplicaSeats

COMMAND = [sys.executable, "-m", "headway", "demo", "--scripted"]
ALTERNATE_SCREEN_OFF, CURSOR_ON = "\x1b[?1049l", "\x1b[?25h"


def proof(tier: Tier, *, tps: float, kept: bool | None = None, served: Tier | None = None) -> Proof:
    return Proof(tier, served or tier, tps, 60.0 if tier == "fast" else None, kept, 0.25, 1.5)


def a_race() -> Race:
    standard = Lane(OfferedTier("standard", None, 1.0), 110)
    fast = Lane(OfferedTier("fast", 60.0, 2.1), 110)
    replicas = [ReplicaSeats(f"http://{number}", [None] * STAGE.seats) for number in (1, 2)]
    return Race(
        STAGE.prompt, STAGE.note, "http://127.0.0.1:12345", standard, fast, replicas, {"fast": 3, "standard": 35}
    )


def drawn(race: Race, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)
    console.print(draw(race))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


# --- what is measured ------------------------------------------------------------------------------------------------


def test_a_stream_keeps_its_seat_while_others_come_and_go() -> None:
    replica = ReplicaSeats("http://1", [None] * 4)
    replica.update({"a": "fast", "b": "standard"}, is_light=True, limit=3, stream_tps=80.0)
    assert replica.seats == ["a", "b", None, None]
    assert replica.open_seats == {2}
    replica.update({"b": "standard", "c": "fast"}, is_light=True, limit=3, stream_tps=80.0)
    assert replica.seats == ["c", "b", None, None]
    replica.update({}, is_light=False, limit=4, stream_tps=90.0)
    assert replica.open_seats == {0, 1, 2, 3}


def test_a_light_replica_above_its_limit_has_no_open_seat() -> None:
    replica = ReplicaSeats("http://1", [None] * 4)
    replica.update(dict.fromkeys("abc", "standard"), is_light=True, limit=2, stream_tps=80.0)
    assert replica.open_seats == set()


def test_the_speed_is_the_clients_until_the_proof_is_there() -> None:
    lane = Lane(OfferedTier("fast", 60.0, 2.1), 110)
    assert lane.tokens_per_second is None
    for number in range(11):
        lane.add_token(" word", now=100 + number / 50)
    assert lane.tokens_per_second == pytest.approx(50)
    lane.proof = proof("fast", tps=61.5, kept=True)
    assert lane.tokens_per_second == 61.5


def test_an_answer_is_read_event_by_event_wherever_it_is_cut() -> None:
    events = (
        b'data: {"id":"chatcmpl-7","choices":[{"delta":{"content":"the"}}]}\n\n'
        b'data: {"id":"chatcmpl-7","choices":[{"delta":{"content":" train"}}]}\n\n'
        b'data: {"id":"chatcmpl-7","choices":[],"usage":{"completion_tokens":2,"headway":'
        b'{"tier_asked":"fast","tier_served":"fast","tokens_per_second":70.0,"kept":true}}}\n\ndata: [DONE]\n\n'
    )
    for cut in range(len(events)):
        lane = Lane(OfferedTier("fast", 60.0, 2.1), 110)
        reader = AnswerReader(lane)
        reader.feed(events[:cut])
        reader.feed(events[cut:])
        assert (lane.call_id, lane.text, lane.tokens) == ("7", "the train", 2)
        assert lane.proof == Proof("fast", "fast", 70.0, kept=True)


def test_an_error_in_the_middle_of_an_answer_is_told() -> None:
    lane = Lane(OfferedTier("fast", 60.0, 2.1), 110)
    AnswerReader(lane).feed(b'data: {"error":{"message":"the engine is lost","type":"server_error"}}\n\n')
    assert lane.problem == "the engine is lost"


def test_rounds_are_counted_with_their_results() -> None:
    race = a_race()
    for fast_tps, kept in ((75.0, True), (50.0, False)):
        race.start_round()
        assert race.fast.proof is None
        race.standard.proof = proof("standard", tps=25.0)
        race.fast.proof = proof("fast", tps=fast_tps, kept=kept)
        assert race.end_round() is not None
    assert in_words(race) == "2 rounds: fast ran at 2.5 times the speed of standard, floor kept in 1 of 2."


def test_a_round_without_an_answer_has_no_result() -> None:
    race = a_race()
    race.start_round()
    race.standard.proof = proof("standard", tps=25.0)
    race.fast.problem = "status 503: no replica"
    assert race.end_round() is None
    assert round_in_words(race, None) == "round 1: no result. fast: status 503: no replica"


# --- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_picture_fits_a_terminal_of_24_lines_and_keeps_its_height(width: int) -> None:
    race = a_race()
    heights = {len(drawn(race, width))}
    race.start_round()
    heights.add(len(drawn(race, width)))
    for lane in race.lanes:
        for _ in range(110):
            lane.add_token(" windows", now=1.0)
    race.standard.proof = proof("standard", tps=25.0)
    race.fast.proof = proof("fast", tps=50.0, kept=False)
    race.end_round()
    lines = drawn(race, width)
    assert {*heights, len(lines)} == {len(lines)}
    assert len(lines) <= 24
    assert STAGE.prompt in lines[0]
    assert max(map(len, lines)) <= width


def test_the_picture_says_that_the_engines_are_scripted() -> None:
    assert "Scripted engines: programmed speed, no model." in "\n".join(drawn(a_race()))


def test_the_picture_shows_price_floor_and_proof() -> None:
    race = a_race()
    race.start_round()
    race.standard.proof = proof("standard", tps=25.0)
    race.fast.proof = proof("fast", tps=71.2, kept=True)
    text = "\n".join(drawn(race))
    for said in ("price 1x", "price 2.1x", "none promised", "60 tok/s promised", "71.2 tok/s", "✓ kept, served as fast",
                 "served as standard", "0.25 s of the replica", "tokens in 1.5 s"):  # fmt: skip
        assert said in text, said
    race.fast.proof = proof("fast", tps=51.0, kept=False)
    assert "✗ missed, served as fast" in "\n".join(drawn(race))
    race.fast.proof = proof("fast", tps=26.0, served="standard")
    assert "\n".join(drawn(race)).count("served as standard") == 2


def test_the_picture_shows_who_sits_where() -> None:
    race = a_race()
    race.fast.call_id = "own"
    race.replicas[0].update({"own": "fast", "a": "fast"}, is_light=True, limit=6, stream_tps=80.0)
    race.replicas[1].update(dict.fromkeys(map(str, range(32)), "standard"), is_light=False, limit=32, stream_tps=26.0)
    lines = drawn(race)
    seats = next(line for line in lines if "★" in line)
    heavy, light = seats.split("││")  # the heavy one stands below standard, the light one below fast
    assert heavy.count("●") == 16
    assert light.split()[:16] == ["★", "▲", *"○○○○", *"·" * 10]
    assert any("32 of 32 aboard, 26 tok/s each" in line and "2 of 6 aboard, 80 tok/s each" in line for line in lines)


def test_many_seats_fit_the_same_terminal() -> None:
    race = a_race()
    race.replicas = [ReplicaSeats(f"http://{number}", [None] * 64) for number in (1, 2)]
    race.replicas[0].update(dict.fromkeys(map(str, range(64)), "standard"), is_light=False, limit=64, stream_tps=2.44)
    lines = drawn(race)
    assert len(lines) <= 24
    assert sum("●" * 32 in line for line in lines) == 2
    assert any("64 of 64 aboard, 2.4 tok/s each" in line for line in lines)


# --- the whole -------------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_prints_a_line_for_each_round() -> None:
    run = subprocess.run([*COMMAND, "--rounds", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("Scripted engines: programmed speed, no model.")
    found = re.search(
        r"^round 1: standard ([\d.]+) tok/s at 1x, .*; fast ([\d.]+) tok/s at ([\d.]+)x, proof: (.*)",
        run.stdout,
        re.MULTILINE,
    )
    assert found, run.stdout
    assert float(found[3]) == PRICE_MULTIPLE
    assert "served as" in found[4]
    assert run.stdout.splitlines()[-1] == "Engines and gateway have stopped."


class Terminal:
    """The demo in a terminal of its own."""

    def __init__(self, temporary: Path) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "TMPDIR": str(temporary), "HEADWAY_CACHE": str(temporary)}
        env.pop("NO_COLOR", None)
        # A shell starts background jobs with SIGINT ignored, and then all that they start ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            COMMAND, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self.output = ""
        self._master = master
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # how a pty says that the other end is closed
            while data := os.read(self._master, 65536):
                self.output += data.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.output:
            assert self.process.poll() is None, self.output[-2000:]
            assert time.monotonic() < deadline, self.output[-2000:]
            time.sleep(0.02)

    def close(self) -> None:
        """Idempotent; afterwards the output is complete."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def listening_ports(pid: int) -> set[int]:
    """The TCP ports a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            inodes.add(os.readlink(fd))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(terminal: Terminal, tmp_path: Path, number: signal.Signals) -> None:
    pid = terminal.process.pid
    terminal.wait_for("round 1")
    ports = listening_ports(pid)
    assert len(ports) == 1 + REPLICAS, "a gateway and its engines should listen"
    terminal.process.send_signal(number)
    assert terminal.process.wait(60) == 0  # only to end a test that hangs: what is tested is what is left
    assert group_members(pid) == [], "a process was left"
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)
    assert list(tmp_path.iterdir()) == [], "a file was left"
    terminal.close()
    for restored in (ALTERNATE_SCREEN_OFF, CURSOR_ON, "Engines and gateway have stopped."):
        assert restored in terminal.output
    assert "Traceback" not in terminal.output
