"""Several cells: which of them gets a call, and which may help one that has no room.

Each replica belongs to one cell, whose dispatcher counts its seats exactly. Of the other cells a relay knows only their
last summary, which may be out of date. If every cell chose the one with the most room, all would send their calls to
the same one until the next summary. The better of two random cells is nearly as good and spreads the calls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

from headway.core.machine import Machine
from headway.core.types import Tier

Room = dict[tuple[str, Tier], int]  # calls of each model and tier that could board now


class Cells:
    def __init__(self, shares: Sequence[float], seed: int) -> None:
        """`shares` are of the demand, for each cell."""
        self._cells = list(range(len(shares)))
        self._up_to = list(accumulate(shares))
        self._rooms: list[Room] = [{} for _ in shares]
        self._chance = random.Random(f"{seed} cells")

    def home(self) -> int:
        """The cell that gets the next call."""
        if len(self._cells) == 1:
            return 0
        return self._chance.choices(self._cells, cum_weights=self._up_to)[0]

    def roomier(self, home: int, model: str, tier: Tier) -> int | None:
        """Of two random cells other than `home`, the one that has more room; None if neither has any."""
        others = len(self._cells) - 1
        if not others:
            return None
        first, second = ((home + 1 + int(self._chance.random() * others)) % (others + 1) for _ in range(2))
        wanted = (model, tier)
        best = first if self._rooms[first].get(wanted, 0) >= self._rooms[second].get(wanted, 0) else second
        return best if self._rooms[best].get(wanted, 0) > 0 else None

    def tell(self, cell: int, machine: Machine | None, now: float) -> None:
        """The cell says how much room it has; it has none without a machine."""
        self._rooms[cell] = {}
        for pool in machine.pools.values() if machine is not None else ():
            for model, offer in pool.offers.items():
                for tier in offer.tiers:
                    self._rooms[cell][model, tier] = pool.room(model, tier, now)
