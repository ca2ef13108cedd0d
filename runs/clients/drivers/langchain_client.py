"""LangChain: both forms of ChatOpenAI and ChatAnthropic with a tool, and OpenAI() for completions."""

import json

from given import KEY, MODEL, PROMPT, URL, V1, drive, proof, weather
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI


def tool_loop(model: object) -> str:
    the_tool = tool(weather)
    with_tools, messages = model.bind_tools([the_tool]), [HumanMessage(PROMPT)]
    while True:
        answer = None
        for chunk in with_tools.stream(messages):
            answer = chunk if answer is None else answer + chunk
        if not answer.tool_calls:
            return answer.text
        messages += [answer, *[the_tool.invoke(call) for call in answer.tool_calls]]


def proofs() -> str:
    chat = ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL, include_response_headers=True)
    messages = ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL)
    responses = ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL, use_responses_api=True, include_response_headers=True)
    first, *rest = chat.stream(PROMPT)
    first_of_responses, *rest_of_responses = responses.stream(PROMPT)
    streamed_response = sum(rest_of_responses, first_of_responses)
    return proof(
        {
            "OpenAI": chat.invoke(PROMPT).response_metadata["token_usage"]["headway"]["tier_served"],
            "OpenAI, streamed": sum(rest, first).response_metadata["headers"]["headway-tier-served"],
            "Responses": json.loads(responses.invoke(PROMPT).response_metadata["headers"]["headway-proof"])[
                "tier_served"
            ],
            "Responses, streamed": streamed_response.response_metadata["headers"]["headway-tier-served"],
            "Anthropic": messages.invoke(PROMPT).response_metadata["usage"]["headway"]["tier_served"],
        }
    )


drive(
    {
        "proof": proofs,
        "tool loop": lambda: tool_loop(ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL)),
        "tool loop, Responses": lambda: tool_loop(
            ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL, use_responses_api=True)
        ),
        "tool loop, Anthropic": lambda: tool_loop(ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL)),
        "completion": lambda: OpenAI(base_url=V1, api_key=KEY, model=MODEL).invoke(PROMPT),
    }
)
