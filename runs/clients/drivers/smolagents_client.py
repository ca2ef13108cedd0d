"""smolagents: its agent that calls tools."""

from given import KEY, MODEL, PROMPT, V1, drive, proof, weather
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=V1, api_key=KEY)


def proofs() -> str:
    message = model.generate([{"role": "user", "content": PROMPT}])
    return proof({"whole": message.raw.usage.headway["tier_served"]})


drive(
    {"tool loop": lambda: ToolCallingAgent(tools=[tool(weather)], model=model).run(PROMPT), "proof": proofs},
)
