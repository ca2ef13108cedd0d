"""pydantic-ai: the chat form of its OpenAI model, and its Anthropic model."""

import asyncio

import httpx2
from anthropic import AsyncAnthropic
from given import KEY, MODEL, PROMPT, URL, V1, drive, proof, weather
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def chat() -> str:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=V1, api_key=KEY))
    return Agent(model, tools=[weather]).run_sync(PROMPT).output


def messages() -> str:
    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY))
    return Agent(AnthropicModel(MODEL, provider=provider), tools=[weather]).run_sync(PROMPT).output


async def proofs() -> str:
    tiers = []

    async def keep(response: httpx2.Response) -> None:
        tiers.append(response.headers["headway-tier-served"])

    client = httpx2.AsyncClient(event_hooks={"response": [keep]})
    openai = OpenAIProvider(base_url=V1, api_key=KEY, http_client=client)
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY, http_client=client))
    answer = await Agent(OpenAIChatModel(MODEL, provider=openai)).run(PROMPT)
    await Agent(AnthropicModel(MODEL, provider=anthropic)).run(PROMPT)
    if answer.response.provider_details["service_tier"] != "default":
        raise SystemExit(f"{answer.response.provider_details} has no tier")
    return proof(dict(zip(("OpenAI", "Anthropic"), tiers, strict=True)))


drive({"tool loop": chat, "tool loop, Anthropic": messages, "proof": lambda: asyncio.run(proofs())})
