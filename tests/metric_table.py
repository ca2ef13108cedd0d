"""The table of docs/reference/metrics.md, and what pages of metrics must have in common with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (\w+) \| .+ \|$", re.MULTILINE)
OF_ITSELF = {"le"}


@dataclass(frozen=True)
class Row:
    kind: str
    labels: frozenset[str]
    of: str


def table() -> dict[str, Row]:
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: Row(kind, frozenset(re.findall(r"`(\w+)`", labels)), of) for name, kind, labels, of in found}


def check_page(page: bytes, *of: Literal["gateway", "process", "policy", "merged"]) -> None:
    """Every metric of the page is in the table, with its kind and its labels, and those of the table are here that are
    counted by `of`."""
    written, served = table(), set[str]()
    for family in text_string_to_metric_families(page.decode()):
        if family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        served.add(name)
        assert name in written, f"{name} is not in docs/reference/metrics.md"
        assert written[name].kind == family.type, name
        for sample in family.samples:
            assert set(sample.labels) - OF_ITSELF == written[name].labels, sample
    assert {name for name, row in written.items() if row.of in of} <= served
