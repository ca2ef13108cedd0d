"""openai: streams through its helper, tool loops, parsed answers; in its chat form and with `responses`."""

import json

from given import KEY, MODEL, PROMPT, V1, WEATHER_SCHEMA, drive, proof, weather
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

client = OpenAI(base_url=V1, api_key=KEY)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}}]
RESPONSES_TOOLS = [{"type": "function", "name": "weather", "parameters": WEATHER_SCHEMA}]


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


def responses_loop() -> str:
    """Streams, each of which gets the whole conversation."""
    items = [{"role": "user", "content": PROMPT}]
    while True:
        with client.responses.stream(model=MODEL, input=items, tools=RESPONSES_TOOLS) as events:
            response = events.get_final_response()
        if not (results := tool_results(response)):
            return response.output_text
        items += [*response.output, *results]


def continued_loop() -> str:
    """Whole answers, each of which continues the one before."""
    response = client.responses.create(model=MODEL, input=PROMPT, tools=RESPONSES_TOOLS)
    while results := tool_results(response):
        response = client.responses.create(
            model=MODEL, input=results, tools=RESPONSES_TOOLS, previous_response_id=response.id
        )
    return response.output_text


def tool_results(response: Response) -> list[dict[str, str]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": weather(**json.loads(call.arguments))}
        for call in calls
    ]


def responses_parsed() -> str:
    city = client.responses.parse(model=MODEL, input=PROMPT, text_format=City).output_parsed
    return f"{city.city}: {city.degrees}"


def proofs() -> str:
    request = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    raw = client.chat.completions.with_raw_response.create(**request)
    with_usage = {**request, "stream_options": {"include_usage": True}}
    with client.chat.completions.stream(**with_usage) as events:
        streamed = events.get_final_completion()
    with client.responses.stream(model=MODEL, input=PROMPT) as events:
        streamed_response = events.get_final_response()
    *_, last_chunk = client.chat.completions.create(**with_usage, stream=True)
    return proof(
        {
            "whole": raw.parse().usage.headway["tier_served"],
            "streamed": streamed.usage.headway["tier_served"],
            "last chunk": last_chunk.usage.headway["tier_served"],
            "Responses": client.responses.create(model=MODEL, input=PROMPT).usage.headway["tier_served"],
            "Responses, streamed": streamed_response.usage.headway["tier_served"],
            "header": raw.headers["headway-tier-served"],
        }
    )


drive(
    {
        "stream": stream,
        "tool loop": tool_loop,
        "parsed": parsed,
        "tool loop, Responses": responses_loop,
        "tool loop, previous_response_id": continued_loop,
        "parsed, Responses": responses_parsed,
        "proof": proofs,
    }
)
