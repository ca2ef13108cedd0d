"""anthropic: streams through its helper, its tool runner whole and streamed."""

from anthropic import Anthropic, beta_tool
from given import KEY, MODEL, PROMPT, URL, drive, proof, weather

client = Anthropic(base_url=URL, api_key=KEY)
MESSAGES = [{"role": "user", "content": PROMPT}]


def text_of(message: object) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def stream() -> str:
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=MESSAGES) as events:
        text = "".join(events.text_stream)
        if text != text_of(events.get_final_message()):
            raise SystemExit(f"{text!r} is not the final message")
    return text


def tool_runner() -> str:
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, messages=MESSAGES, tools=[beta_tool(weather)]
    )
    return text_of(runner.until_done())


def streamed_tool_runner() -> str:
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=1000, messages=MESSAGES, tools=[beta_tool(weather)], stream=True
    )
    for events in runner:
        message = events.get_final_message()
    return text_of(message)


def proofs() -> str:
    request = {"model": MODEL, "max_tokens": 1000, "messages": MESSAGES}
    raw = client.messages.with_raw_response.create(**request)
    with client.messages.stream(**request) as events:
        delta = next(event for event in events if event.type == "message_delta")
        return proof(
            {
                "whole": raw.parse().usage.headway["tier_served"],
                "streamed": delta.usage.headway["tier_served"],
                "final message": events.get_final_message().usage.speed,
                "header": raw.headers["headway-tier-served"],
                "header of a stream": events.response.headers["headway-tier-served"],
            }
        )


drive(
    {"stream": stream, "tool loop": tool_runner, "tool loop, streamed": streamed_tool_runner, "proof": proofs},
)
