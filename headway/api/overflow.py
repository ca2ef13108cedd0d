"""Which calls a hosted server can take over: those that it understands as the engines here do."""

from __future__ import annotations

from dataclasses import replace

from headway.api.answers import read_fields
from headway.api.models import PLAIN_PATHS
from headway.config import ModelTable
from headway.wire import Request

# Fields that mean the same at every server with OpenAI's API. Others are vLLM's own, such as `structured_outputs`: a
# server that does not know one may ignore it, and answer another question.
KNOWN_EVERYWHERE = frozenset(
    {
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "n",
        "parallel_tool_calls", "presence_penalty", "prompt", "reasoning_effort", "response_format", "seed", "stop",
        "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
    }
)  # fmt: skip


def mark_overflow(request: Request, model: ModelTable) -> Request:
    """The request, which may go to the model's hosted server if that understands all of it."""
    if model.hosted is None or request.path not in PLAIN_PATHS or request.images.pixels:
        return request
    if not KNOWN_EVERYWHERE.issuperset(read_fields(request.body)):
        return request
    return replace(request, call=replace(request.call, may_overflow=True))
