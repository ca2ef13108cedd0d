"""openai-agents: its chat form, and `responses`, which is its default."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from given import KEY, MODEL, PROMPT, V1, drive, proof, weather
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces go to the vendor, with the vendor's key
CLIENT = AsyncOpenAI(base_url=V1, api_key=KEY)
set_default_openai_client(CLIENT)
CHAT = OpenAIChatCompletionsModel(model=MODEL, openai_client=CLIENT)
KEEPS_USAGE = ModelSettings(preserve_raw_usage=True, include_usage=True)


def agent(model: object) -> Agent:
    return Agent(name="Weather", instructions="Be brief.", tools=[function_tool(weather)], model=model)


async def streamed_loop() -> str:
    run = Runner.run_streamed(agent(MODEL), PROMPT)
    async for _event in run.stream_events():
        pass
    return run.final_output


async def proofs() -> str:
    tiers = {}
    for form, model in (("chat", CHAT), ("Responses", MODEL)):
        proven = Agent(name="Weather", instructions="Be brief.", model=model, model_settings=KEEPS_USAGE)
        whole, streamed = await Runner.run(proven, PROMPT), Runner.run_streamed(proven, PROMPT)
        async for _event in streamed.stream_events():
            pass
        tiers[form] = whole.raw_responses[-1].raw_usage["headway"]["tier_served"]
        tiers[f"{form}, streamed"] = streamed.raw_responses[-1].raw_usage["headway"]["tier_served"]
    return proof(tiers)


drive(
    {
        "tool loop": lambda: Runner.run_sync(agent(CHAT), PROMPT).final_output,
        "tool loop, Responses": lambda: Runner.run_sync(agent(MODEL), PROMPT).final_output,
        "tool loop, Responses, streamed": lambda: asyncio.run(streamed_loop()),
        "proof": lambda: asyncio.run(proofs()),
    }
)
