"""The prefix cache of a replica in virtual time: blocks of prompts, of which those that were not used for the longest
time are forgotten first.

This is what an engine does, to the block; core/prefix_index.py only estimates it from what it sent where. Answers and
running streams take no room here.
"""

from __future__ import annotations

from itertools import takewhile

BLOCK_TOKENS = 512  # of the blocks that traces name


class SimCache:
    def __init__(self, tokens: int) -> None:
        self._most = tokens // BLOCK_TOKENS
        self._blocks: dict[int, None] = {}  # the least recently used is first

    def read(self, blocks: tuple[int, ...], prompt_tokens: int) -> int:
        """The prompt is read. Returns how many of its tokens were found; at least one is always computed."""
        held = self._blocks
        found = sum(1 for _ in takewhile(held.__contains__, blocks))
        for block in reversed(blocks):  # the end of a prompt is forgotten before its beginning
            held.pop(block, None)
            held[block] = None
        while len(held) > self._most:
            del held[next(iter(held))]
        return min(found * BLOCK_TOKENS, max(0, prompt_tokens - 1))
