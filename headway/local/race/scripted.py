"""`headway demo --scripted`: the race on two scripted replicas.

The speed curve is programmed, and made up. Its shape is that of real engines: the more streams share a step, the longer
it takes, while all of them together get more tokens. Engines and gateway run in this process, so its end leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import uvloop
from rich.console import Console

from headway.config import Config
from headway.core.curve import Curve
from headway.engines.scripted import Script, running
from headway.local.engine_process import require_free_port
from headway.local.race.loop import OpenGateway, Screen, race_on, screen_for
from headway.local.race.stage import Stage, callers_for
from headway.local.race.state import Race

REPLICAS = 2
SEATS = 32
CURVE = Curve(a=0.0098, c=0.00088, d=0.0)  # 94 tok/s for a stream alone, 66 among 6, 26 among 32
FLOOR_TPS = 60.0
LIGHT_SEATS = CURVE.largest_batch(FLOOR_TPS, SEATS)
# As `headway fares` quotes it: a replica costs the same full or light, so a token costs as much more as fewer are made.
PRICE_MULTIPLE = round(SEATS * CURVE.speed_tps(SEATS) / (LIGHT_SEATS * CURVE.speed_tps(LIGHT_SEATS)), 1)
ROUNDS_UNWATCHED = 3  # where the output is not a terminal and no number is given

STAGE = Stage(
    model="scripted-demo",
    seats=SEATS,
    curve=CURVE,
    note="Scripted engines: programmed speed, no model. The gateway in front is real.",
    race_tokens=110,
    callers=callers_for(SEATS, LIGHT_SEATS),
    call_tokens=(40, 160),
)


def run_scripted(console: Console, open_gateway: OpenGateway, *, port: int, rounds: int | None) -> int:
    """Race until Ctrl-C, or for so many rounds. Returns the exit code: 0 unless a round has no result."""
    if port:
        require_free_port(port, "--port")
    if not console.is_terminal and rounds is None:
        rounds = ROUNDS_UNWATCHED
    is_complete = True
    try:
        race = uvloop.run(race_scripted(screen_for(console, STAGE), open_gateway, port=port, rounds=rounds))
        is_complete = len(race.results) == race.round
    except (KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C, SIGTERM: the usual end
        pass
    console.print("Engines and gateway have stopped.", highlight=False)
    return 0 if is_complete else 1


async def race_scripted(screen: Screen, open_gateway: OpenGateway, *, port: int, rounds: int | None) -> Race:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(script())) for _ in range(REPLICAS)]
        urls = [engine.url for engine in engines]
        gateway, port = await stack.enter_async_context(open_gateway(config(urls, port)))
        return await race_on(STAGE, gateway, port, urls, screen, rounds)


def script() -> Script:
    """The engine's step times are the curve's, at every batch."""
    step_s = tuple((batch, CURVE.seconds_per_token(batch)) for batch in range(1, SEATS + 1))
    return Script(STAGE.model, step_s=step_s, max_num_seqs=SEATS)


def config(engine_urls: list[str], port: int) -> Config:
    points = [[batch, CURVE.speed_tps(batch)] for batch in (1, LIGHT_SEATS, SEATS)]
    return Config.model_validate(
        {
            "gateway": {"port": port, "probe_interval_s": 0.2, "drain_timeout_s": 1.0},
            "models": [
                {
                    "name": STAGE.model,
                    "tiers": [
                        {"name": "standard", "price_multiple": 1.0},
                        {"name": "fast", "floor_tps": FLOOR_TPS, "price_multiple": PRICE_MULTIPLE},
                    ],
                    "replicas": [{"url": url, "seats": SEATS, "curve": points} for url in engine_urls],
                }
            ],
        }
    )
