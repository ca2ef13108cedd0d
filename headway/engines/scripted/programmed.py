"""vLLM's wire formats for programmed answers: reasoning, text and tool calls, in three dialects.

Knows the events of vLLM 0.32 with `--enable-auto-tool-choice --tool-call-parser hermes`, and with a reasoning parser if
the file has reasoning. Does not know which answer a request gets or what its tokens are (answers.py).
Invariant: each token is one event, except where a dialect opens or closes something around it.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.engines.scripted.answers import ChoicePlan, Piece
from headway.engines.scripted.formats import FINGERPRINT, ScriptedAnswer, http_chunk, whole_body
from headway.engines.scripted.messages import message_start, messages_event

Metrics = dict[str, float | None]
BLOCKS = {"reasoning": "thinking", "text": "text", "call": "tool_use", "arguments": "tool_use"}
DONE = http_chunk(b"data: [DONE]\n\n")


def _digest(*names: object) -> str:
    """Sixteen hexadecimal digits, as in vLLM's ids. The same names give the same digits."""
    return hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=8).hexdigest()


def _certain(token: str) -> dict[str, Any]:
    """The log-probabilities of a token that the model is sure of, and of the likeliest other one."""
    likeliest = [
        {"token": one, "logprob": logprob, "bytes": list(one.encode())}
        for one, logprob in ((token, 0.0), ("" if token else " ", -20.0))
    ]
    return {**likeliest[0], "top_logprobs": likeliest}


class _ProgrammedOpenAI:
    """What chat and completions share: one object for each choice."""

    object_name: str

    def __init__(self, answer: ScriptedAnswer, plans: Sequence[ChoicePlan], index: int, *, has_reasoning: bool) -> None:
        self._answer, self._plans, self._index = answer, plans, index
        self._plan = plans[index]
        self._has_reasoning = has_reasoning
        self._reasoning_tokens = self._plan.count_reasoning()

    def opening(self) -> bytes:
        return b""

    def choice(self, piece: Piece, ending: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def usage(self, number: int) -> dict[str, Any]:
        return {"usage": self._counts(number)}

    def _counts(self, tokens: int) -> dict[str, Any]:
        prompt_tokens = self._answer.prompt_tokens
        return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}

    def event(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> bytes:
        answer = self._answer
        head = {"id": answer.id, "object": self.object_name, "created": answer.created, "model": answer.model}
        return http_chunk(b"data: %b\n\n" % msgspec.json.encode({**head, "choices": choices, **more}))

    def token(self, number: int) -> bytes:
        plan, answer = self._plan, self._answer
        ending: dict[str, Any] = {"finish_reason": None}
        more = self.usage(number) if answer.continuous_usage else {}
        if number == len(plan.pieces):
            ending = {"finish_reason": plan.finish_reason, "stop_reason": plan.stop}
            more |= {} if answer.include_usage else {"system_fingerprint": FINGERPRINT}
        event = self.event([self.choice(plan.pieces[number - 1], ending)], more)
        # As in vLLM, the first token of an answer opens all of its choices. The first choice is seated first.
        return self.opening() + event if number == 1 and self._index == 0 else event

    def closing(self, metrics: Metrics) -> bytes:
        if not self._answer.include_usage:
            return DONE
        usage = self._counts(self._all_tokens())
        if self.token_details() is not None:
            usage["completion_tokens_details"] = self.token_details()
        more = {"usage": usage, "system_fingerprint": FINGERPRINT}
        if len(self._plans) == 1:
            more["metrics"] = {name: value for name, value in metrics.items() if value is not None}
        return self.event([], more) + DONE

    def token_details(self) -> dict[str, int] | None:
        return None

    def _all_tokens(self) -> int:
        return sum(len(plan.pieces) for plan in self._plans)

    def whole_answer(self, choices: list[dict[str, Any]], prompt: dict[str, Any], metrics: Metrics) -> bytes:
        # vLLM has no metrics for several choices.
        timings = {**metrics, "speculative_decoding": None} if len(choices) == 1 else None
        details, tokens = self.token_details(), self._all_tokens()
        return whole_body(self._answer, self.object_name, choices, tokens, prompt, timings, details)


class ProgrammedChat(_ProgrammedOpenAI):
    object_name = "chat.completion.chunk"

    def opening(self) -> bytes:
        events = b""
        for index in range(len(self._plans)):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            usage = self.usage(0) if self._answer.continuous_usage else {}
            events += self.event([choice], {**usage, "prompt_token_ids": None, "prompt_text": None})
        return events

    def usage(self, number: int) -> dict[str, Any]:
        details = {"reasoning_tokens": min(number, self._reasoning_tokens)} if self._has_reasoning else None
        return {"usage": {**self._counts(number), "completion_tokens_details": details}}

    def token_details(self) -> dict[str, int] | None:
        if not self._has_reasoning:
            return None
        return {"reasoning_tokens": sum(plan.count_reasoning() for plan in self._plans)}

    def choice(self, piece: Piece, ending: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": self._delta(piece), "logprobs": None, **ending, "token_ids": None}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if piece.kind == "end":
            return {}
        if piece.kind == "reasoning":
            return {"reasoning": piece.text}
        if piece.kind == "text":
            return {"content": piece.text}
        call: dict[str, Any] = {"index": piece.call, "function": {"arguments": piece.text}}
        if piece.kind == "call":
            call = {"id": self._call_id(piece.call), "type": "function", "index": piece.call}
            call["function"] = {"name": piece.text}
        return {"content": None, "tool_calls": [call]}

    def _call_id(self, number: int, index: int | None = None) -> str:
        choice = self._index if index is None else index
        return f"chatcmpl-tool-{_digest(self._answer.request_id, choice, number)}"

    def whole(self, metrics: Metrics) -> bytes:
        choices = [self._whole_choice(index, plan) for index, plan in enumerate(self._plans)]
        prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        return self.whole_answer(choices, prompt, metrics)

    def _whole_choice(self, index: int, plan: ChoicePlan) -> dict[str, Any]:
        text, calls = plan.text_of("text"), plan.calls()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text and plan.tool_choice == "auto" else text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(number, index),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (name, arguments) in enumerate(calls)
            ]
        message["reasoning"] = plan.text_of("reasoning") or None
        ending = {"finish_reason": plan.finish_reason, "stop_reason": plan.stop, "token_ids": None}
        logprobs = {"content": [_certain(piece.text) for piece in plan.pieces]} if plan.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, **ending, "routed_experts": None}


