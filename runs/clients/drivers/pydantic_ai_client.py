"""pydantic-ai: both forms of its OpenAI model, and its Anthropic model."""

import asyncio

import httpx2
from anthropic import AsyncAnthropic
from given import KEY, MODEL, PROMPT, URL, V1, drive, proof, weather
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def openai_loop(form: type[OpenAIChatModel] | type[OpenAIResponsesModel]) -> str:
    model = form(MODEL, provider=OpenAIProvider(base_url=V1, api_key=KEY))
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
    for form in (OpenAIChatModel, OpenAIResponsesModel):
        answer = await Agent(form(MODEL, provider=openai)).run(PROMPT)
        if answer.response.provider_details["service_tier"] != "default":
            raise SystemExit(f"{answer.response.provider_details} has no tier")
    await Agent(AnthropicModel(MODEL, provider=anthropic)).run(PROMPT)
    return proof(dict(zip(("OpenAI", "Responses", "Anthropic"), tiers, strict=True)))


drive(
    {
        "tool loop": lambda: openai_loop(OpenAIChatModel),
        "tool loop, Responses": lambda: openai_loop(OpenAIResponsesModel),
        "tool loop, Anthropic": messages,
        "proof": lambda: asyncio.run(proofs()),
    }
)
