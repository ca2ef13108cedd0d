"""Writes a question in the OpenAI or Anthropic dialect, and reads the answer: text, calls, tokens and Headway's proof.

Messages and tools are in OpenAI's form, here and in task files; for `/v1/messages` they are converted. Does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.evals.targets import Target

Message = dict[str, Any]
ANTHROPIC_VERSION = "2023-06-01"
FAST_BETA = "fast-mode-2026-02-01"
MAX_WHY_CHARS = 300
AUTO, ANY, NONE = "auto", "any", "none"


@dataclass(frozen=True, slots=True)
class Question:
    messages: list[Message]
    tools: list[dict[str, Any]]
    max_tokens: int
    tool_choice: str = AUTO  # or any, none, or the name of a tool


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call of an answer. `arguments` is text that may not be valid JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    calls: list[Called]
    stopped: str  # the reason why the answer ended, as the dialect names it
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    proof: dict[str, Any] | None  # `usage.headway`


def path_of(target: Target) -> str:
    return target.url + ("/v1/chat/completions" if target.dialect == "openai" else "/v1/messages")


def headers_of(target: Target, key: str | None) -> dict[str, str]:
    if target.dialect == "openai":
        return {"authorization": f"Bearer {key}"} if key else {}
    headers = {"anthropic-version": ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})
    return headers | ({"anthropic-beta": FAST_BETA} if target.speed == "fast" else {})


def body_of(target: Target, question: Question) -> dict[str, Any]:
    tools = [_named(target, one) for one in question.tools]
    body: dict[str, Any] = {"model": target.model}
    if target.dialect == "openai":
        body |= {"messages": question.messages, "max_completion_tokens": question.max_tokens}
        body |= {"tools": tools, **_choice(question.tool_choice, is_openai=True)} if tools else {}
    else:
        body |= {"messages": _as_blocks(question.messages), "max_tokens": question.max_tokens}
        if system := "\n\n".join(str(one["content"]) for one in question.messages if one["role"] == "system"):
            body["system"] = system
        if tools:
            body["tools"] = [_as_anthropic(one["function"]) for one in tools]
            body |= _choice(question.tool_choice, is_openai=False)
    chosen = {"service_tier": target.service_tier, "speed": target.speed, "temperature": target.temperature}
    return body | {name: value for name, value in chosen.items() if value is not None} | target.body


def _choice(said: str, *, is_openai: bool) -> dict[str, Any]:
    if said == AUTO:
        return {}
    if said in (ANY, NONE):
        return {"tool_choice": (said if said == NONE else "required") if is_openai else {"type": said}}
    if is_openai:
        return {"tool_choice": {"type": "function", "function": {"name": said}}}
    return {"tool_choice": {"type": "tool", "name": said}}


def _named(target: Target, tool: dict[str, Any]) -> dict[str, Any]:
    """Other providers allow no dots in a tool's name. The judge accepts both spellings."""
    function = tool["function"]
    name = function["name"] if target.is_headway and target.dialect == "openai" else function["name"].replace(".", "_")
    return {"type": "function", "function": {**function, "name": name}}


def _as_anthropic(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description") or "", "input_schema": schema}


def _as_blocks(messages: Sequence[Message]) -> list[Message]:
    """Anthropic's form: tool results are user messages, and roles alternate."""
    converted: list[Message] = []
    for one in messages:
        if one["role"] == "system":
            continue
        role = "assistant" if one["role"] == "assistant" else "user"
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += _blocks(one)
        else:
            converted.append({"role": role, "content": _blocks(one)})
    return converted


def _blocks(message: Message) -> list[dict[str, Any]]:
    text = str(message.get("content") or "")
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": text}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def read_reply(target: Target, answer: Any) -> Reply:
    """Raises ValueError if `answer` is not an answer of the target's dialect."""
    try:
        return _from_openai(answer) if target.dialect == "openai" else _from_anthropic(answer)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"not an answer of the {target.dialect} dialect: {json.dumps(answer)[:MAX_WHY_CHARS]}"
        ) from error


def _from_openai(answer: dict[str, Any]) -> Reply:
    choice = answer["choices"][0]
    message, usage = choice["message"], answer.get("usage") or {}
    calls = [
        Called(one.get("id") or f"call-{number}", one["function"]["name"], one["function"]["arguments"] or "{}")
        for number, one in enumerate(message.get("tool_calls") or [])
    ]
    return Reply(
        message.get("content") or "",
        calls,
        "refusal" if message.get("refusal") else choice.get("finish_reason") or "",
        usage.get("prompt_tokens") or 0,
        usage.get("completion_tokens") or 0,
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        usage.get("headway"),
    )


def _from_anthropic(answer: dict[str, Any]) -> Reply:
    blocks, usage = answer["content"], answer.get("usage") or {}
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    return Reply(
        "".join(one["text"] for one in blocks if one["type"] == "text"),
        [Called(one["id"], one["name"], json.dumps(one["input"])) for one in blocks if one["type"] == "tool_use"],
        answer.get("stop_reason") or "",
        (usage.get("input_tokens") or 0) + cached + written,
        usage.get("output_tokens") or 0,
        cached,
        usage.get("headway"),
    )


def measured(target: Target, reply: Reply, client_s: float) -> dict[str, Any]:
    """The time and cost of an answer: from Headway's proof if it has them, else from this client's clock and the
    target's prices."""
    proof = reply.proof or {}
    answer_s = proof.get("answer_seconds")
    billed = proof.get("billed_micro")
    price = target.price_micro(reply.input_tokens, reply.output_tokens)
    return {
        "seconds": client_s if answer_s is None else float(answer_s),
        "timed_by": "client" if answer_s is None else "proof",
        "cost_micro": price if billed is None else int(billed),
        "cached_tokens": reply.cached_tokens,
        "proof": reply.proof,
    }


def why_not(status: int, body: bytes) -> str:
    """The status and the endpoint's error message, shortened."""
    try:
        said = json.loads(body)
        message = said["error"]["message"] if isinstance(said["error"], dict) else said["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = body[:MAX_WHY_CHARS].decode(errors="replace")
    return f"{status}: {str(message)[:MAX_WHY_CHARS]}"