class ProgrammedCompletion(_ProgrammedOpenAI):
    object_name = "text_completion"

    def choice(self, piece: Piece, ending: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": self._index, "text": piece.text, "logprobs": None, "stop_reason": None, **ending}
        return {**choice, "prompt_token_ids": None, "token_ids": None}

    def whole(self, metrics: Metrics) -> bytes:
        choices = [
            {
                "index": index,
                "text": plan.text_of("text"),
                "logprobs": None,
                "finish_reason": plan.finish_reason,
                "stop_reason": plan.stop,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, plan in enumerate(self._plans)
        ]
        return self.whole_answer(choices, {}, metrics)


class ProgrammedMessage:
    """One Anthropic message. Its blocks are opened by their first token and closed by what comes after them."""

    def __init__(
        self,
        answer: ScriptedAnswer,
        plans: Sequence[ChoicePlan],
        index: int,
        *,
        has_reasoning: bool,  # noqa: ARG002 (this dialect does not count it)
    ) -> None:
        self._answer, self._plan = answer, plans[index]
        self._open: tuple[str, int] | None = None  # type of the block that is open, and which call it is
        self._blocks = 0  # that have been closed

    def token(self, number: int) -> bytes:
        piece = self._plan.pieces[number - 1]
        events = message_start(self._answer) if number == 1 else b""
        if piece.kind == "end":
            return events
        block = (BLOCKS[piece.kind], piece.call)
        if block != self._open:
            events += self._close()
            self._open = block
            content = self._block(block[0], piece)
            events += messages_event({"type": "content_block_start", "content_block": content, "index": self._blocks})
        return events if piece.kind == "call" else events + self._delta(self._delta_of(block[0], piece.text))

    def _block(self, kind: str, piece: Piece) -> dict[str, Any]:
        if kind == "tool_use":
            return {"type": kind, "id": self._call_id(piece.call), "name": piece.text, "input": {}}
        return {"type": kind, kind: ""}

    @staticmethod
    def _delta_of(kind: str, text: str) -> dict[str, Any]:
        if kind == "tool_use":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{kind}_delta", kind: text}

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return messages_event({"type": "content_block_delta", "delta": delta, "index": self._blocks})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        events = b""
        if self._open[0] == "thinking":
            events = self._delta({"type": "signature_delta", "signature": self._signature()})
        events += messages_event({"type": "content_block_stop", "index": self._blocks})
        self._open = None
        self._blocks += 1
        return events

    def _call_id(self, number: int) -> str:
        return f"chatcmpl-tool-{_digest(self._answer.request_id, 0, number)}"

    def _signature(self) -> str:
        return _digest(self._answer.request_id, "thinking") + _digest(self._answer.request_id, "signature")

    def _ending(self) -> tuple[str, str | None]:
        plan = self._plan
        if plan.finish_reason == "length":
            return "max_tokens", None
        if plan.stop is not None:
            return "stop_sequence", plan.stop
        return "tool_use" if plan.calls() or plan.finish_reason == "tool_calls" else "end_turn", None

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._answer.prompt_tokens, "output_tokens": len(self._plan.pieces)}

    def closing(self, metrics: Metrics) -> bytes:  # noqa: ARG002 (this dialect has no field for them)
        reason, stop = self._ending()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return (
            self._close()
            + messages_event({"type": "message_delta", "delta": delta, "usage": self._usage()})
            + messages_event({"type": "message_stop"})
        )

    def whole(self, metrics: Metrics) -> bytes:  # noqa: ARG002
        plan, (reason, stop) = self._plan, self._ending()
        content: list[dict[str, Any]] = []
        if thinking := plan.text_of("reasoning"):
            content.append({"type": "thinking", "thinking": thinking, "signature": self._signature()})
        if text := plan.text_of("text"):
            content.append({"type": "text", "text": text})
        for number, (name, arguments) in enumerate(plan.calls()):
            tool_use = {"type": "tool_use", "id": self._call_id(number), "name": name}
            content.append({**tool_use, "input": json.loads(arguments)})
        body = {
            "id": self._answer.id,
            "type": "message",
            "role": "assistant",
            "content": content or [{"type": "text", "text": ""}],
            "model": self._answer.model,
            "stop_reason": reason,
            **({} if stop is None else {"stop_sequence": stop}),
            "usage": self._usage(),
        }
        return msgspec.json.encode(body)
