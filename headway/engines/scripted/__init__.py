"""The scripted engine: vLLM's HTTP with a programmed speed, for tests, demos and scale runs.

engine.py serves it, formats.py writes the dialects, steps.py runs the batch and keeps the record.
"""

from headway.engines.scripted.engine import ScriptedEngine, parse_curve, running, serve_scripted
from headway.engines.scripted.steps import Faults, RequestRecord, Script, StepLoop

__all__ = [
    "Faults",
    "RequestRecord",
    "Script",
    "ScriptedEngine",
    "StepLoop",
    "parse_curve",
    "running",
    "serve_scripted",
]
