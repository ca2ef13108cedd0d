"""The attributes of a call's span: those of OpenTelemetry's conventions for generative AI, and our own, `headway.*`.

A test compares the names with OpenTelemetry's own list of them. This needs none of its packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from headway.observe.base import EndedCall, RefusedCall
from headway.wire import Request

Attributes = dict[str, str | int | float | bool]

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
STREAM = "gen_ai.request.stream"
CHOICES = "gen_ai.request.choice.count"
MAX_TOKENS = "gen_ai.request.max_tokens"
CONVERSATION = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
SERVER, PORT = "server.address", "server.port"
ERROR = "error.type"
STATUS = "http.response.status_code"

CHAT = "chat"
OPERATIONS: Mapping[str, str] = {
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/responses/input_tokens": "count_tokens",
}  # all others are chat
MICRO = 1_000_000


def operation_of(path: str) -> str:
    return OPERATIONS.get(path, CHAT)


def span_name(path: str, model: str) -> str:
    return f"{operation_of(path)} {model}" if model else operation_of(path)


def asked_model(request: Request) -> str:
    return request.rung.auto if request.rung is not None else request.call.model


def at_begin(request: Request) -> Attributes:
    call = request.call
    found: Attributes = {
        OPERATION: operation_of(request.path),
        PROVIDER: "headway",
        REQUEST_MODEL: asked_model(request),
        STREAM: request.streaming,
        "headway.call_id": call.id,
        "headway.tier_asked": request.rung.tier_asked if request.rung is not None else call.tier,
    }
    if call.choices > 1:
        found[CHOICES] = call.choices
    if request.max_output_tokens is not None:
        found[MAX_TOKENS] = request.max_output_tokens
    if call.tenant:
        found["headway.key"] = call.tenant
    if request.session.id:
        found[CONVERSATION] = request.session.id
    return found


def at_end(ended: EndedCall) -> Attributes:
    receipt, grant = ended.receipt, ended.receipt.grant
    found: Attributes = {"headway.outcome": receipt.outcome}
    if ended.error:
        found[ERROR] = ended.error
    if not receipt.boardings:
        return found
    found[RESPONSE_MODEL] = ended.request.call.model
    found[INPUT_TOKENS] = receipt.usage.prompt_tokens
    found[CACHED_TOKENS] = receipt.usage.cached_tokens
    found[OUTPUT_TOKENS] = receipt.usage.output_tokens
    found["headway.tier"] = grant.tier
    found["headway.replica"] = grant.replica
    found["headway.boardings"] = receipt.boardings
    found |= _address(grant.replica)
    if grant.rung is not None:
        found["headway.rung"] = grant.rung.name
        if grant.rung.escalated:
            found["headway.escalated"] = grant.rung.escalated
    if grant.floor_tps:
        found["headway.floor"] = grant.floor_tps
    some = {
        "headway.reason": grant.reason,
        "headway.held_s": ended.held_s,
        FIRST_CHUNK: ended.first_token_s,
        "headway.tokens_per_second": receipt.speed_tps,
        "headway.kept": receipt.kept,
        "headway.seat_s": receipt.seat_us / MICRO if receipt.seat_us is not None else None,
        "headway.billed_micro": receipt.paid_micro if grant.price is not None else None,
    }
    return found | {name: value for name, value in some.items() if value is not None}


def of_refused(refused: RefusedCall) -> Attributes:
    found: Attributes = {OPERATION: operation_of(refused.path), PROVIDER: "headway"}
    if refused.request is not None:
        found = at_begin(refused.request)
    elif refused.key:
        found["headway.key"] = refused.key
    return found | {
        ERROR: refused.error,
        STATUS: refused.status,
        "headway.call_id": refused.call_id,
        "headway.outcome": "refused",
    }


@lru_cache(1024)
def _address(url: str) -> Attributes:
    parts = urlsplit(url)
    found: Attributes = {SERVER: parts.hostname or ""}
    if parts.port is not None:
        found[PORT] = parts.port
    return found
