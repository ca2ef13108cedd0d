"""Where a call goes that finds no room at its gateway: to one of two siblings that were drawn, the roomier one.

Each replica belongs to one gateway, which counts its seats exactly; of the others a gateway knows what they last said.
Such summaries are old when they are read. Were the roomiest of all taken, every gateway would send its calls to the
same one until the next summary; of two that are drawn the better one is nearly as good and spreads them. Knows neither
chance nor time: who draws, and how old a summary is, is the driver's business.
"""

from __future__ import annotations

from headway.core.types import Tier

Room = dict[Tier, int]  # calls of each tier that would board at once


def roomier(tier: Tier, first: int, second: int, summaries: list[Room]) -> int | None:
    """The one of the two drawn with more room for the tier; None if neither has any: then the call waits at home."""
    best = first if summaries[first].get(tier, 0) >= summaries[second].get(tier, 0) else second
    return best if summaries[best].get(tier, 0) > 0 else None
