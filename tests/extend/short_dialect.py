"""A toy dialect: POST /v1/short/{model} with {"ask": "..."} is answered with {"say": "...", "proof": {...}}."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headway.api import limits
from headway.api.dialect import NO_PARAMS, CallRoute, Headers, Params
from headway.api.openai import answer_headers, error_body, error_event, error_status, limit_headers
from headway.api.openai_meter import OpenAIForm, OpenAIMeter
from headway.core.types import Call, Tier
from headway.wire import Grant, Receipt, Request

# What makes the module a Dialect. Errors and headers look as in the OpenAI dialect.
__all__ = ["ROUTES", "TIER_FIELD", "answer_headers", "claims"]
__all__ += ["error_body", "error_event", "error_status", "limit_headers"]

TIER_FIELD = "tier"


class Short(msgspec.Struct, forbid_unknown_fields=True):
    ask: str
    tier: Tier = "standard"
    max_tokens: limits.Tokens = 64


def read_short(body: bytes, call_id: str, params: Params = NO_PARAMS) -> Request:
    short = msgspec.json.decode(body, type=Short)
    asked = {"model": params["model"], "prompt": short.ask, "max_tokens": short.max_tokens}
    call = Call(call_id, params["model"], short.tier)
    return Request(
        call,
        "/v1/completions",  # the engine's endpoint
        msgspec.json.encode(asked),
        ShortForm(),
        streaming=False,
        max_output_tokens=short.max_tokens,
    )


ROUTES = (CallRoute("/v1/short/{model}", read_short),)


def claims(path: str, _headers: Headers) -> bool:
    return path.startswith("/v1/short/")


@dataclass(frozen=True, slots=True)
class ShortForm:
    def meter(self, grant: Grant) -> ShortMeter:
        return ShortMeter(OpenAIForm(), grant)


class ShortMeter(OpenAIMeter):
    """The engine answers in the OpenAI dialect; only the last word to the client differs."""

    def end(self, receipt: Receipt) -> bytes:
        answer = msgspec.json.decode(super().end(receipt))
        return msgspec.json.encode({"say": answer["choices"][0]["text"], "proof": answer["usage"]["headway"]})
