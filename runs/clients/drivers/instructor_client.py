"""instructor: an answer as an object, by a tool and by JSON."""

import instructor
from given import KEY, MODEL, PROMPT, V1, drive, proof
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    city: str
    degrees: int


def ask(mode: instructor.Mode) -> str:
    client = instructor.from_openai(OpenAI(base_url=V1, api_key=KEY), mode=mode)
    found = client.chat.completions.create(
        model=MODEL, response_model=City, messages=[{"role": "user", "content": PROMPT}]
    )
    return f"{found.city}: {found.degrees}"


def proofs() -> str:
    client = instructor.from_openai(OpenAI(base_url=V1, api_key=KEY), mode=instructor.Mode.JSON_SCHEMA)
    _found, completion = client.chat.completions.create_with_completion(
        model=MODEL, response_model=City, messages=[{"role": "user", "content": PROMPT}]
    )
    return proof({"whole": completion.usage.headway["tier_served"]})


drive(
    {
        "object by tool": lambda: ask(instructor.Mode.TOOLS),
        "parsed": lambda: ask(instructor.Mode.JSON_SCHEMA),
        "proof": proofs,
    }
)
