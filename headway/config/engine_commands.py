"""Converts `[models.engine]` and `[[models.profiles]]` to the commands that start the engines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from headway.config import Config, EngineFlags, ModelTable, ReplicaTable, SpeculationTable
from headway.local.engine_process import LocalEngine, installed_vllm


class EngineCommand(NamedTuple):
    """The shell command that starts the engine of a replica."""

    url: str
    profile: str | None
    command: str


def engine_commands(config: Config) -> Iterator[EngineCommand]:
    """For each replica of the models with an `engine` table."""
    for model in config.models:
        if model.engine is not None:
            for replica in model.replicas:
                flags = next((one for one in model.profiles if one.name == replica.profile), model.engine)
                engine = _engine(model, replica, model.engine.weights, flags)
                yield EngineCommand(replica.url, replica.profile, shlex.join(engine.arguments()))


def _engine(model: ModelTable, replica: ReplicaTable, weights: str, flags: EngineFlags) -> LocalEngine:
    where = urlsplit(replica.url)
    return LocalEngine(
        installed_vllm("vllm"),
        weights,
        model.name,
        where.port or 8000,
        replica.seats,
        host=where.hostname or "127.0.0.1",
        tensor_parallel=flags.tensor_parallel,
        prompt_chunk=flags.prompt_chunk,
        speculation=vllm_speculation(flags.speculation),
        kv_events=vllm_kv_events(replica),
    )


def vllm_kv_events(replica: ReplicaTable) -> dict[str, object] | None:
    """The value of vLLM's `--kv-events-config`. vLLM listens only where the address has a `*`; to any other one it
    connects."""
    if replica.kv_events is None:
        return None
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": _on_all_hosts(replica.kv_events)}
    return config | ({"replay_endpoint": _on_all_hosts(replica.kv_replay)} if replica.kv_replay is not None else {})


def _on_all_hosts(address: str) -> str:
    return f"tcp://*:{address.rpartition(':')[2]}"


def vllm_speculation(speculation: SpeculationTable | None) -> dict[str, object] | None:
    """The value of vLLM's `--speculative-config`."""
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
