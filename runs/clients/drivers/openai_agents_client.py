"""openai-agents: its chat form."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from given import KEY, MODEL, PROMPT, V1, drive, weather
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces go to the vendor, with the vendor's key
MODEL_HERE = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI(base_url=V1, api_key=KEY))
AGENT = Agent(name="Weather", instructions="Be brief.", tools=[function_tool(weather)], model=MODEL_HERE)

drive({"tool loop": lambda: Runner.run_sync(AGENT, PROMPT).final_output})
