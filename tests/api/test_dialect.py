"""Routes are found by method and path, parameters included; and what is said of an engine that fails."""

from __future__ import annotations

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.api.dialect import RouteTable, failure_in_stream
from headway.core.rate_limit import RateLimit, TokenLimit
from headway.errors import EngineAnswered, Refused


def test_a_parameter_is_one_segment_of_the_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models", "all")
    routes.add("GET", "/v1/models/{model}", "one")
    routes.add("POST", "/v1/models/{model}:generate", "generate")
    assert routes.find("GET", "/v1/models") == ("all", {})
    assert routes.find("GET", "/v1/models/a.b-c") == ("one", {"model": "a.b-c"})
    assert routes.find("POST", "/v1/models/m:generate") == ("generate", {"model": "m"})
    for method, path in [("GET", "/v1/models/"), ("GET", "/v1/models/a/b"), ("POST", "/v1/models"), ("GET", "/v2")]:
        assert routes.find(method, path) == (None, {})
    assert len(routes.names) == 3


def test_a_last_parameter_can_be_the_rest_of_the_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models/{model*}", "one")
    assert routes.find("GET", "/v1/models/org/name.v1") == ("one", {"model": "org/name.v1"})
    assert routes.find("GET", "/v1/models/") == (None, {})


def test_the_methods_of_a_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models", "all")
    routes.add("GET", "/v1/models/{model}", "one")
    routes.add("DELETE", "/v1/models/{model}", "delete")
    assert routes.methods("/v1/models") == ["GET"]
    assert routes.methods("/v1/models/m") == ["GET", "DELETE"]
    assert routes.methods("/v1") == []


def test_an_engines_words_are_one_short_line_of_the_log() -> None:
    words = "no room\n2026-11-16 WARNING headway.gateway: all is lost\x00" + "x" * 10_000
    failure = failure_in_stream(msgspec.json.encode({"error": {"message": words}}), has_begun=True)
    assert str(failure).isprintable()
    assert len(str(failure)) < 300


VLLM_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=8193)",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "You passed 9000 input tokens and requested 1 output tokens. However, the model's context length is only 8192 tokens.",
)


def refused_by_engine(message: str, status: int = 400) -> EngineAnswered:
    return EngineAnswered(status, msgspec.json.encode({"error": {"message": message, "type": "BadRequestError"}}))


@pytest.mark.parametrize("message", VLLM_TOO_LONG)
def test_clients_of_both_dialects_can_tell_that_a_prompt_is_too_long(message: str) -> None:
    error = refused_by_engine(message)
    told = msgspec.json.decode(openai.error_body(error, "id"))["error"]
    assert (told["type"], told["code"], told["message"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        message,
    )
    told = msgspec.json.decode(anthropic.error_body(error, "id"))["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"].startswith("prompt is too long: ")
    assert told["message"].endswith(message)


def test_the_numbers_of_a_prompt_that_is_too_long_are_in_the_form_that_clients_read() -> None:
    told = anthropic.error_body(refused_by_engine(VLLM_TOO_LONG[0]), "id")
    assert b"prompt is too long: 8193 tokens > 8192 maximum. This model's" in told


def test_other_errors_of_an_engine_say_nothing_of_the_context() -> None:
    for error in (
        refused_by_engine("max_tokens=9000 cannot be greater than max_model_len=8192."),
        refused_by_engine(VLLM_TOO_LONG[0], status=500),
        EngineAnswered(400, b"maximum context length"),
        Refused("full", 1),
    ):
        assert b"context_length_exceeded" not in openai.error_body(error, "id")
        assert b"too long" not in anthropic.error_body(error, "id")


def test_limits_are_told_in_the_form_of_the_openai_dialect() -> None:
    limit = TokenLimit(input_tpm=1_000, output_tpm=100, requests_pm=60)
    left = RateLimit(limit, 900, -20, 59, input_full_in_s=6.0, output_full_in_s=72.0, requests_full_in_s=1.0)
    assert dict(openai.limit_headers("standard", left)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1.00s",
        b"x-ratelimit-limit-tokens": b"100",  # of which less is left than of the prompt tokens
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"1m12s",
    }
    requests = RateLimit(TokenLimit(requests_pm=600), 0, 0, 599, 0.0, 0.0, requests_full_in_s=0.1)
    assert [value for _, value in openai.limit_headers("fast", requests)] == [b"600", b"599", b"100ms"]
    assert openai.limit_headers("fast", None) == []


@pytest.mark.parametrize(("seconds", "text"), [(59.999, "1m0s"), (119.7, "2m0s"), (0.9996, "1.00s"), (59.99, "59.99s")])
def test_durations_carry_over(seconds: float, text: str) -> None:
    left = RateLimit(TokenLimit(requests_pm=1), 0, 0, 0, 0.0, 0.0, requests_full_in_s=seconds)
    assert dict(openai.limit_headers("fast", left))[b"x-ratelimit-reset-requests"] == text.encode()
