"""`headway mock-engine`: the scripted engine as a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.engines.scripted import Script, ScriptedEngine, parse_curve, read_answers, serve_scripted


def mock_engine(
    port: Annotated[int, typer.Option(help="Port to listen on. 0 picks a free port.")] = 9100,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Name of the model.")] = "scripted",
    first_token_ms: Annotated[float, typer.Option(help="Time to the first token once a request runs.")] = 20.0,
    step_ms: Annotated[str, typer.Option(help="Time per token by batch size, as BATCH:MS,BATCH:MS,...")] = "1:10",
    max_num_seqs: Annotated[int, typer.Option(help="Maximum number of running requests. Others wait.")] = 256,
    max_model_len: Annotated[int, typer.Option(help="Maximum length of prompt and answer together, in tokens.")] = 8192,
    embedding_size: Annotated[
        int, typer.Option(min=0, max=2**16, help="Serve embeddings of this size instead of text.", show_default="text")
    ] = 0,
    answers: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of programmed answers: text, tool calls, errors.", show_default="the same words for all"
        ),
    ] = None,
) -> None:
    script = Script(
        model,
        first_token_ms / 1000,
        parse_curve(step_ms),
        max_num_seqs,
        max_model_len=max_model_len,
        embedding_size=embedding_size,
    )
    programmed = None if answers is None else read_answers(answers)
    serve_scripted(ScriptedEngine(script, programmed), host, port)
