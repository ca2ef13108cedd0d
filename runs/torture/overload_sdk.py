"""Callers of runs/overload.sh that are the unchanged OpenAI SDK, in a process of their own.

`python -m runs.torture.overload_sdk PORT SEED PER_S FOR_S` reads from its input when to start, on the machine's
monotonic clock, makes calls by Poisson arrivals, each with the SDK's own retries, and prints what became of them.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import openai
import uvloop

from runs.torture.overload_callers import Arrival, Made, arrivals
from runs.torture.overload_cell import MODEL, TENANTS, secret_of

PHASE = "retry storm"


async def call(client: openai.AsyncOpenAI, arrival: Arrival, due_s: float) -> Made:
    made = Made(PHASE, "sdk", arrival.tenant, arrival.tier, arrival.tokens, due_s, due_s, sent_s=time.monotonic())
    try:
        async with await client.completions.create(
            model=MODEL,
            prompt="Tell me a story.",
            max_tokens=arrival.tokens,
            stream=True,
            extra_body={"service_tier": "fast"} if arrival.tier == "fast" else None,
        ) as stream:
            made.how, made.call_id = "cut", stream.response.headers.get("x-request-id", "")
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].text:
                    made.last_s = time.monotonic()
                    made.first_s = made.first_s or made.last_s
                    made.received += 1
        made.how = "complete"
    except openai.APIStatusError as error:
        made.words = f"{error.status_code} {error.code}"
        made.how = "refused" if error.code and error.status_code in (429, 503) else "no answer"
        made.retry_after = error.response.headers.get("retry-after", "")
        made.call_id = error.response.headers.get("x-request-id", "")
    except openai.APIError as error:
        made.words = repr(error)
    made.ended_s = time.monotonic()
    return made


async def run(port: int, seed: str, start_s: float, per_s: float, for_s: float) -> list[Made]:
    url = f"http://127.0.0.1:{port}/v1"
    clients = {one: openai.AsyncOpenAI(base_url=url, api_key=secret_of(one), max_retries=2) for one in TENANTS}
    calls = []
    for arrival in arrivals(seed, per_s, for_s):
        due_s = start_s + arrival.at_s
        await asyncio.sleep(due_s - time.monotonic())
        calls.append(asyncio.create_task(call(clients[arrival.tenant], arrival, due_s)))
    return await asyncio.gather(*calls)


if __name__ == "__main__":
    asked_port, asked_seed, *asked = sys.argv[1:]
    start_s = float(sys.stdin.readline())  # the SDK has been imported by now
    ended = uvloop.run(run(int(asked_port), asked_seed, start_s, *map(float, asked)))
    sys.stdout.buffer.write(msgspec.json.encode(ended))
