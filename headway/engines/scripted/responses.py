"""vLLM's wire format of /v1/responses for the scripted engine: words, and programmed reasoning, text and tool calls.

Knows the events of vLLM 0.32 and the response in each of them. Does not know which answer a request gets (answers.py).
Invariant: each token is one delta, except the name of a tool and the end of the text, which have none.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.engines.scripted.answers import ChoicePlan, Piece
from headway.engines.scripted.formats import WORDS, ScriptedAnswer, http_chunk

Metrics = dict[str, float | None]
KINDS = {"reasoning": "reasoning", "text": "message", "call": "call", "arguments": "call"}
# What a response has that was not asked for.
DEFAULTS: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_tool_calls": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "temperature": 1.0,
    "text": None,
    "tool_choice": "none",
    "tools": [],
    "top_logprobs": None,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class AskedResponse(msgspec.Struct):
    """The fields of a request that its response repeats, and the id that it gives the response."""

    request_id: str | None = None
    instructions: Any = None
    max_output_tokens: int | None = None
    metadata: Any = None
    reasoning: Any = None
    text: Any = None
    tool_choice: Any = None
    tools: list[dict[str, Any]] = []
    user: Any = None

    def echoed(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name != "request_id"}
        return {name: value for name, value in found.items() if value is not None}

    def tool_of(self, name: str) -> tuple[str, str | None, str]:
        """Type, namespace and name of a tool that the model calls by its flat name."""
        for tool in self.tools:
            if tool.get("type") == "namespace":
                for member in tool.get("tools") or ():
                    if name == f"{tool['name']}__{member['name']}":
                        return "function", tool["name"], member["name"]
            elif tool.get("name") == name:
                return tool.get("type", "function"), None, name
        return "function", None, name


_ASKED = msgspec.json.Decoder(AskedResponse)


class ResponsesFormat:
    """One response. Its items are opened by their first token and closed by what comes after them."""

    def __init__(
        self,
        answer: ScriptedAnswer,
        plans: Sequence[ChoicePlan],
        index: int,
        *,
        has_reasoning: bool,  # noqa: ARG002 (this dialect always counts it)
    ) -> None:
        self._answer, self._plan = answer, plans[index]
        self._asked = _ASKED.decode(answer.body)
        self._items: list[dict[str, Any]] = []  # as they are when they are done
        self._open: tuple[str, int] | None = None  # kind of the item that is open, and which call it is
        self._text = ""  # of it
        self._sequence_number = 0

    def token(self, number: int) -> bytes:
        piece = self._plan.pieces[number - 1]
        events = self._opening() if number == 1 else b""
        if piece.kind == "end":
            return events
        item = (KINDS[piece.kind], piece.call)
        if item != self._open:
            events += self._close()
            self._open = item
            self._text = ""
            events += self._open_item(piece)
        if piece.kind == "call":
            return events
        self._text += piece.text
        return events + self._delta(piece.text)

    def closing(self, metrics: Metrics) -> bytes:
        events = self._close()
        response = self._response(self._status(), self._items, self._usage(), metrics)
        return events + self._event("response.completed", {"response": response})

    def whole(self, metrics: Metrics) -> bytes:
        plan, items = self._plan, []
        if reasoning := plan.text_of("reasoning"):
            items.append({**self._done_item("reasoning", 0, "", reasoning), "status": None})
        if text := plan.text_of("text"):
            items.append(self._done_item("message", 0, "", text))
        for number, (name, arguments) in enumerate(plan.calls()):
            items.append(self._done_item("call", number, name, arguments))
        return msgspec.json.encode(self._response(self._status(), items, self._usage(), metrics))

    # --- events ---

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        event = {**fields, "sequence_number": self._sequence_number, "type": kind}
        self._sequence_number += 1
        return http_chunk(b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event)))

    def _opening(self) -> bytes:
        response = self._response("in_progress", [], None, None)
        created = self._event("response.created", {"response": response})
        return created + self._event("response.in_progress", {"response": response})

    def _open_item(self, piece: Piece) -> bytes:
        kind = KINDS[piece.kind]
        item = self._done_item(kind, piece.call, piece.text if kind == "call" else "", "")
        if "status" in item:
            item["status"] = "in_progress"
        if kind == "message":
            item["content"] = []
        elif kind == "reasoning":
            item["content"] = None
        events = self._event("response.output_item.added", {"item": item, "output_index": len(self._items)})
        self._item = item
        if kind == "call":
            return events
        part: dict[str, Any] = {"text": "", "type": "reasoning_text"}
        if kind == "message":
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return events + self._event("response.content_part.added", {**self._place(), "part": part})

    def _place(self, *, has_content: bool = True) -> dict[str, Any]:
        place = {"item_id": self._item["id"], "output_index": len(self._items)}
        return {"content_index": 0, **place} if has_content else place

    def _delta(self, text: str) -> bytes:
        assert self._open is not None
        kind = self._open[0]
        if kind == "reasoning":
            return self._event("response.reasoning_text.delta", {**self._place(), "delta": text})
        if kind == "message":
            return self._event("response.output_text.delta", {**self._place(), "delta": text, "logprobs": []})
        place = self._place(has_content=False)
        if self._item["type"] == "custom_tool_call":
            return b""  # vLLM decodes the text inside the JSON as it grows; here it comes in one piece
        return self._event("response.function_call_arguments.delta", {**place, "delta": text})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        kind, number = self._open
        name = self._item.get("name", "")
        if namespace := self._item.get("namespace"):
            name = f"{namespace}__{name}"
        done = self._done_item(kind, number, name, self._text)
        events, place = b"", self._place(has_content=kind != "call")
        if kind == "reasoning":
            events = self._event("response.reasoning_text.done", {**place, "text": self._text})
            events += self._event("response.content_part.done", {**place, "part": done["content"][0]})
        elif kind == "message":
            events = self._event("response.output_text.done", {**place, "text": self._text, "logprobs": []})
            events += self._event("response.content_part.done", {**place, "part": done["content"][0]})
        elif done["type"] == "custom_tool_call":
            events = self._event("response.custom_tool_call_input.delta", {**place, "delta": done["input"]})
            events += self._event("response.custom_tool_call_input.done", {**place, "input": done["input"]})
        else:
            arguments = {"arguments": self._text, "name": done["name"]}
            events = self._event("response.function_call_arguments.done", {**place, **arguments})
        events += self._event("response.output_item.done", {"item": done, "output_index": len(self._items)})
        self._items.append(done)
        self._open = None
        return events

    # --- items and the response ---

    def _done_item(self, kind: str, number: int, name: str, text: str) -> dict[str, Any]:
        if kind == "reasoning":
            content = [{"text": text, "type": "reasoning_text"}]
            item = {"id": self._id("rs", number), "summary": [], "type": "reasoning", "content": content}
            return {**item, "encrypted_content": None, "status": "completed"}
        if kind == "message":
            part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
            item = {"id": self._id("msg", number), "content": [part], "role": "assistant"}
            return {**item, "status": "completed", "type": "message", "phase": None}
        tool_type, namespace, own_name = self._asked.tool_of(name)
        call: dict[str, Any] = {"call_id": self._id("call", number), "name": own_name}
        call |= {"async": None, "caller": None, "namespace": namespace}
        if tool_type == "custom":
            return {**call, "type": "custom_tool_call", "id": self._id("ctc", number), "input": _custom_input(text)}
        call |= {"type": "function_call", "id": self._id("fc", number), "status": "completed"}
        return {**call, "arguments": text}

    def _id(self, prefix: str, number: int) -> str:
        """Thirty-two hexadecimal digits, as in vLLM's ids. The same answer has the same ids."""
        name = f"{self._answer.request_id}/{prefix}/{number}"
        return f"{prefix}_{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"

    def _status(self) -> str:
        return "incomplete" if self._plan.finish_reason == "length" else "completed"

    def _usage(self) -> dict[str, Any]:
        prompt_tokens, tokens = self._answer.prompt_tokens, len(self._plan.pieces)
        cached: dict[str, Any] = {"cached_tokens": 0, "cache_write_tokens": 0}
        cached |= {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        details: dict[str, Any] = {"reasoning_tokens": self._plan.count_reasoning(), "tool_output_tokens": 0}
        details |= {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": cached,
            "output_tokens": tokens,
            "output_tokens_details": details,
            "total_tokens": prompt_tokens + tokens,
        }

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None, metrics: Metrics | None
    ) -> dict[str, Any]:
        return {
            "id": self._asked.request_id or f"resp_{self._answer.request_id}",
            "created_at": self._answer.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._answer.model,
            "object": "response",
            "output": output,
            **DEFAULTS,
            "tool_choice": "auto" if self._asked.tools else "none",
            "max_output_tokens": self._answer.total_tokens,
            **self._asked.echoed(),
            "status": status,
            "usage": usage,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
            **({"metrics": {**metrics, "speculative_decoding": None}} if metrics is not None else {}),
        }


def words_plan(answer: ScriptedAnswer) -> ChoicePlan:
    """The answer of an engine without a file of answers: the same words as in the other dialects."""
    words = [Piece("text", WORDS[number % len(WORDS)]) for number in range(answer.total_tokens)]
    if answer.stop is not None:
        words[-1] = Piece("end")  # the stop word is counted and not sent
    return ChoicePlan(tuple(words), "length" if answer.stop is None else "stop", answer.stop, "auto")


def _custom_input(arguments: str) -> str:
    """The text of a custom tool, which the model writes as the only argument of a function."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return ""
    return str(found.get("input", "")) if isinstance(found, dict) else ""
