"""What the demo offers, from the measured speed of its engines: the tiers, the floor of `fast` and its price.

Pure functions and values. A light replica is to carry several streams, so that it is not one call's alone, each much
faster than those of a full replica. The floor, which is promised, is lower than the usual speed: on a machine that does
other things too, a speed measured within a minute is not the speed of every minute.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from math import sqrt

from headway.bench.calibrate import CurveCalibration
from headway.bench.fares import HIGHEST_SHARE, FrontierPoint, fare_table
from headway.core.curve import DEFAULT_MARGIN, Curve, fit
from headway.errors import SetupError
from headway.local.demo.speed import DemoSpeed
from headway.local.race.stage import Stage, callers_for

# Of a light replica. With more of them, more standard calls would ride along and be as fast.
LIGHT_STREAMS = 6
MIN_SPEEDUP = 1.1
ROUND_S = 15.0  # of a standard answer in the race, about
MIN_RACE_TOKENS, MAX_RACE_TOKENS = 24, 200
FRAME_S = 0.25  # drawing takes time from engines that share their cores


@dataclass(frozen=True, slots=True)
class DemoOffer:
    curve: Curve
    standard_tps: float  # of a stream of a full replica
    floor_tps: float
    target_tps: float
    light_seats: int
    price_multiple: float


def offer_for(points: list[FrontierPoint]) -> DemoOffer:
    curve = fit([(point.streams, 1 / point.nine_in_ten_tps) for point in points])
    seats, standard_tps = points[-1].streams, points[-1].nine_in_ten_tps
    highest_tps = HIGHEST_SHARE * max(point.nine_in_ten_tps for point in points)
    several_tps = curve.speed_tps(LIGHT_STREAMS) / (1 + DEFAULT_MARGIN)
    target_tps = int(10 * min(highest_tps, several_tps)) / 10
    if target_tps < MIN_SPEEDUP * standard_tps:
        raise SetupError(
            f"{LIGHT_STREAMS} streams are hardly faster than {seats}: there is no speed to sell here. Try more --seats."
        )
    [fare] = fare_table(points, cost_per_hour=0.0, floors_tps=[target_tps])
    floor_tps = round(sqrt(standard_tps * target_tps), 1)
    return DemoOffer(curve, standard_tps, floor_tps, target_tps, fare.streams, round(fare.multiple, 1))


def stage_for(offer: DemoOffer, model: str, seats: int, note: str) -> Stage:
    tokens = min(MAX_RACE_TOKENS, max(MIN_RACE_TOKENS, round(ROUND_S * offer.standard_tps)))
    callers = callers_for(seats, offer.light_seats)
    return Stage(
        model, seats, offer.curve, note, tokens, callers, call_tokens=(tokens // 2, 2 * tokens), frame_s=FRAME_S
    )


def config_text(
    offer: DemoOffer, speed: DemoSpeed, model: str, seats: int, engine_urls: list[str], port: int, admin_key_hash: str
) -> str:
    points = [(point.streams, point.nine_in_ten_tps) for point in speed.points]
    curve = CurveCalibration(points, speed.prompt_tps).config_lines()
    # A JSON string is also a TOML string.
    head = f"""\
        # Written by `headway demo` at each start. A running demo follows changes of this file.
        [gateway]
        host = "127.0.0.1"
        port = {port}
        admin_key_hashes = [{json.dumps(admin_key_hash)}]
        drain_timeout_s = 1.0

        [[models]]
        name = {json.dumps(model)}
        price = {{ input = 0.10, output = 0.40 }}  # an example: per million tokens, in any currency

        [[models.tiers]]
        name = "standard"  # {offer.standard_tps:.1f} tok/s on a full engine

        [[models.tiers]]
        name = "fast"
        floor_tps = {offer.floor_tps}  # promised to every stream
        target_tps = {offer.target_tps}  # usual: with up to {offer.light_seats} streams on an engine
        price_multiple = {offer.price_multiple}  # as `headway fares` quotes it

        [[models.tiers]]
        name = "flex"
        price_multiple = 0.5
        """
    replicas = [f"\n[[models.replicas]]\nurl = {json.dumps(url)}\nseats = {seats}\n{curve}" for url in engine_urls]
    return textwrap.dedent(head) + "".join(replicas)
