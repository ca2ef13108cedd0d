"""A scripted engine that keeps a journal of all it does and of its lies, with the answers of the torture's workload.

`python -m runs.torture.engine FOLDER PORT MODEL SEATS FIRST_TOKEN_S STEP_MS ANSWERS`
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import uvloop

from headway.engines.scripted import ProgrammedAnswers, Script, parse_curve, read_answers
from runs.fleet.journal_engine import serve
from runs.torture.engine_lies import LyingEngine

HOST = "127.0.0.1"


class WrittenLies(dict[str, str]):
    """The lies by call, in a file as well, because an engine may be killed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __setitem__(self, call_id: str, kind: str) -> None:
        super().__setitem__(call_id, kind)
        os.write(self._file, f"{call_id} {kind}\n".encode())


class JournalledLiar(LyingEngine):
    def __init__(self, folder: Path, script: Script, answers: ProgrammedAnswers | None = None) -> None:
        super().__init__(script, answers)
        self.lies = WrittenLies(folder / "lies")


if __name__ == "__main__":
    name, port, model, seats, first_token_s, step_ms, answers_file = sys.argv[1:]
    folder = Path(name)
    script = Script(model, float(first_token_s), parse_curve(step_ms), int(seats))
    kind = partial(JournalledLiar, folder)
    uvloop.run(serve(folder, HOST, int(port), script, read_answers(Path(answers_file)), kind))
