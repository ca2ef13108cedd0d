"""openai-agents: its chat form."""

import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from given import KEY, MODEL, PROMPT, V1, drive, proof, weather
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces go to the vendor, with the vendor's key
MODEL_HERE = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI(base_url=V1, api_key=KEY))
AGENT = Agent(name="Weather", instructions="Be brief.", tools=[function_tool(weather)], model=MODEL_HERE)

KEEPS_USAGE = ModelSettings(preserve_raw_usage=True, include_usage=True)
PROVEN = Agent(name="Weather", instructions="Be brief.", model=MODEL_HERE, model_settings=KEEPS_USAGE)


async def proofs() -> str:
    whole, streamed = await Runner.run(PROVEN, PROMPT), Runner.run_streamed(PROVEN, PROMPT)
    async for _event in streamed.stream_events():
        pass
    return proof(
        {
            "whole": whole.raw_responses[-1].raw_usage["headway"]["tier_served"],
            "streamed": streamed.raw_responses[-1].raw_usage["headway"]["tier_served"],
        }
    )


drive({"tool loop": lambda: Runner.run_sync(AGENT, PROMPT).final_output, "proof": lambda: asyncio.run(proofs())})
