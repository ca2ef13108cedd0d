"""Converts the tables of a model to the values that core and billing work with: policy, replicas, prices.

The gateway and the simulator both start from these values, so this module imports nothing that serves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from headway.config import Config, EngineSettings, ModelTable, TokenPrices
from headway.core.curve import Curve, fit
from headway.core.rate_limit import TokenLimit
from headway.core.types import ModelPolicy, Replica, Tier, TierPolicy
from headway.price import MICRO, MILLI, HostedPrice, Price


def prices_of(model: ModelTable) -> dict[Tier, Price]:
    """The price of each tier. Without a price multiple a tier costs as much as standard."""
    standard = price_of(model.price or TokenPrices(input=0.0, output=0.0))
    return {
        tier.name: replace(standard, multiple_milli=round((tier.price_multiple or 1.0) * MILLI)) for tier in model.tiers
    }


def price_of(per_mtok: TokenPrices) -> Price:
    cached = round(per_mtok.cached_input * MICRO) if per_mtok.cached_input is not None else None
    return Price(round(per_mtok.input * MICRO), round(per_mtok.output * MICRO), MILLI, cached)


def prices_in(config: Config) -> dict[str, dict[Tier, Price]]:
    """By model."""
    return {model.name: prices_of(model) for model in config.models}


def hosted_prices_in(config: Config) -> dict[str, HostedPrice]:
    """By model."""
    hosted = [(model.name, model.hosted) for model in config.models if model.hosted is not None]
    return {name: HostedPrice(one.url, one.host, price_of(one.price)) for name, one in hosted}


def overflow_of(model: ModelTable) -> str:
    """The name of the model's overflow pool; empty if it has none."""
    return f"{model.name} (hosted)" if model.hosted is not None else ""


def policy_of(model: ModelTable) -> ModelPolicy:
    """The model's policy, with the tiers in the order in which held calls board: the fastest first, flex last."""
    tiers = {
        tier.name: TierPolicy(
            tier.max_held,
            tier.max_hold_s,
            tier.floor_tps or 0.0,
            TokenLimit(tier.input_tokens_per_minute or 0, tier.output_tokens_per_minute or 0),
            tier.target_tps or 0.0,
            model.hosted.after_s if model.hosted is not None and tier.name in model.hosted.tiers else None,
        )
        for tier in model.tiers
    }
    in_order = {name: tiers[name] for name in get_args(Tier) if name in tiers}
    return ModelPolicy(
        in_order,
        standard_share=model.standard_share,
        kept_target=model.kept_target,
        moves_streams=model.moves_streams,
    )


def replica_of(model: ModelTable, settings: EngineSettings, name: str) -> Replica:
    return Replica(name, model.name, settings.seats, curve_of(settings), settings.prompt_tps or 0.0)


def curve_of(replica: EngineSettings) -> Curve | None:
    """The curve through the replica's points; None if it has none. Those with a third number have long contexts."""
    if not replica.curve:
        return None
    points = [(row[0], 1.0 / row[1]) for row in replica.curve if len(row) == 2]
    return fit(points, [(row[0], 1.0 / row[1], row[2]) for row in replica.curve if len(row) == 3])
