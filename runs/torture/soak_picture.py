"""The samples of the soak as a file, and the memory of its processes as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headway.charts import BLUE, ORANGE, write_picture
from runs.measure.growth import Trend
from runs.torture.soak_cell import PROCESSES, Sample


def write_results(samples: Sequence[Sample], found: Mapping[str, Trend], warm_up_min: float, folder: Path) -> None:
    (folder / "samples.json").write_bytes(msgspec.json.encode(samples))
    title = {
        "text": "Resident memory of the cell's processes under a steady load",
        "subtitle": "MiB over minutes, each on a scale of its own; the trend is of the time after the dashed line",
    }
    charts = [_chart(name, samples, found[name], warm_up_min) for name in PROCESSES]
    write_picture({"concat": charts, "columns": 2, "spacing": 24}, title, folder, "memory")


def _chart(name: str, samples: Sequence[Sample], found: Trend, warm_up_min: float) -> dict[str, object]:
    values = [{"minutes": one.minutes, "memory_mib": one.of[name].memory_mib} for one in samples]
    x = {"field": "minutes", "type": "quantitative", "title": None}
    y = {"field": "memory_mib", "type": "quantitative", "title": None, "scale": {"zero": False, "nice": True}}
    return {
        "width": 380,
        "height": 120,
        "title": {"text": f"{name}: {found} MiB", "anchor": "start", "fontSize": 12},
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "line", "color": BLUE}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "rule", "color": ORANGE, "strokeDash": [6, 4]},
                "encoding": {"x": {"datum": warm_up_min}},
            },
        ],
    }
