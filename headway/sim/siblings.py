"""A call that finds no room at its gateway goes to the one of two random siblings that has more room.

Each replica belongs to one gateway, which counts its seats exactly. Of the other gateways it knows only their last
summary, which may be out of date. If every gateway chose the sibling with the most room, all would send their calls to
the same one until the next summary. The better of two random siblings is nearly as good and spreads the calls. The
caller chooses the two and decides how old a summary may be.
"""

from __future__ import annotations

from headway.core.types import Tier

Room = dict[Tier, int]  # calls of each tier that could board now


def roomier(tier: Tier, first: int, second: int, summaries: list[Room]) -> int | None:
    """Return the sibling with more room for the tier; None if neither has any."""
    best = first if summaries[first].get(tier, 0) >= summaries[second].get(tier, 0) else second
    return best if summaries[best].get(tier, 0) > 0 else None
