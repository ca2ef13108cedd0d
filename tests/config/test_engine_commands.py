"""The commands that start the engines of a configuration."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from pydantic import ValidationError

from headway.config import Config
from headway.config.engine_commands import engine_commands
from headway.deciding import members_of


def config(profiles: list[dict[str, Any]] | None = None, **engine: Any) -> Config:
    replicas = [{"url": "http://127.0.0.1:8001", "seats": 32}, {"url": "http://10.0.0.5:8002", "seats": 64}]
    if profiles:
        replicas.append({"url": "http://10.0.0.6:8003", "profile": profiles[0]["name"]})
    model = {"name": "small", "replicas": replicas, "profiles": profiles or []}
    return Config.model_validate({"models": [{**model, **({"engine": engine} if engine else {})}]})


def words(config: Config, number: int) -> list[str]:
    return shlex.split(list(engine_commands(config))[number].command)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def speculative(speculation: dict[str, Any]) -> Any:
    return json.loads(after(words(config(weights="w", speculation=speculation), 0), "--speculative-config"))


def test_each_replica_has_its_command() -> None:
    described = config(weights="some/model", prompt_chunk=512)
    first, second = (words(described, number) for number in range(2))
    assert first[:3] == ["vllm", "serve", "some/model"]
    assert after(second, "--host") == "10.0.0.5"
    assert after(second, "--port") == "8002"
    assert after(second, "--max-num-seqs") == "64"
    assert after(first, "--served-model-name") == "small"
    assert after(first, "--max-num-batched-tokens") == "512"
    assert "--speculative-config" not in first
    assert "--tensor-parallel-size" not in first


def test_an_engine_publishes_its_events_where_the_gateway_subscribes() -> None:
    replicas = [
        {"url": "http://10.0.0.5:8002", "kv_events": "tcp://10.0.0.5:5557", "kv_replay": "tcp://[fd00::5]:5558"},
        {"url": "http://10.0.0.6:8002", "kv_events": "tcp://engine-6:5557"},
        {"url": "http://10.0.0.7:8002"},
    ]
    model = {"name": "small", "replicas": replicas, "engine": {"weights": "w"}}
    described = Config.model_validate({"models": [model]})
    wanted = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557"}
    first, second = (json.loads(after(words(described, number), "--kv-events-config")) for number in range(2))
    assert first == {**wanted, "replay_endpoint": "tcp://*:5558"}
    assert second == wanted
    assert "--kv-events-config" not in words(described, 2)
    assert [(one.kv_events, one.kv_replay) for one in members_of(described)] == [
        ("tcp://10.0.0.5:5557", "tcp://[fd00::5]:5558"),
        ("tcp://engine-6:5557", ""),
        ("", ""),
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        *[
            ({"kv_events": address}, "must look like")
            for address in ("", "tcp://*:5557", "tcp://a", "tcp://a:0", "tcp://a:65536", "ipc:///a", "http://a:5557")
        ],
        ({"kv_events": "tcp://a:1", "kv_replay": "a:5557"}, "must look like"),
        ({"kv_replay": "tcp://a:5557"}, "set that too"),
        ({"kv_events": "tcp://a:5557", "kind": "openai"}, "are vLLM's"),
    ],
)
def test_addresses_of_events_are_checked(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Config.model_validate({"models": [{"name": "m", "replicas": [{"url": "http://127.0.0.1:8001", **settings}]}]})


def test_a_replica_is_started_as_its_profile_says_and_no_other_is() -> None:
    drafter = {"method": "draft_model", "tokens": 3, "drafter": "some/drafter"}
    light = {"name": "light", "seats": 16, "tensor_parallel": 2, "prompt_chunk": 1024, "speculation": drafter}
    described = config([light], weights="some/model", prompt_chunk=512)
    assert [one.profile for one in engine_commands(described)] == [None, None, "light"]
    assert after(words(described, 0), "--max-num-batched-tokens") == "512"
    flags = words(described, 2)
    assert flags[2] == "some/model"
    assert after(flags, "--max-num-seqs") == "16"
    assert after(flags, "--tensor-parallel-size") == "2"
    assert after(flags, "--max-num-batched-tokens") == "1024"
    assert json.loads(after(flags, "--speculative-config"))["model"] == "some/drafter"


def test_a_profile_takes_over_no_flags_of_other_engines() -> None:
    described = config([{"name": "plain"}], weights="w", prompt_chunk=512, speculation={"method": "ngram"})
    assert "--speculative-config" in words(described, 0)
    assert "--speculative-config" not in words(described, 2)
    assert "--max-num-batched-tokens" not in words(described, 2)


def test_speculation_is_said_in_vllms_words() -> None:
    assert speculative({"method": "ngram", "tokens": 5, "by_streams": [[1, 4, 5], [5, 64, 0]]}) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 64, 0]],
    }
    for method in ("draft_model", "eagle3", "dflash", "mtp"):
        assert speculative({"method": method, "tokens": 3, "drafter": "some/drafter"}) == {
            "method": method,
            "num_speculative_tokens": 3,
            "model": "some/drafter",
        }
    assert speculative({"method": "mtp", "tokens": 1}) == {"method": "mtp", "num_speculative_tokens": 1}


@pytest.mark.parametrize(
    ("speculation", "says"),
    [
        ({"method": "draft_model"}, "set `drafter`"),
        ({"method": "eagle3"}, "set `drafter`"),
        ({"method": "dflash"}, "set `drafter`"),
        ({"method": "ngram", "drafter": "x"}, "remove `drafter`"),
        ({"method": "ngram", "by_streams": [[5, 1, 4]]}, "must look like"),
        ({"method": "ngram", "by_streams": [[1, 4, 4], 5]}, "must look like"),
        ({"method": "typical_acceptance"}, "ngram"),  # not the model's own distribution
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "can change answers"),
        ({"method": "ngram", "synthetic_acceptance_length": 3}, "can change answers"),
    ],
)
def test_speculation_that_cannot_be_is_refused(speculation: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(weights="w", speculation=speculation)
    with pytest.raises(ValidationError, match=says):
        config([{"name": "p", "speculation": speculation}])


@pytest.mark.parametrize("setting", ["quantization", "kv_cache_dtype", "dtype", "weights"])
def test_what_changes_answers_is_no_profile(setting: str) -> None:
    with pytest.raises(ValidationError, match=f"`{setting}` can change answers.*another model"):
        config([{"name": "small", setting: "fp8"}], weights="w")


def test_without_a_description_there_is_no_command() -> None:
    assert not list(engine_commands(config()))
