"""LiteLLM: a tool loop in streams, in both dialects."""

import json

import litellm
from given import KEY, MODEL, PROMPT, URL, V1, WEATHER_SCHEMA, drive, proof, weather

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}}]
OPENAI = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": KEY}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY}


def tool_loop(where: dict[str, str]) -> str:
    messages = [{"role": "user", "content": PROMPT}]
    while True:
        chunks = list(litellm.completion(messages=messages, tools=TOOLS, stream=True, **where))
        message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def proofs() -> str:
    messages = [{"role": "user", "content": PROMPT}]
    whole = litellm.completion(messages=messages, **OPENAI)
    others = {
        "OpenAI, streamed": litellm.completion(messages=messages, stream=True, **OPENAI),
        "Anthropic": litellm.completion(messages=messages, **ANTHROPIC),
        "Anthropic, streamed": litellm.completion(messages=messages, stream=True, **ANTHROPIC),
    }
    headers = {name: answer._hidden_params["additional_headers"] for name, answer in others.items()}
    tiers = {name: found["llm_provider-headway-tier-served"] for name, found in headers.items()}
    return proof({"OpenAI": whole.usage.headway["tier_served"], **tiers})


drive(
    {
        "tool loop": lambda: tool_loop(OPENAI),
        "tool loop, Anthropic": lambda: tool_loop(ANTHROPIC),
        "proof": proofs,
    }
)
