"""A scripted engine that keeps a journal, with the answers of the torture's workload.

`python -m runs.torture.engine FOLDER PORT MODEL SEATS FIRST_TOKEN_S STEP_MS ANSWERS`
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from headway.engines.scripted import Script, parse_curve, read_answers
from runs.fleet.journal_engine import serve

HOST = "127.0.0.1"

if __name__ == "__main__":
    folder, port, model, seats, first_token_s, step_ms, answers = sys.argv[1:]
    script = Script(model, float(first_token_s), parse_curve(step_ms), int(seats))
    uvloop.run(serve(Path(folder), HOST, int(port), script, read_answers(Path(answers))))
