"""The calls that the demo prints: the same question at standard and at fast, each answer with its proof."""

from __future__ import annotations

import json
import shlex
import textwrap

QUESTION = "Why is the sky blue?"
MAX_TOKENS = 60


def calls_to_paste(model: str, port: int) -> dict[str, str]:
    """Return bash commands by the name of their client. Each makes both calls."""
    url = f"http://127.0.0.1:{port}"
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "service_tier": "$tier", "max_tokens": MAX_TOKENS, "messages": messages}
    # The variable stands outside of the single quotes, where bash replaces it.
    data = shlex.quote(json.dumps(body)).replace("$tier", "'$tier'")
    arguments = f"model={json.dumps(model)}, max_tokens={MAX_TOKENS}, messages={json.dumps(messages)}"
    # Some chunks carry usage and no choice, hence the inner loop.
    openai = f"""
        from openai import OpenAI
        client = OpenAI(base_url="{url}/v1", api_key="headway")
        for tier in ("standard", "fast"):
            for chunk in client.chat.completions.create(
                service_tier=tier, stream=True, stream_options={{"include_usage": True}}, {arguments}
            ):
                for choice in chunk.choices:
                    print(choice.delta.content or "", end="", flush=True)
                if chunk.usage:
                    print(f"\\n{{tier}}:", chunk.usage.headway, "\\n")
        """
    anthropic = f"""
        from anthropic import Anthropic
        client = Anthropic(base_url="{url}", api_key="headway")
        for speed in ("standard", "fast"):
            with client.messages.stream(speed=speed, {arguments}) as stream:
                for event in stream:
                    if event.type == "text":
                        print(event.text, end="", flush=True)
                    if event.type == "message_delta":
                        print(f"\\n{{speed}}:", event.usage.headway, "\\n")
        """
    curl = f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d {data}"
    return {
        "curl": f"for tier in standard fast; do {curl}; echo; done",
        "OpenAI SDK (pip install openai)": f"python -c {shlex.quote(textwrap.dedent(openai))}",
        "Anthropic SDK (pip install anthropic)": f"python -c {shlex.quote(textwrap.dedent(anthropic))}",
    }
