"""The commands that start the engines of a configuration."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from pydantic import ValidationError

from headway.config import Config
from headway.config.engine_commands import engine_commands


def config(**engine: Any) -> Config:
    replicas = [{"url": "http://127.0.0.1:8001", "seats": 32}, {"url": "http://10.0.0.5:8002", "seats": 64}]
    model = {"name": "small", "replicas": replicas, **({"engine": engine} if engine else {})}
    return Config.model_validate({"models": [model]})


def test_each_replica_has_its_command() -> None:
    commands = engine_commands(config(weights="some/model", prompt_chunk=512))
    first, second = (shlex.split(command) for command in commands.values())
    assert first[:3] == ["vllm", "serve", "some/model"]
    assert second[second.index("--host") + 1] == "10.0.0.5"
    assert second[second.index("--port") + 1] == "8002"
    assert second[second.index("--max-num-seqs") + 1] == "64"
    assert first[first.index("--served-model-name") + 1] == "small"
    assert first[first.index("--max-num-batched-tokens") + 1] == "512"
    assert "--speculative-config" not in first


def test_speculation_is_said_in_vllms_words() -> None:
    ngram = {"method": "ngram", "tokens": 5, "by_streams": [[1, 4, 5], [5, 64, 0]]}
    command = next(iter(engine_commands(config(weights="w", speculation=ngram)).values()))
    words = shlex.split(command)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 64, 0]],
    }
    drafter = {"method": "draft_model", "tokens": 3, "drafter": "some/drafter"}
    command = next(iter(engine_commands(config(weights="w", speculation=drafter)).values()))
    assert '"model": "some/drafter"' in command


@pytest.mark.parametrize(
    ("speculation", "says"),
    [
        ({"method": "draft_model"}, "go together"),
        ({"method": "ngram", "drafter": "x"}, "go together"),
        ({"method": "ngram", "by_streams": [[5, 1, 4]]}, "must look like"),
        ({"method": "ngram", "by_streams": [[1, 4, 4], 5]}, "must look like"),
        ({"method": "typical_acceptance"}, "ngram"),  # not the model's own distribution
    ],
)
def test_speculation_that_cannot_be_is_refused(speculation: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(weights="w", speculation=speculation)


def test_without_a_description_there_is_no_command() -> None:
    assert engine_commands(config()) == {}
