"""anthropic: streams through its helper, its tool runner whole and streamed."""

from anthropic import Anthropic, beta_tool
from given import KEY, MODEL, PROMPT, URL, drive, weather

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


drive({"stream": stream, "tool loop": tool_runner, "tool loop, streamed": streamed_tool_runner})
