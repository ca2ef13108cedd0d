"""Which layers a student keeps: measured, not guessed.

A layer's influence is how much it turns what passes through it: 1 − cos(h_in, h_out), averaged over tokens. The one
with the least is dropped, and the others are measured again, since a layer matters more when its neighbour is gone. The
first and the last are kept: they translate from tokens and back.

Pure: the measuring is the caller's (cut.py does it where torch is).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.errors import SetupError

Influences = Sequence[float]
Measure = Callable[[Sequence[int]], Influences]  # of the layers that are left, in their order


def choose_layers(measure: Measure, layers: int, keep: int, at_once: int = 1) -> list[int]:
    """The numbers of the layers to keep. `at_once` are dropped between two measurements: more is quicker, coarser."""
    if not 2 <= keep < layers:
        raise SetupError(f"A model of {layers} layers can be cut to 2 up to {layers - 1} of them, not to {keep}.")
    kept = list(range(layers))
    while len(kept) > keep:
        influences = measure(kept)
        if len(influences) != len(kept):
            raise ValueError(f"{len(influences)} influences for {len(kept)} layers")
        inner = sorted(range(1, len(kept) - 1), key=lambda place: influences[place])
        dropped = set(inner[: min(at_once, len(kept) - keep)])
        kept = [layer for place, layer in enumerate(kept) if place not in dropped]
    return kept
