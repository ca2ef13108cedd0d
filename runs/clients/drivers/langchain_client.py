"""LangChain: ChatOpenAI and ChatAnthropic with a tool, and OpenAI() for completions."""

from given import KEY, MODEL, PROMPT, URL, V1, drive, weather
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


drive(
    {
        "tool loop": lambda: tool_loop(ChatOpenAI(base_url=V1, api_key=KEY, model=MODEL)),
        "tool loop, Anthropic": lambda: tool_loop(ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL)),
        "completion": lambda: OpenAI(base_url=V1, api_key=KEY, model=MODEL).invoke(PROMPT),
    }
)
