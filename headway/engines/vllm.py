"""vLLM, over its own HTTP server.

Knows vLLM's endpoints and the names of its metrics. vLLM's API key does not protect all of its endpoints, so an engine
belongs on loopback or a private network. Headway sends it no credentials.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from headway.engines.base import Answer, EngineRequest, Pulse
from headway.engines.vllm_parsing import ParsedAnswer
from headway.errors import ConnectionFailed, EngineLost
from headway.http1 import ConnectionPool, fetch
from headway.wire import Request, with_fields

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
USAGE_ON_REQUEST = (CHAT, COMPLETIONS)  # vLLM's Messages endpoint always sends usage
RENDER, DERENDER = f"{CHAT}/render", f"{CHAT}/derender"
HEALTH_TIMEOUT_S = 2.0
TOKEN_TIMEOUT_S = 30.0
MAX_METRICS_BYTES = 4 * 2**20
MAX_MODELS_BYTES = 2**20
MAX_NAMES, MAX_NAME_CHARS = 1000, 256

# Shorter times are rounding errors; no generation takes longer than a day.
MIN_GENERATION_MS, MAX_GENERATION_MS = 0.001, 86_400_000

# At least one of these changes while an engine works, also during long prompts (the KV cache fills chunk by chunk).
PROGRESS_METRICS = (
    b"vllm:generation_tokens_total",
    b"vllm:prompt_tokens_total",
    b"vllm:kv_cache_usage_perc",
    b"vllm:num_requests_running",
    b"vllm:num_requests_waiting",
)
STREAM_METRICS = (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
CACHE_CONFIG = b"vllm:cache_config_info{"
KV_TOKENS = re.compile(rb'\bkv_cache_size_tokens="(\d{1,12})"')
COUNTS = (b"process_start_time_seconds", b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total")


class VLLMEngine:
    counts_streams = True

    def __init__(self, name: str, url: str, model: str) -> None:
        self.name = name
        self.pulse = Pulse()
        self._model = model
        self._pool = ConnectionPool(url)
        one_token = {"model": model, "max_tokens": 1, "temperature": 0}
        self._one_chat_token = msgspec.json.encode({**one_token, "messages": [{"role": "user", "content": "1"}]})
        self._one_token = msgspec.json.encode({**one_token, "prompt": "1"})
        self._one_embedding = msgspec.json.encode({"model": model, "input": "1"})
        self._embeds = False  # it serves an embedding model
        self._has_plain_chat = False  # chat answers pass through no reasoning parser
        self._parses_rests = False  # it can parse the rest of an answer that another engine has begun
        self._has_free_tools = False  # no grammar is compiled for tools that may be called as the model likes
        self._probe_of_parsers = probe_of_parsers(model)

    def prepare(self, request: Request) -> EngineRequest:
        """Add continuous usage, so that the token count is exact wherever a stream is cut, and `cache_salt`, which
        keeps tenants apart in the prefix cache.

        vLLM parses reasoning in a stream by other code than in a whole answer, and not always to the same result. So an
        engine with a reasoning parser is asked for chat answers in one piece."""
        is_same = self._has_plain_chat or request.path == COMPLETIONS
        collects = request.collect == "always" or (request.collect == "if_same" and is_same)
        added: dict[str, object] = {"stream": True} if collects else {}
        if (request.streaming or collects) and request.path in USAGE_ON_REQUEST:
            added["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        if request.cache_salt:
            added["cache_salt"] = request.cache_salt
        is_parsed = self._parses(request)
        returns_ids = request.call.is_continuable and (not is_parsed or self._can_parse_rest(request))
        if returns_ids:
            added["return_token_ids"] = True
        headers = ((b"x-request-id", request.call.id.encode()), *request.trace.headers())
        body = with_fields(request.body, added)
        so_far = request.so_far if is_parsed else None
        return EngineRequest(request.path, headers, body, collects, returns_ids, so_far=so_far)

    def _parses(self, request: Request) -> bool:
        """Whether a parser of reasoning or tools may change the text of the answer, or of what it is the rest of."""
        is_chat = request.path == CHAT or request.so_far is not None
        return is_chat and (request.has_tools or not self._has_plain_chat)

    def _can_parse_rest(self, request: Request) -> bool:
        """Whether an engine that is set up alike can parse the rest of the answer."""
        return self._parses_rests and request.is_parsable and (self._has_free_tools or not request.has_tools)

    async def send(self, request: EngineRequest, before_write: Callable[[], None]) -> Answer:
        answer = await self._pool.request(b"POST", request.path, request.body, request.headers, before_write)
        if request.so_far is None or answer.status != 200:
            return answer
        return ParsedAnswer(answer, request.so_far, self._derender)

    async def _derender(self, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                status, page = await self._pool.exchange(b"POST", DERENDER, body)
        except TimeoutError:
            status = 0
        if status != 200:
            raise EngineLost("the engine did not parse the rest of the answer")
        return page

    def generation_s(self, answer: Mapping[str, Any]) -> float | None:
        """Needs an engine that was started with `--enable-per-request-metrics`."""
        took_ms = (answer.get("metrics") or {}).get("generation_time_ms")
        if took_ms is None:
            return None
        if isinstance(took_ms, bool) or not 0 <= took_ms < MAX_GENERATION_MS:
            raise ValueError(f"a generation time of {took_ms} ms")
        return took_ms / 1000 if took_ms >= MIN_GENERATION_MS else None

    async def decode(self, token_ids: Sequence[int]) -> str:
        body = msgspec.json.encode({"model": self._model, "tokens": token_ids})
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, page = await self._pool.exchange(b"POST", "/detokenize", body)
            if status == 200:
                return _read_decoded(page).prompt
        except (ConnectionFailed, TimeoutError, msgspec.MsgspecError):
            pass
        raise EngineLost("the engine did not decode the answer so far")

    async def is_healthy(self) -> bool:
        status, _ = await fetch(self._pool, "/health", HEALTH_TIMEOUT_S)
        return status == 200

    async def progress(self) -> tuple[float, ...]:
        _, page = await fetch(self._pool, "/metrics", HEALTH_TIMEOUT_S)
        return read_metrics(page, PROGRESS_METRICS)

    async def kv_tokens(self) -> int:
        """Unknown for embeddings: inputs wait for memory in vLLM's own queue, so a call never needs it for all."""
        if self._embeds:
            return 0
        _, page = await fetch(self._pool, "/metrics", HEALTH_TIMEOUT_S)
        return read_kv_tokens(page)

    async def streams(self) -> int | None:
        status, page = await fetch(self._pool, "/metrics", HEALTH_TIMEOUT_S)
        return round(sum(read_metrics(page, STREAM_METRICS))) if status == 200 else None

    async def max_model_len(self) -> int | None:
        _, page = await fetch(self._pool, "/v1/models", HEALTH_TIMEOUT_S)
        return read_max_model_len(page)

    async def mismatch(self) -> str:
        _, page = await fetch(self._pool, "/v1/models", HEALTH_TIMEOUT_S)
        names = read_model_names(page)
        if names is None or self._model in names:
            return ""
        return f"it serves {', '.join(map(repr, names)) or 'no model'}, not {self._model!r}"

    async def life(self) -> tuple[float, ...]:
        status, page = await fetch(self._pool, "/metrics", HEALTH_TIMEOUT_S)
        return read_life(page) if status == 200 else ()

    async def counts(self) -> tuple[float, ...]:
        """The engine's start time in seconds since 1970, and its prompt and output tokens since then."""
        return await self.life() or (0.0,) * len(COUNTS)

    async def produces_a_token(self) -> bool:
        """Of an embedding model, an embedding. Also finds out which parsers the engine has: one of reasoning shows in
        the usage of a chat answer."""
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                status, body = await self._pool.exchange(b"POST", CHAT, self._one_chat_token)
                self._has_plain_chat = status == 200 and is_plain_chat(body)
                if status == 200:
                    await self._ask_for_parsers()
                else:  # such as a model without a chat template
                    status, _ = await self._pool.exchange(b"POST", COMPLETIONS, self._one_token)
                self._embeds = False
                if status == 404:  # vLLM has no such endpoint for a model that embeds
                    status, _ = await self._pool.exchange(b"POST", EMBEDDINGS, self._one_embedding)
                    self._embeds = status == 200
                return status == 200
        except (ConnectionFailed, TimeoutError):
            return False

    async def _ask_for_parsers(self) -> None:
        """An engine without these endpoints is as healthy as others."""
        self._has_free_tools = self._parses_rests = False
        rendered, derendered = self._probe_of_parsers
        with suppress(ConnectionFailed, TimeoutError):
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, page = await self._pool.exchange(b"POST", RENDER, rendered)
                self._has_free_tools = status == 200 and has_no_grammar(page)
                status, _ = await self._pool.exchange(b"POST", DERENDER, derendered)
                self._parses_rests = status == 200

    def close(self) -> None:
        self._pool.close()


