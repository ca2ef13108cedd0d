"""DSPy: its ReAct, which asks for tools in plain text."""

import dspy
from given import KEY, MODEL, PROMPT, V1, drive, proof, weather

lm = dspy.LM(f"openai/{MODEL}", api_base=V1, api_key=KEY)
dspy.configure(lm=lm)


def tool_loop() -> str:
    return dspy.ReAct("question -> answer", tools=[weather])(question=PROMPT).answer


def proofs() -> str:
    lm(PROMPT)
    return proof({"whole": lm.history[-1]["response"].provider_data["usage"]["headway"]["tier_served"]})


drive({"tool loop, as text": tool_loop, "proof": proofs})
