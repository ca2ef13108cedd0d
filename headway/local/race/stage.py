"""What the race runs on: two scripted replicas, the gateway's configuration, and the other callers.

The speed curve is programmed, and made up. Its shape is that of real engines: the more streams share a step, the longer
it takes, while all of them together get more tokens.
"""

from __future__ import annotations

import random

from headway.config import Config
from headway.core.curve import Curve
from headway.core.types import Tier
from headway.engines.scripted import Script

MODEL = "scripted-demo"
REPLICAS = 2
SEATS = 32
CURVE = Curve(a=0.0098, c=0.00088, d=0.0)  # 94 tok/s for a stream alone, 66 among 6, 26 among 32
FLOOR_TPS = 60.0
LIGHT_SEATS = CURVE.largest_batch(FLOOR_TPS, SEATS)
# As `headway fares` quotes it: a replica costs the same full or light, so a token costs as much more as fewer are made.
PRICE_MULTIPLE = round(SEATS * CURVE.speed_tps(SEATS) / (LIGHT_SEATS * CURVE.speed_tps(LIGHT_SEATS)), 1)

PROMPT = "Tell me a story about a train."
RACE_TOKENS = 110
# The other callers. More standard ones than there are heavy seats, so that some always wait. Fast ones for half of the
# light seats, so that the race finds one even if a busy machine makes the engines slower than programmed. They come
# first: a replica that is full would have to empty before it is light.
CALLERS: dict[Tier, int] = {"fast": LIGHT_SEATS // 2, "standard": SEATS + 3}
CALL_TOKENS = (40, 160)  # of their answers, from and to


def script() -> Script:
    """The engine's step times are the curve's, at every batch."""
    step_s = tuple((batch, CURVE.seconds_per_token(batch)) for batch in range(1, SEATS + 1))
    return Script(MODEL, step_s=step_s, max_num_seqs=SEATS)


def config(engine_urls: list[str], port: int) -> Config:
    points = [[batch, CURVE.speed_tps(batch)] for batch in (1, LIGHT_SEATS, SEATS)]
    return Config.model_validate(
        {
            "gateway": {"port": port, "probe_interval_s": 0.2, "drain_timeout_s": 1.0},
            "models": [
                {
                    "name": MODEL,
                    "tiers": [
                        {"name": "standard", "price_multiple": 1.0},
                        {"name": "fast", "floor_tps": FLOOR_TPS, "price_multiple": PRICE_MULTIPLE},
                    ],
                    "replicas": [{"url": url, "seats": SEATS, "curve": points} for url in engine_urls],
                }
            ],
        }
    )


def call_lengths(caller: int) -> list[int]:
    """The lengths of a caller's answers. The first is any, or all callers would leave their seats at the same time."""
    chance = random.Random(caller)
    return [chance.randint(1, CALL_TOKENS[1]), *(chance.randint(*CALL_TOKENS) for _ in range(100))]
