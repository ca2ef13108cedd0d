"""Decides which layers a student keeps, by their measured influence.

A layer's influence is how much it changes the hidden state: 1 − cos(h_in, h_out), averaged over tokens. The layer with
the least influence is dropped, and the others are measured again, because a layer matters more when its neighbour is
gone. The first and the last layer are kept: they translate from tokens and back.

Pure: the caller measures (cut.py does, in the training Python).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.errors import SetupError

Influences = Sequence[float]
Measure = Callable[[Sequence[int]], Influences]  # of the layers given, in their order


def choose_layers(measure: Measure, layers: int, keep: int, at_once: int = 1) -> list[int]:
    """The indices of the layers to keep. `at_once` layers are dropped per measurement: more is faster and coarser."""
    if not 2 <= keep < layers:
        raise SetupError(f"A model of {layers} layers can be cut to 2 to {layers - 1} layers, not to {keep}.")
    kept = list(range(layers))
    while len(kept) > keep:
        influences = measure(kept)
        if len(influences) != len(kept):
            raise ValueError(f"{len(influences)} influences for {len(kept)} layers")
        inner = sorted(range(1, len(kept) - 1), key=lambda place: influences[place])
        dropped = set(inner[: min(at_once, len(kept) - keep)])
        kept = [layer for place, layer in enumerate(kept) if place not in dropped]
    return kept
