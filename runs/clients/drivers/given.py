"""What the Python drivers are given: the scenario, the prompt, where to call, and the tool of the loops.

A driver uses one client as its own documentation shows, with base URL, key and model, and prints the final answer.
"""

import os
import sys
from collections.abc import Callable

SCENARIO, PROMPT = sys.argv[1:3]
URL, KEY, MODEL = (os.environ[name] for name in ("HEADWAY_URL", "HEADWAY_KEY", "HEADWAY_MODEL"))
V1 = f"{URL}/v1"
DEGREES = {"Paris": 21, "Oslo": 12}
WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
asked: list[str] = []


def weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: Name of the city.
    """
    asked.append(city)
    return f"{DEGREES[city]} degrees"


def proof(tiers: dict[str, str]) -> str:
    """What the proof says, if it says the same in every place where the documentation shows it."""
    if set(tiers.values()) != {"standard"}:
        sys.exit(f"the proofs say {tiers}")
    return "proof: standard"


def drive(scenarios: dict[str, Callable[[], object]]) -> None:
    """Run the scenario. A loop must have called the tool for both cities, in this order."""
    answer = scenarios[SCENARIO]()
    if SCENARIO.startswith("tool loop") and asked != list(DEGREES):
        sys.exit(f"the tool was called for {asked}")
    print(answer)
