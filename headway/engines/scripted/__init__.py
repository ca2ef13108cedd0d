"""The scripted engine: vLLM's HTTP API with programmed speed and answers, for tests and runs without a model.

engine.py has the endpoints and server.py serves them; formats.py, embeddings.py and responses.py read and write the
dialects; steps.py runs the batch and keeps the record. For programmed answers, answers.py reads their file and picks
the answer, and programmed.py writes it.
"""

from headway.engines.scripted.answers import ProgrammedAnswers, read_answers
from headway.engines.scripted.engine import ScriptedEngine
from headway.engines.scripted.server import parse_curve, running, serve_scripted
from headway.engines.scripted.steps import Faults, RequestRecord, Script, StepLoop

__all__ = [
    "Faults",
    "ProgrammedAnswers",
    "RequestRecord",
    "Script",
    "ScriptedEngine",
    "StepLoop",
    "parse_curve",
    "read_answers",
    "running",
    "serve_scripted",
]
