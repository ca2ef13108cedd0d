"""smolagents: its agent that calls tools."""

from given import KEY, MODEL, PROMPT, V1, drive, weather
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=V1, api_key=KEY)

drive({"tool loop": lambda: ToolCallingAgent(tools=[tool(weather)], model=model).run(PROMPT)})
