"""pydantic-ai: the chat form of its OpenAI model, and its Anthropic model."""

from anthropic import AsyncAnthropic
from given import KEY, MODEL, PROMPT, URL, V1, drive, weather
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


drive({"tool loop": chat, "tool loop, Anthropic": messages})
