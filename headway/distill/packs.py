"""Lays training rows into packs: rows that begin alike share their beginning, which is then read once for all of them.

Loaded by train.py, in the training Python; pure, and imports nothing of Headway. The calls of one application all begin
with the same tools: a row of 450 tokens, of which 390 are every row's, costs 100 in a pack of ten. In a pack every row
sees its beginning and itself, at the places it would have alone, so that nothing else changes.

    trunk   tokens that several rows begin with
    branch  what is a row's own: the rest of its prompt, and its answer
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

IGNORED = -100
WORTH_SHARING = 32  # tokens; a shorter beginning is rather read again
OPEN_PACKS = 32  # looked into for room, the newest first


@dataclass
class Row:
    begins: str  # rows with the same may share their beginning
    prompt: list[int]
    answer: list[int]
    top_ids: list[list[int]] = field(default_factory=list)  # for every token of the answer: the teacher's likeliest
    top_logps: list[list[float]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass
class Bundle:
    """Rows with one trunk: what must stay together."""

    trunk: list[int]
    rows: list[Row]

    @property
    def length(self) -> int:
        return len(self.trunk) + sum(row.length - len(self.trunk) for row in self.rows)


@dataclass
class Pack:
    """All lists but the last two have a place for every token; those have one for every token of an answer."""

    input_ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    trunk: list[int] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logps: list[list[float]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.input_ids)

    def add(self, bundle: Bundle) -> None:
        trunk = 1 + max(self.branch, default=0)
        shared = len(bundle.trunk)
        self._tokens(bundle.trunk, [IGNORED] * shared, 0, trunk, trunk)
        for number, row in enumerate(bundle.rows, trunk + 1):
            own = row.prompt[shared:]
            self._tokens(own + row.answer, [IGNORED] * len(own) + row.answer, shared, number, trunk)
            self.top_ids += row.top_ids
            self.top_logps += row.top_logps

    def _tokens(self, ids: list[int], labels: list[int], at: int, branch: int, trunk: int) -> None:
        self.input_ids += ids
        self.labels += labels
        self.positions += range(at, at + len(ids))
        self.branch += [branch] * len(ids)
        self.trunk += [trunk] * len(ids)


def lay(rows: Sequence[Row], limit: int, seed: int) -> list[Pack]:
    """Packs of at most `limit` tokens; a row that alone is longer has one of its own."""
    dice = random.Random(seed)
    bundles = [bundle for alike in _alike(rows) for bundle in _bundles(alike, limit, dice)]
    dice.shuffle(bundles)
    packs: list[Pack] = []
    for bundle in bundles:
        with_room = (pack for pack in packs[: -OPEN_PACKS - 1 : -1] if pack.length + bundle.length <= limit)
        pack = next(with_room, None)
        if pack is None:
            packs.append(pack := Pack())
        pack.add(bundle)
    return packs


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.begins].append(row)
    return list(groups.values())


def _bundles(rows: list[Row], limit: int, dice: random.Random) -> list[Bundle]:
    trunk = _common([row.prompt for row in rows]) if len(rows) > 1 else []
    if len(trunk) < WORTH_SHARING:
        return [Bundle([], [row]) for row in rows]
    dice.shuffle(rows)
    bundles: list[Bundle] = []
    for row in rows:
        if not bundles or bundles[-1].length + row.length - len(trunk) > limit:
            bundles.append(Bundle(trunk, []))
        bundles[-1].rows.append(row)
    return bundles


def _common(prompts: list[list[int]]) -> list[int]:
    """What all begin with: what the first and the last in order do."""
    first, last = min(prompts), max(prompts)
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first
