"""The scripted engine as an embedding model: the answers of vLLM, and vectors that tests can rely on."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import msgspec
import pytest

from headway.engines.scripted import Script, running
from headway.engines.scripted.embeddings import read_embeddings, vector_of
from headway.engines.scripted.formats import WireError
from headway.http1 import ConnectionPool

pytestmark = pytest.mark.anyio
EMBED = Script(first_token_s=0.001, step_s=((1, 0.001),), embedding_size=100)


def test_a_vector_is_of_length_one_and_belongs_to_its_input() -> None:
    vector = vector_of("a text", 100)
    assert len(vector) == 100
    assert math.sqrt(sum(number * number for number in vector)) == pytest.approx(1.0)
    assert vector == vector_of("a text", 100)
    assert vector != vector_of("another text", 100)
    assert vector[70] != vector[6], "the numbers do not repeat"


async def ask(path: str, **fields: Any) -> tuple[int, Any]:
    async with running(EMBED) as engine:
        pool = ConnectionPool(engine.url)
        try:
            status, body = await pool.exchange(b"POST", path, msgspec.json.encode(fields))
        finally:
            pool.close()
        return status, msgspec.json.decode(body)


async def test_an_answer_has_vllms_form() -> None:
    status, answer = await ask("/v1/embeddings", model="scripted", input=["a text", "b"], encoding_format="base64")
    assert status == 200
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert answer["id"].startswith("embd-")
    assert (answer["object"], answer["model"]) == ("list", "scripted")
    assert [(one["index"], one["object"]) for one in answer["data"]] == [(0, "embedding"), (1, "embedding")]
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert list(struct.unpack("<100f", packed)) == vector_of("a text", 100)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (3, 3)


async def test_an_embedding_model_does_not_generate() -> None:
    status, _ = await ask("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert status == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"input": {}}, 400), ({"model": "x"}, 404), ({"dimensions": 101}, 400), ({"input": [1] * 9}, 400)],
    ids=["input", "model", "dimensions", "too long"],
)
def test_errors_are_told_as_vllm_does(fields: dict[str, Any], status: int) -> None:
    with pytest.raises(WireError) as told:
        read_embeddings(msgspec.json.encode({"input": "a", **fields}), "scripted", 100, 8)
    assert told.value.status == status
