"""The fare table: what each floor costs, from a measured frontier and the hourly cost of a replica.

A replica costs the same whether it is full or light, so a token costs more on a light replica, which makes fewer:

    multiple (floor) = tokens per second of the full replica ÷ those at the largest batch that keeps the floor

Near the highest speed the multiple explodes and depends on a few streams, so no fare is quoted above a share of it.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from headway.core.curve import DEFAULT_MARGIN, Curve, fit
from headway.errors import SetupError

HIGHEST_SHARE = 0.8  # of the highest speed measured; no fare is quoted above it unless forced
SUGGESTED_FLOORS = 4
MTOK = 1_000_000


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The results of a sweep at one number of streams."""

    streams: int
    nine_in_ten_tps: float  # reached by nine streams in ten; floors are based on it
    median_tps: list[float]  # of the median stream in each repeat; throughput is based on it


@dataclass(frozen=True, slots=True)
class Fare:
    floor_tps: float
    streams: int  # the largest batch that keeps the floor
    stream_tps: float  # of the median stream at that batch
    replica_tps: float  # of all streams together
    multiple: float
    lowest_multiple: float  # of the repeats
    highest_multiple: float
    cost_per_mtok: float


def read_frontier(path: Path) -> list[FrontierPoint]:
    """Read the points of a `bench.json`, up to the batch with the highest throughput."""
    try:
        rows = json.loads(path.read_text())
        points = [FrontierPoint(r["conc"], r["nine_in_ten_intvty"], r["median_intvty_by_repeat"]) for r in rows]
        best = max(rows, key=lambda row: row["output_tput_per_gpu"])["conc"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{path} is not a valid sweep ({error}): create one with `headway bench URL`.") from error
    points = sorted((point for point in points if point.streams <= best), key=lambda point: point.streams)
    if len(points) < 3:
        raise SetupError(f"{path} has {len(points)} point(s) up to saturation, and a fare needs three: measure more.")
    return points


def fare_table(
    points: list[FrontierPoint], *, cost_per_hour: float, floors_tps: list[float], force: bool = False
) -> list[Fare]:
    """Return a fare for each floor. The lowest and highest multiple are those of the repeats."""
    seats = points[-1].streams
    slow = fit([(point.streams, 1 / point.nine_in_ten_tps) for point in points])
    repeats = [
        fit([(point.streams, 1 / point.median_tps[number]) for point in points])
        for number in range(min(len(point.median_tps) for point in points))
    ]
    highest_tps = max(point.nine_in_ten_tps for point in points)
    fares = []
    for floor_tps in sorted(floors_tps):
        if floor_tps > HIGHEST_SHARE * highest_tps and not force:
            raise SetupError(
                f"A floor of {floor_tps:g} tok/s is above {HIGHEST_SHARE:g} of the highest speed measured "
                f"({highest_tps:.1f}): prices explode there and rest on few streams. Choose a lower floor, or --force."
            )
        streams = slow.largest_batch(floor_tps, seats, DEFAULT_MARGIN)
        if not streams:
            raise SetupError(f"No batch keeps a floor of {floor_tps:g} tok/s with its margin: choose a lower floor.")
        fares.append(_fare(floor_tps, streams, seats, repeats, cost_per_hour))
    return fares


def _fare(floor_tps: float, streams: int, seats: int, repeats: list[Curve], cost_per_hour: float) -> Fare:
    multiples = [seats * curve.speed_tps(seats) / (streams * curve.speed_tps(streams)) for curve in repeats]
    stream_tps = statistics.median(curve.speed_tps(streams) for curve in repeats)
    return Fare(
        floor_tps,
        streams,
        stream_tps,
        streams * stream_tps,
        statistics.median(multiples),
        min(multiples),
        max(multiples),
        cost_per_hour * MTOK / (3600 * streams * stream_tps),
    )


def write_tiers(path: Path, model: str, tiers: dict[str, Fare]) -> None:
    """Write the floors and multiples into a model's tiers in headway.toml. Everything else stays as it is."""
    document = tomlkit.parse(path.read_text())
    tables = [table for table in document.get("models", []) if table.get("name") == model]
    if not tables:
        raise SetupError(f"{path} has no model {model!r}: use a model of that file.")
    if "tiers" not in tables[0]:
        tables[0]["tiers"] = tomlkit.aot()
        tables[0]["tiers"].append(tomlkit.item({"name": "standard"}))
    offered = tables[0]["tiers"]
    for name, fare in tiers.items():
        if not any(tier.get("name") == name for tier in offered):
            offered.append(tomlkit.item({"name": name}))
        tier = next(tier for tier in offered if tier.get("name") == name)
        tier["floor_tps"] = fare.floor_tps
        tier["price_multiple"] = round(fare.multiple, 2)
    path.write_text(tomlkit.dumps(document))


def suggested_floors(points: list[FrontierPoint]) -> list[float]:
    """Return floors between the speed of the full replica and the highest quoted speed, in equal ratios."""
    full_tps = points[-1].nine_in_ten_tps
    highest_tps = HIGHEST_SHARE * max(point.nine_in_ten_tps for point in points)
    if highest_tps <= full_tps:
        raise SetupError("A stream is hardly faster alone than in a full batch: there is no speed to sell here.")
    steps = [(highest_tps / full_tps) ** (step / SUGGESTED_FLOORS) for step in range(1, SUGGESTED_FLOORS + 1)]
    return [int(full_tps * step * 10) / 10 for step in steps]
