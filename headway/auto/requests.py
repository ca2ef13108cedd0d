"""Turns a call to an auto model into the requests for its rungs: the student, the full model and the audit.

Knows only the parts of the dialects that the gate needs: the words of a prompt and, for OpenAI chat, tools, schemas and
log-probabilities. The Messages dialect has no log-probabilities, so what is weighed or compared of its calls with tools
is asked as chat (auto/messages.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headway.auto.audits import AuditedCall
from headway.auto.gate import GateAnswer, GateCall
from headway.auto.messages import chat_of, message_events, message_of
from headway.core.types import Tier
from headway.wire import Request, at_tier

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
TOP_LOGPROBS = 2  # the chosen token and the most likely other one
DEFAULT_TEMPERATURE = 1.0  # of a call that names none, unless the model's files name another
_encode = msgspec.json.Encoder().encode

Read = Callable[[bytes, str], Request]
Prepare = Callable[[Request], Request]


class CallRungs:
    """A call to an auto model, as each rung gets it. `read` is the dialect's reader, `read_chat` that of chat, in which
    all held answers are asked for; `prepare` adds the tenant and its limits. `gate_call` is the call as the gate sees
    it; None if the gate cannot weigh answers to it."""

    def __init__(
        self,
        body: bytes,
        request: Request,
        read: Read,
        read_chat: Read,
        prepare: Prepare,
        models: tuple[str, str],
        student_tiers: list[Tier],
    ) -> None:
        self._body: dict[str, Any] = msgspec.json.decode(body)
        self.call = request.call
        self.is_streaming = request.streaming
        self._read = read
        self._read_chat = read_chat
        self._prepare = prepare
        self._student, self._full = models
        self._student_tiers = student_tiers
        has_images = bool(request.images.pixels)  # which the full model sees; students are trained on text
        translated = chat_of(self._body) if request.path == MESSAGES and not has_images else None
        self._is_message = translated is not None
        self._chat = translated if translated is not None else self._body
        self.gate_call: GateCall | None = None
        if request.call.choices == 1 and request.runs_model and not has_images:
            self.gate_call = read_call(CHAT if self._is_message else request.path, self._chat)

    def to_student(self, *, is_held: bool) -> Request:
        """A held answer comes in one piece, with log-probabilities for the gate."""
        body = {**(self._chat if is_held else self._body), "model": self._student}
        body.pop("service_tier", None)
        body.pop("speed", None)
        read = self._read
        if is_held:
            read = self._read_chat
            body.pop("stream_options", None)
            top = max(TOP_LOGPROBS, body.get("top_logprobs") or 0)
            body |= {"stream": False, "logprobs": True, "top_logprobs": top}
        request = read(_encode(body), f"{self.call.id}-student")
        if self.call.tier in self._student_tiers:
            request = at_tier(request, self.call.tier)
        return self._prepare(request)

    def to_full(self, *, is_held: bool = False) -> Request:
        """A held answer comes in one piece, to be compared with the student's before the client gets it."""
        if not is_held:
            request = self._read(_encode({**self._body, "model": self._full}), self.call.id)
            return self._prepare(at_tier(request, self.call.tier))
        body = {**self._chat, "model": self._full, "stream": False}
        body.pop("stream_options", None)
        request = self._read_chat(_encode(body), self.call.id)
        return self._prepare(at_tier(request, self.call.tier))

    def to_audit(self, student: bytes) -> AuditedCall:
        """The same call to the full model, and the student's answer to it: for the audit only, at the owner's cost."""
        body = {**self._chat, "model": self._full, "stream": False}
        for field in ("stream_options", "service_tier", "logprobs", "top_logprobs"):
            body.pop(field, None)
        answer = msgspec.json.decode(student)
        answer["choices"][0].pop("logprobs", None)
        return AuditedCall(self.call.id, _encode(body), _encode(answer), self._wants_json)

    def read(self, whole: bytes) -> GateAnswer:
        """The answer as the gate sees it. All held answers are those of OpenAI chat."""
        return read_answer(msgspec.json.decode(whole), wants_json=self._wants_json)

    @property
    def _wants_json(self) -> bool:
        return self.gate_call is not None and self.gate_call.schema is not None

    def release(self, whole: bytes) -> bytes:
        """A held answer in the form that the client asked for: in one piece or as events, without added fields."""
        answer = msgspec.json.decode(whole)
        if self._is_message:
            message = message_of(answer)
            return message_events(message) if self._body.get("stream") else _encode(message)
        choice = answer["choices"][0]
        if not self._body.get("logprobs"):
            choice["logprobs"] = None
        else:
            wanted = self._body.get("top_logprobs") or 0
            for one in (choice.get("logprobs") or {}).get("content") or []:
                one["top_logprobs"] = one["top_logprobs"][:wanted]
        return _as_events(answer, self._wants_usage()) if self._body.get("stream") else _encode(answer)

    def _wants_usage(self) -> bool:
        return bool((self._body.get("stream_options") or {}).get("include_usage"))


def _as_events(answer: dict[str, Any], wants_usage: bool) -> bytes:
    """A whole answer as a stream: one event with all of it, then one with the finish reason."""
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


def read_call(path: str, body: dict[str, Any]) -> GateCall | None:
    """A request as the gate sees it; None if the gate cannot weigh answers to it."""
    named = body.get("temperature")
    temperature = float(named) if named is not None else DEFAULT_TEMPERATURE
    if path == COMPLETIONS:
        prompt = body.get("prompt")
        is_free = not body.get("response_format") and not body.get("structured_outputs")
        return GateCall(prompt, temperature=temperature) if isinstance(prompt, str) and is_free else None
    words = " ".join(_texts(body.get("system")) + [t for one in body["messages"] for t in _texts(one.get("content"))])
    if path == MESSAGES:
        is_free = not body.get("tools") and not body.get("output_config")
        return GateCall(words, temperature=temperature) if is_free else None
    if path != CHAT or body.get("structured_outputs"):
        return None
    tools = {}
    if body.get("tool_choice") != "none":
        tools = {one["function"]["name"]: one["function"].get("parameters") or {} for one in body.get("tools") or []}
    wanted = body.get("response_format") or {}
    schema = (wanted.get("json_schema") or {}).get("schema") or {}
    is_json = wanted.get("type") in ("json_object", "json_schema")
    return GateCall(words, tools, schema if is_json else None, temperature)


def read_answer(answer: dict[str, Any], *, wants_json: bool = False) -> GateAnswer:
    """An answer of OpenAI chat as the gate sees it."""
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [(one["function"]["name"], _json(one["function"]["arguments"])) for one in message.get("tool_calls") or []]
    text = message.get("content") or ""
    tokens = (choice.get("logprobs") or {}).get("content") or []
    return GateAnswer(
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
    """None if the text is not valid JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _margin(token: dict[str, Any]) -> float:
    """The token's log-probability minus that of the most likely other token; negative if sampling chose a less likely
    one, -inf if the engine lists no others."""
    others = [one["logprob"] for one in token.get("top_logprobs") or [] if one["token"] != token["token"]]
    return float(token["logprob"] - max(others)) if others else float("-inf")
