"""Which replica is expected to have which prompt prefixes in its engine's cache.

An engine keeps what it has read of prompts until it needs the memory for others. So each replica's part of the index is
fed with the prompts of the calls that board there, and forgets as a cache of the replica's size would: what was not
used for the longest time first. An engine may forget earlier, or later: what is expected here decides how long a prompt
is thought to take and where a call goes, never how many seats there are.

Prefixes are known by their keys only (types.Call). Whoever holds a long prefix holds the shorter ones, so the longest
one that is held is found by bisection. A key remembers the last HOLDERS replicas that a call with it boarded, however
many hold it: a prefix that everybody holds costs no more to look up than another one.

Bounded by MAX_HELD keys of all replicas together, counted once for each replica that holds them. The keys of a replica
that is gone are taken out a few at a time, by later calls.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from headway.core.types import KEYED_TOKENS, Call

MAX_HELD = 1_000_000
# The memory of an engine that does not say how much it has, in tokens.
UNKNOWN_KV_TOKENS: Final = 100_000
HOLDERS: Final = 3  # remembered for each key
FORGOTTEN_AT_ONCE: Final = 256  # keys, at most; few, so that no call waits for it
NUMBER_BITS: Final = 20  # of a part's number; HOLDERS of them are one small integer
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
HOLDERS_MASK: Final = (1 << (NUMBER_BITS * HOLDERS)) - 1


class HeldPrefixes:
    """The part of one replica. Made by PrefixIndex.add."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.tokens = 0  # the sum of `held`
        # By key: the tokens beyond the next shorter prefix of the last call that had it. The least recently used is
        # first; of one call the longest.
        self.held: dict[int, int] = {}

    def cached_tokens(self, call: Call) -> int:
        """How many tokens of the call's prompt its engine is expected to have in its cache."""
        keys = call.prefix_keys
        if not keys or not self.held:
            return 0
        count = _longest_in(keys, self.held)
        return min(call.prefix_tokens[count - 1], call.prompt_tokens) if count else 0


