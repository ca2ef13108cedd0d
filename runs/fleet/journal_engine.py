"""A scripted engine that writes down every token before it sends it, so that its record outlives kill -9.

`python -m runs.fleet.journal_engine FOLDER HOST PORT MODEL SEATS FIRST_TOKEN_S STEP_MS`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from headway.engines.scripted import ProgrammedAnswers, Script, ScriptedEngine, parse_curve, running
from headway.engines.scripted.steps import RequestRecord
from runs.ledger.torture_judge import Sent, Witness
from runs.measure.witness import PROBE_ID_LENGTH

LOOK_S = 0.02


class Line(msgspec.Struct, array_like=True):
    """A request begins (`tokens` is 0), gets its token with this number, or ends (`state` is set)."""

    at_s: float
    call_id: str
    prompt_tokens: int
    tokens: int
    state: str = ""


class Journal:
    """What one engine process did, in a file of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        name = f"{url.partition('//')[2].replace(':', '-')}-{time.monotonic_ns()}.journal"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._running: dict[str, RequestRecord] = {}

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def watch(self, engine: ScriptedEngine) -> None:
        board = engine.steps.board

        def noted(request_id: str, prompt_tokens: int, total_tokens: int, give: Callable[[int], None]) -> object:
            def give_noted(number: int) -> None:
                self.write(Line(time.monotonic(), request_id, prompt_tokens, number))
                give(number)

            boarded = board(request_id, prompt_tokens, total_tokens, give_noted)  # raises if it is refused
            self.write(Line(time.monotonic(), request_id, prompt_tokens, 0))
            self._running[request_id] = engine.steps.requests[request_id]
            return boarded

        engine.steps.board = noted  # type: ignore[method-assign, assignment]

    def note_ends(self) -> None:
        for call_id, record in list(self._running.items()):
            if record.ended_s is not None:
                del self._running[call_id]
                self.write(Line(record.ended_s, call_id, record.prompt_tokens, record.tokens_sent, record.state))


async def serve(
    folder: Path,
    host: str,
    port: int,
    script: Script,
    answers: ProgrammedAnswers | None = None,
    kind: Callable[[Script, ProgrammedAnswers | None], ScriptedEngine] = ScriptedEngine,
) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with running(script, host, port, answers, kind) as engine:
        journal = Journal(folder, engine.url)
        journal.watch(engine)
        while not told.is_set():
            journal.note_ends()
            await asyncio.sleep(LOOK_S)


def read_journals(folder: Path, died_s: Callable[[str, float], float]) -> list[tuple[str, Witness]]:
    """Each process with what it did. A request without an end ended when its process died: `died_s(url, last_s)`, by
    the time of its last line."""
    found = []
    for path in sorted(folder.glob("*.journal")):
        host, port, _ = path.name.removesuffix(".journal").split("-")
        url = f"http://{host}:{port}"
        witness = Witness(url)
        last_s = 0.0
        for raw in path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(raw, type=Line)
            except msgspec.DecodeError:  # the last one of a process that was killed
                continue
            last_s = max(last_s, line.at_s)
            if len(line.call_id) == PROBE_ID_LENGTH:
                continue
            sent = witness.requests.setdefault(
                line.call_id, Sent(line.prompt_tokens, 0, "running", received_s=line.at_s)
            )
            sent.tokens_sent = max(sent.tokens_sent, line.tokens)
            if line.state:
                sent.state, sent.ended_s = line.state, line.at_s
        for sent in witness.requests.values():
            if sent.ended_s is None:
                sent.state, sent.ended_s = "killed", died_s(url, last_s)
        found.append((path.name, witness))
    return found


if __name__ == "__main__":
    folder, host, port, model, seats, first_token_s, step_ms = sys.argv[1:]
    script = Script(model, float(first_token_s), parse_curve(step_ms), int(seats))
    uvloop.run(serve(Path(folder), host, int(port), script))
