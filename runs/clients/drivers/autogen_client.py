"""AutoGen: its assistant with a tool, and its client for models whose abilities it does not know."""

import asyncio

import httpx2
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from given import KEY, MODEL, PROMPT, V1, drive, proof, weather

INFO = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)
client = OpenAIChatCompletionClient(model=MODEL, base_url=V1, api_key=KEY, model_info=INFO)


def tool_loop(*, streamed: bool) -> str:
    # Without a number of rounds the assistant ends with the result of the first tool.
    agent = AssistantAgent(
        "weather", model_client=client, tools=[weather], max_tool_iterations=5, model_client_stream=streamed
    )
    return asyncio.run(agent.run(task=PROMPT)).messages[-1].content


async def proofs() -> str:
    tiers = []

    async def keep(response: httpx2.Response) -> None:
        tiers.append(response.headers["headway-tier-served"])

    http_client = httpx2.AsyncClient(event_hooks={"response": [keep]})
    watched = OpenAIChatCompletionClient(
        model=MODEL, base_url=V1, api_key=KEY, model_info=INFO, http_client=http_client
    )
    await watched.create([UserMessage(content=PROMPT, source="user")])
    return proof(dict(zip(("header",), tiers, strict=True)))


drive(
    {
        "tool loop": lambda: tool_loop(streamed=False),
        "tool loop, streamed": lambda: tool_loop(streamed=True),
        "proof": lambda: asyncio.run(proofs()),
    }
)
