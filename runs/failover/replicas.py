"""Several scripted replicas in one process, which saves CPU. Each keeps a record of its own.

`python -m runs.failover.replicas MODEL SEATS FIRST_TOKEN_S STEP_MS PORT [PORT ...]`
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

import uvloop

from headway.engines.scripted import Script, parse_curve, running


async def serve(script: Script, ports: list[int]) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with AsyncExitStack() as stack:
        for port in ports:
            await stack.enter_async_context(running(script, port=port))
        await told.wait()


if __name__ == "__main__":
    model, seats, first_token_s, step_ms, *ports = sys.argv[1:]
    script = Script(model, float(first_token_s), parse_curve(step_ms), int(seats))
    uvloop.run(serve(script, [int(port) for port in ports]))
