"""Requests for embeddings: their fields and bounds, and what is read of the answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api import limits
from headway.api.embeddings import ROUTE, EmbeddingMeter, read_embeddings
from headway.api.models import Models
from headway.config import Config
from headway.core.types import Call
from headway.errors import EngineLost, InvalidRequest
from headway.gateway.billing import make_receipt
from headway.ledger.keys import Key
from headway.wire import Grant

TEXTS = ["a text", 'one with "quotes", and \\ and, "', ""]
INPUTS: dict[str, Any] = {
    "text": "a text",
    "texts": TEXTS,
    "token ids": [0, 49_151],
    "lists of token ids": [[1, 2], [3]],
}


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "input": "a text", **fields})


def sent(**fields: Any) -> dict[str, Any]:
    """What the engine gets."""
    decoded: dict[str, Any] = msgspec.json.decode(read_embeddings(body(**fields), "id").body)
    return decoded


@pytest.mark.parametrize("value", INPUTS.values(), ids=INPUTS)
def test_every_kind_of_input_reaches_the_engine_as_it_came(value: Any) -> None:
    assert sent(input=value) == {"model": "m", "input": value}


def test_honoured_fields_reach_the_engine_and_null_asks_for_nothing() -> None:
    fields = {"encoding_format": "base64", "dimensions": 256, "user": "u"}
    assert sent(**fields) == {"model": "m", "input": "a text", **fields}
    assert "encoding_format" not in sent(encoding_format=None)


def test_the_call_is_a_standard_call_that_generates_nothing() -> None:
    request = read_embeddings(body(input="x" * 4_000), "id")
    assert request.call == Call("id", "m", "standard", prompt_tokens=len(request.body) // 4)
    assert (request.path, request.streaming, request.max_output_tokens) == ("/v1/embeddings", False, 0)
    assert request.runs_model


BAD_INPUTS: dict[str, Any] = {
    "null": None,
    "number": 7,
    "object": {"text": "a"},
    "empty list": [],
    "empty list in a list": [[]],
    "text after a number": [1, "a"],
    "number after a text": ["a", 1],
    "list after a text": ["a", [1]],
    "lists of texts": [["a"]],
    "token id beyond any vocabulary": [2**20],
    "negative token id": [[-1]],
    "image": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254"}}],
}


@pytest.mark.parametrize("value", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_other_inputs_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="`input`") as refused:
        sent(input=value)
    assert refused.value.param == "input"


def test_inputs_are_bounded_in_number() -> None:
    assert len(sent(input=['"'] * limits.MAX_INPUTS)["input"]) == limits.MAX_INPUTS
    for one in ('"', "\\", "", [1]):
        with pytest.raises(InvalidRequest, match="2,049 inputs"):
            sent(input=[one] * (limits.MAX_INPUTS + 1))
    for ids in ([1] * (limits.MAX_INPUT_IDS + 1), [[1] * limits.MAX_INPUT_IDS, [1]]):
        with pytest.raises(InvalidRequest, match="1,048,576 token ids"):
            sent(input=ids)


@pytest.mark.parametrize("fields", [{"encoding_format": "bytes"}, {"dimensions": 0}, {"dimensions": 2**17}], ids=str)
def test_other_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        sent(**fields)


@pytest.mark.parametrize("name", ["service_tier", "stream", "truncate_prompt_tokens", "messages", "normalize"])
def test_what_would_change_the_vectors_or_the_service_is_refused(name: str) -> None:
    value: Any = {"service_tier": "fast", "messages": [{"role": "user", "content": "a"}]}.get(name, 1)
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
        ROUTE.parse(body(**{name: value}), "id", {}, refuses_unknown=False)


def test_what_asks_for_nothing_else_is_ignored() -> None:
    hints = {"service_tier": "auto", "stream": False, "metadata": {"a": 1}, "my_own": 1}
    request, cleaned = ROUTE.parse(body(**hints), "id", {}, refuses_unknown=False)
    assert set(cleaned.ignored) == set(hints)
    assert msgspec.json.decode(request.body) == {"model": "m", "input": "a text"}


# --- answers ---


def answer(**fields: Any) -> bytes:
    data = [{"index": 0, "object": "embedding", "embedding": [0.5] * 8}]
    usage = {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0}
    return msgspec.json.encode({"object": "list", "model": "m", "data": data, "usage": usage, **fields})


@pytest.mark.parametrize("vectors", [1, 20_000], ids=["small", "large"])
def test_the_usage_is_read_and_gets_the_proof(vectors: int) -> None:
    meter = EmbeddingMeter()
    data = [{"index": index, "object": "embedding", "embedding": [0.5]} for index in range(vectors)]
    meter.read_whole(answer(data=data), lambda _: None)
    assert meter.is_complete
    assert (meter.usage().prompt_tokens, meter.usage().output_tokens, meter.speed_tps()) == (5, 0, None)
    grant = Grant("standard", "standard")
    receipt = make_receipt(
        grant,
        "finished",
        meter,
        is_delivered=True,
        reader_was_slow=False,
        seat_us=7,
        answer_s=0.1,
        boardings=1,
    )
    told = msgspec.json.decode(meter.end(receipt))
    assert told["data"] == data
    assert told["usage"].pop("headway")["tier_served"] == "standard"
    assert told["usage"] == {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0}


LIES: dict[str, bytes] = {
    "no JSON": b"{",
    "no object": b"[]",
    "no usage": b'{"data":[]}',
    "not UTF-8": b'{"data":"\xff","usage":{"prompt_tokens":1}}',
    "negative": answer(usage={"prompt_tokens": -1}),
    "fraction": answer(usage={"prompt_tokens": 1.5}),
    "beyond all counts": answer(usage={"prompt_tokens": 2**40}),
}


@pytest.mark.parametrize("said", LIES.values(), ids=LIES)
def test_an_answer_that_cannot_be_billed_is_the_engines_failure(said: bytes) -> None:
    meter = EmbeddingMeter()
    with pytest.raises(EngineLost):
        meter.read_whole(said, lambda _: None)
    assert not meter.is_complete
    with pytest.raises(EngineLost):
        meter.feed(b"data: {}\n\n", 0.0)


# --- which model is for what ---

CHAT: dict[str, Any] = {"name": "chat", "replicas": [{"url": "http://127.0.0.1:8001"}]}
EMBED: dict[str, Any] = {"name": "embed", "embeddings": True, "replicas": [{"url": "http://127.0.0.1:8002"}]}


def test_each_endpoint_takes_the_models_that_it_is_for() -> None:
    models = Models(Config.model_validate({"models": [CHAT, EMBED]}).models)
    models.check_use("chat", None, "/v1/chat/completions", embeds=False)
    models.check_use("embed", None, "/v1/embeddings", embeds=True)
    with pytest.raises(InvalidRequest, match="embedding model: send its input to `/v1/embeddings`"):
        models.check_use("embed", None, "/v1/chat/completions", embeds=False)
    with pytest.raises(InvalidRequest, match="Embedding models: embed"):
        models.check_use("chat", None, "/v1/embeddings", embeds=True)
    with pytest.raises(InvalidRequest, match="No embedding model is offered here"):
        models.check_use("chat", Key(id="k", hash="h", models=["chat"]), "/v1/embeddings", embeds=True)
    rows = {row["id"]: row for row in models.rows_for(None)}
    assert rows["embed"]["embeddings"] is True
    assert "embeddings" not in rows["chat"]
