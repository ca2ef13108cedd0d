"""Packs training rows into sequences in which rows with a common prefix share it, so that it is computed once.

The calls of one application all begin with the same tools: a row of 450 tokens, of which 390 are shared, costs 100 in a
pack of ten. Every row attends to its prefix and to itself only, at the positions it would have alone, so packing does
not change the result. Loaded by train.py in the training Python; pure, and imports nothing of Headway.

    trunk   the tokens that several rows begin with
    branch  the rest of one row: of its prompt, and its answer
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

IGNORED = -100
MIN_SHARED_TOKENS = 32  # a shorter prefix is not worth sharing
OPEN_PACKS = 32  # the newest packs are searched for room


@dataclass
class Row:
    prefix_key: str  # rows with the same key may share a prefix
    prompt: list[int]
    answer: list[int]
    top_ids: list[list[int]] = field(default_factory=list)  # the teacher's likeliest tokens at each token of the answer
    top_logps: list[list[float]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass
class Bundle:
    """Rows with a common trunk, which must be in the same pack."""

    trunk: list[int]
    rows: list[Row]

    @property
    def length(self) -> int:
        return len(self.trunk) + sum(row.length - len(self.trunk) for row in self.rows)


@dataclass
class Pack:
    """All lists have one item per token, except `top_ids` and `top_logps`: these have one per token of an answer."""

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
        self._append(bundle.trunk, [IGNORED] * shared, 0, trunk, trunk)
        for number, row in enumerate(bundle.rows, trunk + 1):
            own = row.prompt[shared:]
            self._append(own + row.answer, [IGNORED] * len(own) + row.answer, shared, number, trunk)
            self.top_ids += row.top_ids
            self.top_logps += row.top_logps

    def _append(self, ids: list[int], labels: list[int], position: int, branch: int, trunk: int) -> None:
        self.input_ids += ids
        self.labels += labels
        self.positions += range(position, position + len(ids))
        self.branch += [branch] * len(ids)
        self.trunk += [trunk] * len(ids)


def pack_rows(rows: Sequence[Row], limit: int, seed: int) -> list[Pack]:
    """Packs of at most `limit` tokens. A row that is longer than that gets its own pack."""
    dice = random.Random(seed)
    bundles = [bundle for group in _by_prefix_key(rows) for bundle in _bundles(group, limit, dice)]
    dice.shuffle(bundles)
    packs: list[Pack] = []
    for bundle in bundles:
        with_room = (pack for pack in packs[: -OPEN_PACKS - 1 : -1] if pack.length + bundle.length <= limit)
        pack = next(with_room, None)
        if pack is None:
            packs.append(pack := Pack())
        pack.add(bundle)
    return packs


def _by_prefix_key(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.prefix_key].append(row)
    return list(groups.values())


def _bundles(rows: list[Row], limit: int, dice: random.Random) -> list[Bundle]:
    trunk = _common_prefix([row.prompt for row in rows]) if len(rows) > 1 else []
    if len(trunk) < MIN_SHARED_TOKENS:
        return [Bundle([], [row]) for row in rows]
    dice.shuffle(rows)
    bundles: list[Bundle] = []
    for row in rows:
        if not bundles or bundles[-1].length + row.length - len(trunk) > limit:
            bundles.append(Bundle(trunk, []))
        bundles[-1].rows.append(row)
    return bundles


def _common_prefix(prompts: list[list[int]]) -> list[int]:
    """The prefix that the smallest and the largest prompt share; in lexicographic order, all others share it too."""
    first, last = min(prompts), max(prompts)
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first
