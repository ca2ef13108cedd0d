"""A call to an auto model, turned into the calls that its rungs get: the student's, the full model's, the audit's.

Knows the dialects only so far as the gate needs: the words of a prompt, and of OpenAI chat also tools, schemas, and the
log-probabilities in an answer. The Messages dialect has none, so its calls with tools are the full model's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from headway.auto.gate import Asked, Said
from headway.core.types import Tier
from headway.wire import Request

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
TOP_LOGPROBS = 2  # the token that was taken and the likeliest other
_encode = msgspec.json.Encoder().encode

Read = Callable[[bytes, str], Request]
Prepare = Callable[[Request], Request]


class CallRungs:
    """A call to an auto model, as each rung gets it. `read` is the dialect's reader; `prepare` gives a request what its
    key allows. `asked` is what the gate sees of the call, None if it could not weigh an answer."""

    def __init__(
        self,
        body: bytes,
        request: Request,
        read: Read,
        prepare: Prepare,
        models: tuple[str, str],
        audit_tier: Tier,
        student_tiers: list[Tier],
    ) -> None:
        self._said: dict[str, Any] = msgspec.json.decode(body)
        self.request = request
        self._call = request.call
        self._read = read
        self._prepare = prepare
        self._student, self._full = models
        self._audit_tier = audit_tier
        self._student_tiers = student_tiers
        self.asked: Asked | None = None
        if request.call.choices == 1 and request.max_output_tokens != 0:
            self.asked = asked_of(request.path, self._said)

    def to_student(self, *, is_held: bool) -> Request:
        """A held answer comes in one piece, with what the gate needs to know about each token."""
        said = {**self._said, "model": self._student}
        said.pop("service_tier", None)
        said.pop("speed", None)
        if is_held:
            said.pop("stream_options", None)
            top = max(TOP_LOGPROBS, said.get("top_logprobs") or 0)
            said |= {"stream": False, "logprobs": True, "top_logprobs": top}
        request = self._read(_encode(said), f"{self._call.id}-student")
        if self._call.tier in self._student_tiers:
            request = replace(request, call=replace(request.call, tier=self._call.tier))
        return self._prepare(request)

    def to_full(self) -> Request:
        return self._prepare(self._read(_encode({**self._said, "model": self._full}), self._call.id))

    def to_audit(self) -> Request:
        """The full model's answer to the same, for the watch alone: at the owner's cost, on stand-by seats."""
        said = {**self._said, "model": self._full, "stream": False}
        for field in ("stream_options", "service_tier", "logprobs", "top_logprobs"):
            said.pop(field, None)
        request = self._read(_encode(said), f"{self._call.id}-audit")
        return replace(request, call=replace(request.call, tier=self._audit_tier))

    def read(self, whole: bytes) -> Said:
        """Only answers of OpenAI chat are ever held."""
        return said_in(msgspec.json.decode(whole), wants_json=self.asked is not None and self.asked.schema is not None)

    def release(self, whole: bytes) -> bytes:
        """A held answer as the client wants it: in one piece or as events, with nothing it did not ask for."""
        answer = msgspec.json.decode(whole)
        choice = answer["choices"][0]
        if not self._said.get("logprobs"):
            choice["logprobs"] = None
        else:
            wanted = self._said.get("top_logprobs") or 0
            for one in (choice.get("logprobs") or {}).get("content") or []:
                one["top_logprobs"] = one["top_logprobs"][:wanted]
        return _as_events(answer, self._wants_usage()) if self._said.get("stream") else _encode(answer)

    def _wants_usage(self) -> bool:
        return bool((self._said.get("stream_options") or {}).get("include_usage"))


def _as_events(answer: dict[str, Any], wants_usage: bool) -> bytes:
    """A whole answer told as a stream: all of it in one event, then how it ended."""
    choice = answer["choices"][0]
    message = {name: value for name, value in choice["message"].items() if value is not None}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": number, **one} for number, one in enumerate(calls)]
    head: dict[str, Any] = {"object": "chat.completion.chunk"}
    head |= {name: value for name, value in answer.items() if name in ("id", "created", "model", "service_tier")}
    first = {"index": 0, "delta": message, "logprobs": choice.get("logprobs"), "finish_reason": None}
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": choice.get("finish_reason")}
    chunks = [{**head, "choices": [first]}, {**head, "choices": [last]}]
    if wants_usage:
        chunks.append({**head, "choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % _encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def asked_of(path: str, said: dict[str, Any]) -> Asked | None:
    """What the gate sees of a request; None where it could not weigh an answer to it."""
    if path == COMPLETIONS:
        prompt = said.get("prompt")
        is_free = not said.get("response_format") and not said.get("structured_outputs")
        return Asked(prompt) if isinstance(prompt, str) and is_free else None
    words = " ".join(_texts(said.get("system")) + [t for one in said["messages"] for t in _texts(one.get("content"))])
    if path == MESSAGES:
        return None if said.get("tools") or said.get("output_config") else Asked(words)
    if path != CHAT or said.get("structured_outputs"):
        return None
    tools = {}
    if said.get("tool_choice") != "none":
        tools = {one["function"]["name"]: one["function"].get("parameters") or {} for one in said.get("tools") or []}
    wanted = said.get("response_format") or {}
    schema = (wanted.get("json_schema") or {}).get("schema") or {}
    return Asked(words, tools, schema if wanted.get("type") in ("json_object", "json_schema") else None)


def said_in(answer: dict[str, Any], *, wants_json: bool = False) -> Said:
    """What the gate sees of an answer of OpenAI chat."""
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [(one["function"]["name"], _json(one["function"]["arguments"])) for one in message.get("tool_calls") or []]
    text = message.get("content") or ""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return Said(
        calls,
        text,
        _json(text) if wants_json else None,
        [str(one["token"]) for one in tokens],
        [_margin(one) for one in tokens],
        choice.get("finish_reason") == "length",
    )


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [str(part.get("text") or "") for part in content] if isinstance(content, list) else []


def _json(text: str) -> Any:
    """None: it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _margin(token: dict[str, Any]) -> float:
    """How much likelier the token was than the likeliest other; below 0 where chance took a less likely one. Where
    nothing is said of others, nothing speaks for it."""
    others = [one["logprob"] for one in token.get("top_logprobs") or [] if one["token"] != token["token"]]
    return float(token["logprob"] - max(others)) if others else float("-inf")