def probe_of_parsers(model: str) -> tuple[bytes, bytes]:
    """What RENDER and DERENDER are asked to find out whether they are there: a request with a tool that may be called,
    and a piece of its answer."""
    chat = {
        "model": model,
        "messages": [{"role": "user", "content": "1"}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
    }
    chunk = {"request_id": "", "choices": [{"index": 0, "token_ids": [1]}]}
    piece = {"stream": True, "prompt_token_ids": [1], "chat_request": chat, "generate_chunk": chunk}
    return msgspec.json.encode(chat), msgspec.json.encode(piece)


class RenderedSampling(Struct):
    structured_outputs: Raw = Raw(b"null")


class Rendered(Struct):
    sampling_params: RenderedSampling


_read_rendered = msgspec.json.Decoder(Rendered).decode


def has_no_grammar(page: bytes) -> bool:
    """Whether a rendered request leaves the model free to write what it likes."""
    try:
        return bytes(_read_rendered(page).sampling_params.structured_outputs) == b"null"
    except (msgspec.MsgspecError, RecursionError):
        return False


def is_plain_chat(body: bytes) -> bool:
    """Whether a chat answer shows that the engine has no reasoning parser. With one, vLLM counts reasoning tokens."""
    try:
        answer = msgspec.json.decode(body)
        [choice] = answer["choices"]
        counted = answer["usage"].get("completion_tokens_details")
        return counted is None and choice["message"].get("reasoning") is None
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError, AttributeError, ValueError):
        return False