class PrefixIndex:
    def __init__(self, max_held: int = MAX_HELD) -> None:
        # By replica, in the order in which they forget keys for others.
        self.parts: OrderedDict[str, HeldPrefixes] = OrderedDict()
        self.count = 0  # keys of all parts, and of those that are gone and not forgotten yet
        self._max_held = max_held
        self._by_number: dict[int, HeldPrefixes] = {}
        self._gone: list[HeldPrefixes] = []
        self._free_numbers: list[int] = []
        # By key: the numbers of the parts where it was used last, the last one in the lowest bits; numbers begin at 1.
        self._holders: dict[int, int] = {}

    def add(self, name: str) -> HeldPrefixes:
        """Begin the part of a replica that has none."""
        number = self._free_numbers.pop() if self._free_numbers else len(self._by_number) + len(self._gone) + 1
        part = self.parts[name] = self._by_number[number] = HeldPrefixes(name, number)
        return part

    def remove(self, name: str) -> None:
        """The replica is gone, or its engine has lost all."""
        part = self.parts.pop(name)
        del self._by_number[part.number]
        self._gone.append(part)
        self._forget_gone()

    def lose(self, name: str, keys: list[int]) -> None:
        """Its engine does not have these prefixes any more."""
        part = self.parts[name]
        for key in keys:
            if key in part.held:
                self._forget(part, key)

    def boarded(self, call: Call, name: str, kv_tokens: int, answer_tokens: int) -> None:
        """The engine reads the call's prompt, and then adds an answer of about this length. It has memory for
        `kv_tokens`; 0 means unknown."""
        self._forget_gone()
        part = self.parts[name]
        keys, tokens = call.prefix_keys, call.prefix_tokens
        added = answer_tokens
        for place in range(min(len(keys), len(tokens), len(KEYED_TOKENS)) - 1, -1, -1):
            added += tokens[place] - tokens[place - 1] if place else tokens[0]
            self._use(part, keys[place], added)
            added = 0
        budget = kv_tokens or UNKNOWN_KV_TOKENS
        while part.tokens > budget:
            self._forget_oldest(part)
        while self.count > self._max_held:
            if self._gone:
                self._forget_gone()
            else:
                self._forget_oldest(part if len(part.held) > self._share else self._next_to_forget())

    def holders(self, call: Call) -> list[HeldPrefixes]:
        """A few replicas that hold much of the prompt, the most first."""
        found: list[HeldPrefixes] = []
        keys = call.prefix_keys
        for place in range(_longest_in(keys, self._holders) - 1, -1, -1):
            numbers = self._holders.get(keys[place], 0)
            while numbers:
                part = self._by_number.get(numbers & NUMBER_MASK)
                if part is not None and part not in found:
                    found.append(part)
                numbers >>= NUMBER_BITS
            if len(found) >= HOLDERS:
                break
        return found

    def _use(self, part: HeldPrefixes, key: int, tokens: int) -> None:
        earlier = part.held.pop(key, -1)
        part.held[key] = tokens
        part.tokens += tokens - max(0, earlier)
        self.count += earlier < 0
        numbers = self._holders.get(key, 0)
        if numbers & NUMBER_MASK != part.number:
            others = _without(numbers, part.number)
            self._holders[key] = (others << NUMBER_BITS & HOLDERS_MASK) | part.number

    def _forget(self, part: HeldPrefixes, key: int) -> None:
        part.tokens -= part.held.pop(key)
        self.count -= 1
        numbers = _without(self._holders.get(key, 0), part.number)
        if numbers:
            self._holders[key] = numbers
        else:
            self._holders.pop(key, None)

    def _forget_oldest(self, part: HeldPrefixes) -> None:
        """Several at once: the beginning of a dict from which much was removed is slow to find."""
        for key in list(islice(part.held, min(FORGOTTEN_AT_ONCE, 1 + len(part.held) // 64))):
            self._forget(part, key)

    @property
    def _share(self) -> int:
        """The keys that each part may have if there are too many."""
        return self._max_held // max(1, len(self.parts))

    def _next_to_forget(self) -> HeldPrefixes:
        """The next part with more than its share, in turn. There is one if there are too many keys."""
        share = self._share
        while True:
            name = next(iter(self.parts))
            self.parts.move_to_end(name)
            if len(self.parts[name].held) > share:
                return self.parts[name]

    def _forget_gone(self) -> None:
        """Forget some keys of the parts that are gone."""
        if self._gone:
            self._forget_oldest(self._gone[-1])
            if not self._gone[-1].held:
                self._free_numbers.append(self._gone.pop().number)

    def check(self) -> None:
        """Raise AssertionError if the counts are wrong or more is remembered than is held."""
        parts = [*self.parts.values(), *self._gone]
        assert self.count == sum(len(part.held) for part in parts) <= self._max_held, "prefixes are miscounted"
        for part in self.parts.values():
            assert part.tokens == sum(part.held.values()), f"{part.name} miscounts the tokens of its prefixes"
        by_number = {part.number: part for part in parts}
        assert len(by_number) == len(parts), "two replicas have one number"
        for key, numbers in self._holders.items():
            while numbers:
                assert key in by_number[numbers & NUMBER_MASK].held, "a prefix is remembered where nobody holds it"
                numbers >>= NUMBER_BITS


def _longest_in(keys: tuple[int, ...], held: dict[int, int]) -> int:
    """How many of the keys are held, if each that is held holds the shorter ones."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low


def _without(numbers: int, number: int) -> int:
    """The packed numbers without this one."""
    kept = shift = 0
    while numbers:
        one = numbers & NUMBER_MASK
        if one != number:
            kept |= one << shift
            shift += NUMBER_BITS
        numbers >>= NUMBER_BITS
    return kept
