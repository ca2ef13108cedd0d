"""vLLM's `/v1/embeddings` for the scripted engine: reads the request, makes the vectors, writes the answer.

Invariant: the same input always has the same vector, of length 1, and other inputs have others.
"""

import base64
import math
import struct
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from headway.engines.scripted.formats import WireError

PATH = "/v1/embeddings"


class EmbeddingAsk(msgspec.Struct):
    """The fields that this engine reads. Like vLLM it ignores all others."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None


_ASK = msgspec.json.Decoder(EmbeddingAsk)


@dataclass(frozen=True, slots=True)
class ScriptedEmbeddings:
    """What is asked for: the inputs and the form of the answer."""

    inputs: list[str | list[int]]
    size: int
    is_base64: bool

    @property
    def tokens(self) -> list[int]:
        """Of each input: its words, or its token ids."""
        return [len(one.split() if isinstance(one, str) else one) for one in self.inputs]

    def whole(self, request_id: str, model: str, created: int) -> bytes:
        vectors = [vector_of(one, self.size) for one in self.inputs]
        data = [
            {"index": index, "object": "embedding", "embedding": _packed(one) if self.is_base64 else one}
            for index, one in enumerate(vectors)
        ]
        total = sum(self.tokens)
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
        head = {"id": f"embd-{request_id}", "object": "list", "created": created, "model": model}
        return msgspec.json.encode({**head, "data": data, "usage": usage})


def read_embeddings(body: bytes, model: str, size: int, max_model_len: int) -> ScriptedEmbeddings:
    """Raises WireError as vLLM does. `size` is that of the model's vectors."""
    try:
        ask = _ASK.decode(body)
    except msgspec.DecodeError as error:
        raise WireError(400, "Bad Request", f"1 validation error:\n  {error}", "body") from None
    if ask.model is not None and ask.model != model:
        message = f"The model `{ask.model}` does not exist. Valid aliases: {model}."
        raise WireError(404, "NotFoundError", message, "model")
    if ask.dimensions is not None and not 1 <= ask.dimensions <= size:
        message = f"dimensions={ask.dimensions} is not supported by this model, whose vectors have {size}."
        raise WireError(400, "BadRequestError", message, "dimensions")
    inputs = _inputs_of(ask.input)
    asked = ScriptedEmbeddings(inputs, ask.dimensions or size, ask.encoding_format == "base64")
    if (longest := max(asked.tokens, default=0)) > max_model_len:
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your request has {longest} input "
            "tokens. Please reduce the length of the input."
        )
        raise WireError(400, "BadRequestError", message, "input")
    return asked


def _inputs_of(value: str | list[str | int | list[int]]) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    ids = [one for one in value if isinstance(one, int)]
    return [ids] if ids else [one for one in value if not isinstance(one, int)]


def vector_of(value: str | list[int], size: int) -> list[float]:
    """As float32 numbers, so that both forms of an answer have the same."""
    seed = msgspec.json.encode(value)
    digest = b"".join(blake2b(b"%d " % part + seed).digest() for part in range(math.ceil(size / 64)))
    numbers = [byte - 127.5 for byte in digest[:size]]
    length = math.sqrt(sum(number * number for number in numbers))
    return list(struct.unpack(f"<{size}f", struct.pack(f"<{size}f", *[number / length for number in numbers])))


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