def read_kv_tokens(page: bytes) -> int:
    """The size of the KV cache in tokens, from a Prometheus text page; 0 if it is missing. One line per engine core."""
    lines = [line for line in page[:MAX_METRICS_BYTES].splitlines() if line.startswith(CACHE_CONFIG)]
    return sum(int(found[1]) for line in lines if (found := KV_TOKENS.search(line)))


class Decoded(Struct):
    prompt: str


_read_decoded = msgspec.json.Decoder(Decoded).decode


class ModelCard(Struct):
    id: str = ""
    max_model_len: Annotated[int, Meta(ge=1, le=2**30)] | None = None


class ModelCards(Struct):
    data: list[ModelCard]


_read_cards = msgspec.json.Decoder(ModelCards).decode


def _cards(page: bytes) -> list[ModelCard] | None:
    try:
        return _read_cards(page[:MAX_MODELS_BYTES]).data
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_model_names(page: bytes) -> list[str] | None:
    """The models on vLLM's page of models, and its adapters. None if it cannot be read."""
    cards = _cards(page)
    return [card.id[:MAX_NAME_CHARS] for card in cards[:MAX_NAMES]] if cards is not None else None


def read_max_model_len(page: bytes) -> int | None:
    """The shortest of the longest contexts on vLLM's page of models; adapters have none. None if it cannot be read."""
    lengths = [card.max_model_len for card in _cards(page) or () if card.max_model_len is not None]
    return min(lengths, default=None)


def read_metrics(page: bytes, names: tuple[bytes, ...]) -> tuple[float, ...]:
    """The sum of each named metric over its labels, from a Prometheus text page; 0.0 if it is missing."""
    if len(page) > MAX_METRICS_BYTES:
        raise EngineLost(f"the engine's metrics are larger than {MAX_METRICS_BYTES} bytes")
    totals = dict.fromkeys(names, 0.0)
    for line in page.splitlines():
        name = line[: min((i for i in (line.find(b"{"), line.find(b" ")) if i > 0), default=0)]
        if name in totals:
            totals[name] += _value(line)
    return tuple(totals.values())


def read_life(page: bytes) -> tuple[float, ...]:
    """COUNTS, from a Prometheus text page; empty if it has none of them."""
    life = read_metrics(page, COUNTS)
    return life if any(life) else ()


def _value(line: bytes) -> float:
    try:
        value = float(line.rsplit(b" ", 1)[1])
    except (ValueError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        raise EngineLost(f"the engine's metrics cannot be read: {line[:100]!r}")
    return value
