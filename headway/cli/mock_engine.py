"""`headway mock-engine`: the scripted engine as a server."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.engines.scripted import Script, ScriptedEngine, parse_curve, serve_scripted


def mock_engine(
    port: Annotated[int, typer.Option(help="Port to listen on. 0 picks a free port.")] = 9100,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "scripted",
    first_token_ms: Annotated[float, typer.Option(help="Time to the first token once a request runs.")] = 20.0,
    step_ms: Annotated[str, typer.Option(help="Time per token by batch size, as BATCH:MS,BATCH:MS,...")] = "1:10",
    max_num_seqs: Annotated[int, typer.Option(help="Maximum number of running requests. Others wait.")] = 256,
) -> None:
    script = Script(model, first_token_ms / 1000, parse_curve(step_ms), max_num_seqs)
    serve_scripted(ScriptedEngine(script), "127.0.0.1", port)
