"""Converts `[models.engine]` to the commands that start the engines."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from headway.config import Config, SpeculationTable
from headway.local.engine_process import LocalEngine, installed_vllm


def engine_commands(config: Config) -> dict[str, str]:
    """The shell command that starts each replica, by its URL, for models with an `engine` table."""
    commands = {}
    for model in config.models:
        if model.engine is None:
            continue
        for replica in model.replicas:
            where = urlsplit(replica.url)
            engine = LocalEngine(
                installed_vllm("vllm"),
                model.engine.weights,
                model.name,
                where.port or 8000,
                replica.seats,
                host=where.hostname or "127.0.0.1",
                prompt_chunk=model.engine.prompt_chunk,
                speculation=vllm_speculation(model.engine.speculation),
            )
            commands[replica.url] = shlex.join(engine.arguments())
    return commands


def vllm_speculation(speculation: SpeculationTable | None) -> dict[str, object] | None:
    if speculation is None:
        return None
    settings: dict[str, object] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    if speculation.method == "ngram":
        settings |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    if speculation.drafter is not None:
        settings["model"] = speculation.drafter
    if speculation.by_streams is not None:
        settings["num_speculative_tokens_per_batch_size"] = speculation.by_streams
    return settings
