"""The planner's answers: the frontier of speed against cost, and the price multiple of a floor with its error band.

An offer is one way to serve: a number of chips and a number of streams. Its cost is in chip-seconds per token, so
multiples need no prices. Does not know tables or terminals. Assumes that every seat of an offer is taken.

Invariant: every answer has a band, which runs/plan-accuracy.sh computes for its kind of chip from models left out of
the fit. If nothing was measured, the band has no numbers and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core.curve import Curve, Point, fit
from headway.plan.memory import MAX_SEATS, seats, splits
from headway.plan.step import Setup, prompt_tps, seconds_per_token

BATCHES = sorted(
    {round(1.03**step) for step in range(300) if 1.03**step <= MAX_SEATS}
)  # every batch, then steps of 3 %
MTOK = 1e6


@dataclass(frozen=True, slots=True)
class Band:
    """The error of predicted seconds per token for models left out of the fit: in half of the cases, in nine of ten."""

    half: float | None
    nine_in_ten: float | None
    words: str


SEEN = Band(0.136, 0.361, "this chip has public measurements; the error is that of models left out of the fit")
UNSEEN = Band(0.144, 0.372, "from the data sheet only; the error is that of models and chips left out of the fit")
SRAM = Band(
    None,
    None,
    "no band: only single speeds of SRAM chips are public, and five of them are off by 0 to 59 %; costs rest on a "
    "guess of how many streams share a chip and on press reports of its price",
)
CPU = Band(None, None, "no band: one model on one machine; measure yours with `headway bench`")
CALIBRATED = Band(0.047, 0.09, "a measured curve: mean and largest error of held-out points")


@dataclass(frozen=True, slots=True)
class PricedFloor:
    chips: int
    batch: int
    stream_tps: float
    cost_s: float  # chip-seconds per token; replica-seconds for a measured curve

    def per_mtok(self, price_hour: float | None) -> float | None:
        return None if price_hour is None else self.cost_s / 3600 * price_hour * MTOK


@dataclass(frozen=True, slots=True)
class Quote:
    """The cheapest offer that keeps a floor, and its cost relative to standard, also at both ends of the band."""

    floor_tps: float
    offer: PricedFloor | None
    multiple: float | None
    lowest_multiple: float | None
    highest_multiple: float | None  # None if the floor cannot be kept at one end of the band


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """One replica for fleet planning. `core.curve.fit(points)` is its curve without prompts."""

    setup: Setup
    seats: int
    points: list[Point]
    prompt_tps: float
    price_hour: float | None


def band_of(setup: Setup) -> Band:
    if setup.chip.kind != "hbm":
        return SRAM if setup.chip.kind == "sram" else CPU
    return SEEN if setup.chip.is_measured and setup.chips <= 8 else UNSEEN


def planned_replica(setup: Setup) -> PlannedReplica:
    """Return a replica with points of decoding alone: the simulator adds the time of prompts from `prompt_tps`."""
    room = seats(setup)
    points = [(batch, seconds_per_token(setup, batch, with_prompts=False)) for batch in batches_up_to(room)]
    price = setup.chip.price_hour
    return PlannedReplica(setup, room, points, prompt_tps(setup), None if price is None else price * setup.chips)


def batches_up_to(room: int) -> list[int]:
    return sorted({*(batch for batch in BATCHES if batch <= room), *([room] if room else [])})


def offers_of(setup: Setup) -> list[PricedFloor]:
    """Return every number of chips that fits the model, with every batch that fits. Ignores `setup.chips`."""
    found = []
    for n in splits(setup):
        split = replace(setup, chips=n)
        for batch in batches_up_to(seats(split)):
            seconds = seconds_per_token(split, batch)
            found.append(PricedFloor(n, batch, 1.0 / seconds, seconds * n / batch))
    return found


def measured_offers(points: list[tuple[int, float]]) -> list[PricedFloor]:
    """Return the offers of one replica from points (streams, tok/s of each) of `headway bench`."""
    curve: Curve = fit([(batch, 1.0 / tps) for batch, tps in points])
    room = max(batch for batch, _ in points)
    return [PricedFloor(1, b, curve.speed_tps(b), curve.seconds_per_token(b) / b) for b in batches_up_to(room)]


def cheapest(offers: list[PricedFloor], floor_tps: float) -> PricedFloor | None:
    return min((one for one in offers if one.stream_tps >= floor_tps), key=lambda one: one.cost_s, default=None)


def quote(offers: list[PricedFloor], standard_tps: float, floor_tps: float, band: Band) -> Quote:
    """Quote a floor. The band of the multiple comes from scaling all steps by the band, which changes the offers."""
    off = band.nine_in_ten
    scales = (1.0,) if off is None else (1.0, 1.0 / (1.0 - off), 1.0 / (1.0 + off))
    multiples = [_multiple(offers, standard_tps * scale, floor_tps * scale) for scale in scales]
    known = [one for one in multiples if one is not None]
    lowest = min(known, default=None) if off is not None else None
    highest = max(known) if off is not None and len(known) == len(scales) else None
    return Quote(floor_tps, cheapest(offers, floor_tps), multiples[0], lowest, highest)


def _multiple(offers: list[PricedFloor], standard_tps: float, floor_tps: float) -> float | None:
    standard, fast = cheapest(offers, standard_tps), cheapest(offers, max(standard_tps, floor_tps))
    return None if standard is None or fast is None else fast.cost_s / standard.cost_s
