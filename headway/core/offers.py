"""What the offers of a pool promise together, and what stays of offers that were withdrawn."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from headway.core.types import EXPRESS, Offer, Tier, TierPolicy


def loosest_floors(offers: dict[str, Offer]) -> dict[Tier, float]:
    """The lowest floor that any offer promises, by tier."""
    return {tier: min(one.floor_tps for one in tiers) for tier, tiers in _express_tiers(offers).items() if tiers}


def targets_of(offers: dict[str, Offer]) -> dict[float, float]:
    """The target of each floor; 0 if there is none. Of equal floors the highest target stays, which comes last."""
    return dict(sorted((one.floor_tps, one.target_tps) for tiers in _express_tiers(offers).values() for one in tiers))


def adapters_of(offers: dict[str, Offer]) -> set[str]:
    """The models that are served from the pool of another one."""
    return {model for model, offer in offers.items() if model != offer.pool}


def with_withdrawn(
    offers: dict[str, Offer], before: dict[str, Offer], in_use: Set[tuple[str, Tier]]
) -> dict[str, Offer]:
    """The offers, and those before that are withdrawn and still in use by calls. `in_use` has models and tiers."""
    all_offers = dict(offers)
    for model, tier in in_use:
        if model not in offers:
            all_offers[model] = before[model]
        elif tier not in offers[model].tiers:
            offer = all_offers[model]
            all_offers[model] = replace(offer, tiers=offer.tiers | {tier: before[model].tiers[tier]})
    return all_offers


def _express_tiers(offers: dict[str, Offer]) -> dict[Tier, list[TierPolicy]]:
    return {tier: [one.tiers[tier] for one in offers.values() if tier in one.tiers] for tier in EXPRESS}
