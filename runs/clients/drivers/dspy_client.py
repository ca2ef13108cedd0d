"""DSPy: its ReAct, which asks for tools in plain text."""

import dspy
from given import KEY, MODEL, PROMPT, V1, drive, weather

dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=V1, api_key=KEY))

drive({"tool loop, as text": lambda: dspy.ReAct("question -> answer", tools=[weather])(question=PROMPT).answer})
