"""openai: streams through its helper, a tool loop in streams, a parsed answer."""

import json

from given import KEY, MODEL, PROMPT, V1, WEATHER_SCHEMA, drive, proof, weather
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=V1, api_key=KEY)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}}]


class City(BaseModel):
    city: str
    degrees: int


def stream() -> str:
    with client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": PROMPT}]) as events:
        pieces = [event.delta for event in events if event.type == "content.delta"]
        answer = events.get_final_completion().choices[0].message.content
    if "".join(pieces) != answer:
        raise SystemExit(f"{pieces} is not {answer}")
    return answer


def tool_loop() -> str:
    messages = [{"role": "user", "content": PROMPT}]
    while True:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as events:
            message = events.get_final_completion().choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def parsed() -> str:
    messages = [{"role": "user", "content": PROMPT}]
    completion = client.chat.completions.parse(model=MODEL, messages=messages, response_format=City)
    city = completion.choices[0].message.parsed
    return f"{city.city}: {city.degrees}"


def proofs() -> str:
    request = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    raw = client.chat.completions.with_raw_response.create(**request)
    with_usage = {**request, "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(**with_usage) as events:
        streamed = events.get_final_completion()
    *_, last_chunk = client.chat.completions.create(**with_usage, stream=True)
    return proof(
        {
            "whole": raw.parse().usage.headway["tier_served"],
            "streamed": streamed.usage.headway["tier_served"],
            "last chunk": last_chunk.usage.headway["tier_served"],
            "header": raw.headers["headway-tier-served"],
        }
    )


drive({"stream": stream, "tool loop": tool_loop, "parsed": parsed, "proof": proofs})
