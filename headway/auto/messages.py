"""A Messages call with tools as a chat call, and the chat answer as a message.

vLLM gives log-probabilities in the chat dialect only, and turns a Messages call into a chat call itself before it
renders the prompt. This does the same, field by field, so that the student sees the prompt that it would see in either
dialect, and its answer can be weighed. Only text and tools: a call with anything else (thinking, a JSON schema for the
answer, system messages between others) is not translated.

The full model's answers are not translated, except those that are held to be compared.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headway.core.types import EXPRESS
from headway.errors import EngineFailed

KNOWN_BLOCKS = {"text", "tool_use", "tool_result"}
SAME_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "stream", "chat_template_kwargs")
BILLING_HEADER = "x-anthropic-billing-header"  # of Claude Code; vLLM leaves such a block out
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_encode = msgspec.json.Encoder().encode


def chat_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """The call as a chat call; None if it has no tools, or something that is not translated."""
    if not body.get("tools") or body.get("thinking") or body.get("output_config"):
        return None
    messages: list[dict[str, Any]] = []
    if system := _system(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in body["messages"]:
        if message["role"] == "system" or not _is_known(message["content"]):
            return None
        messages += _chat_messages(message)
    chat = {name: body[name] for name in SAME_FIELDS if body.get(name) is not None}
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    chat |= {"model": body["model"], "messages": messages, "tools": [_tool(one) for one in body["tools"]]}
    return chat | _tool_choice(body.get("tool_choice"))


def message_of(answer: dict[str, Any]) -> dict[str, Any]:
    """A chat answer as a message. Raises EngineFailed if the arguments of a tool call are not JSON."""
    choice, usage = answer["choices"][0], answer["usage"]
    text, calls = choice["message"].get("content"), choice["message"].get("tool_calls") or []
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        function = call["function"]
        try:
            given = msgspec.json.decode(function["arguments"])
        except msgspec.MsgspecError as error:
            raise EngineFailed("the engine's tool call has arguments that are not JSON") from error
        content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    reason, sequence = _stop_reason(choice, has_calls=bool(calls))
    return {
        "id": answer["id"],
        "type": "message",
        "role": "assistant",
        "model": answer.get("model"),
        "content": content or [{"type": "text", "text": ""}],
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(usage),
    }


def message_events(message: dict[str, Any]) -> bytes:
    """A message as the events of a stream."""
    usage = message["usage"]
    begun = {**usage, "output_tokens": 0}
    begun.pop("headway", None)
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block.get("text")}
        if block["type"] == "tool_use":
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": _encode(block["input"]).decode()}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    events.append({"type": "message_delta", "delta": ended, "usage": usage})
    events.append({"type": "message_stop"})
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), _encode(one)) for one in events)


# --- the call --------------------------------------------------------------------------------------------------------


def _is_known(content: Any) -> bool:
    return isinstance(content, str) or all(block["type"] in KNOWN_BLOCKS for block in content)


def _system(system: Any) -> str:
    texts = [system] if isinstance(system, str) else [block["text"] for block in system or []]
    return "".join(text for text in texts if isinstance(system, str) or not text.startswith(BILLING_HEADER))


def _chat_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of tools are messages of their own, before the message that they are in."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        if block["type"] == "tool_use":
            function = {"name": block.get("name") or "", "arguments": _encode(block.get("input") or {}).decode()}
            calls.append({"id": block.get("id") or "", "type": "function", "function": function})
        elif block["type"] == "tool_result":
            results.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": _result_text(block)}
            )
        elif block.get("text"):
            texts.append(block["text"])
    chat: dict[str, Any] = {"role": role}
    if calls:
        chat["tool_calls"] = calls
    if texts:
        chat["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    is_empty = not texts and not calls
    return results if is_empty else [*results, chat]


def _result_text(block: dict[str, Any]) -> str:
    content = block.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any] | None) -> dict[str, Any]:
    if choice is None:
        return {}
    named = {"type": "function", "function": {"name": choice.get("name")}}
    chosen = named if choice["type"] == "tool" else TOOL_CHOICES[choice["type"]]
    return {"tool_choice": chosen, "parallel_tool_calls": not choice.get("disable_parallel_tool_use")}


# --- the answer ------------------------------------------------------------------------------------------------------


def _stop_reason(choice: dict[str, Any], *, has_calls: bool) -> tuple[str | None, str | None]:
    finish, stop = choice.get("finish_reason"), choice.get("stop_reason")
    if finish == "length":
        return "max_tokens", None
    if finish not in ("stop", "tool_calls"):
        return None, None
    if has_calls or finish == "tool_calls":
        return "tool_use", None
    return ("stop_sequence", stop) if isinstance(stop, str) else ("end_turn", None)


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """In this dialect the tokens found in the prefix cache are not among the input tokens."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    counts: dict[str, Any] = {"input_tokens": max(0, usage["prompt_tokens"] - (cached or 0))}
    counts["output_tokens"] = usage["completion_tokens"]
    if cached is not None:
        counts["cache_read_input_tokens"] = cached
    proof = usage.get("headway") or {}
    return counts | {"speed": "fast" if proof.get("tier_served") in EXPRESS else "standard", "headway": proof}
