"""Which replica is expected to have which prompt prefixes in its engine's cache.

An engine keeps what it has read of prompts until it needs the memory for others. So each replica's part of the index is
fed with the prompts of the calls that board there, and forgets as a cache of the replica's size would: what was not
used for the longest time first. An engine may forget earlier, or later: what is expected here decides how long a prompt
is thought to take and where a call goes, never how many seats there are.

Prefixes are known by their keys only (types.Call). Whoever holds a long prefix holds the shorter ones, so the longest
one that is held is found by bisection. A key remembers the last HOLDERS replicas that got it, however many hold it: a
prefix that everybody holds costs no more to look up than another one.

Bounded by MAX_HELD keys of all replicas together, counted once for each replica that holds them. The keys of a replica
that is gone are taken out a few at a time, by later calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from headway.core.types import KEYED_TOKENS, Call

MAX_HELD = 1_000_000
# The memory of an engine that does not say how much it has, in tokens.
UNKNOWN_KV_TOKENS: Final = 100_000
HOLDERS: Final = 3  # remembered for each key
NO_KEY: Final = -1
FORGOTTEN_AT_ONCE: Final = 256  # keys, at most; few, so that no call waits for it
NUMBER_BITS: Final = 20  # of a part's number; HOLDERS of them are one small integer
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
HOLDERS_MASK: Final = (1 << (NUMBER_BITS * HOLDERS)) - 1


class HeldPrefix:
    """One key in the part of a replica."""

    def __init__(self, before: int, tokens: int) -> None:
        self.before = before  # the key of the next shorter prefix of the same prompt
        self.tokens = tokens  # beyond that one
        self.longer = 0  # how many keys have this one before them


class HeldPrefixes:
    """The part of one replica. Made by PrefixIndex.add."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.tokens = 0  # of all that is held
        self.held: dict[int, HeldPrefix] = {}
        # The keys that no other one continues, the least recently used first. Only these are forgotten: so a call need
        # not touch all its keys, and whoever holds a long prefix holds the shorter ones.
        self.ends: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, call: Call) -> int:
        """How many tokens of the call's prompt its engine is expected to have in its cache."""
        keys = call.prefix_keys
        if not keys or not self.held:
            return 0
        count = longest_in(keys, self.held)
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
        # By key: the numbers of the parts that got it last, the last one in the lowest bits; numbers begin at 1.
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
        count = min(len(call.prefix_keys), len(call.prefix_tokens), len(KEYED_TOKENS))
        if count:
            self._use(part, call.prefix_keys[:count], call.prefix_tokens, answer_tokens)
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
        keys, place = call.prefix_keys, longest_in(call.prefix_keys, self._holders) - 1
        least = call.prefix_tokens[place] // 2 if place >= 0 else 0  # whoever holds less than half of it saves little
        while place >= 0 and call.prefix_tokens[place] >= least and len(found) < HOLDERS:
            numbers = self._holders.get(keys[place], 0)
            while numbers:
                part = self._by_number.get(numbers & NUMBER_MASK)
                if part is not None and part not in found:
                    found.append(part)
                numbers >>= NUMBER_BITS
            place -= 1
        return found

    def _use(self, part: HeldPrefixes, keys: tuple[int, ...], lengths: tuple[int, ...], answer_tokens: int) -> None:
        place = longest_in(keys, part.held)
        if place:
            # An answer that was added here before is part of this prompt now, or not of this conversation.
            self._resize(part, part.held[keys[place - 1]], _between(lengths, place - 1))
        while place < len(keys):
            if keys[place] not in part.held:
                self._hold(part, keys[place], keys[place - 1] if place else NO_KEY, _between(lengths, place))
            place += 1
        last = part.held[keys[-1]]
        if not last.longer:
            self._resize(part, last, last.tokens + answer_tokens)
            part.ends[keys[-1]] = None
            part.ends.move_to_end(keys[-1])
        self._name(part, keys[-1])

    def _hold(self, part: HeldPrefixes, key: int, before: int, tokens: int) -> None:
        part.held[key] = HeldPrefix(before, tokens)
        part.tokens += tokens
        self.count += 1
        if (shorter := part.held.get(before)) is not None:
            shorter.longer += 1
            part.ends.pop(before, None)
        part.ends[key] = None
        self._name(part, key)

    def _resize(self, part: HeldPrefixes, held: HeldPrefix, tokens: int) -> None:
        part.tokens += tokens - held.tokens
        held.tokens = tokens

    def _name(self, part: HeldPrefixes, key: int) -> None:
        """Remember the part as the last one that got the key."""
        numbers = self._holders.get(key, 0)
        if numbers & NUMBER_MASK != part.number:
            others = _without(numbers, part.number)
            self._holders[key] = (others << NUMBER_BITS & HOLDERS_MASK) | part.number

    def _forget(self, part: HeldPrefixes, key: int) -> None:
        held = part.held.pop(key)
        part.tokens -= held.tokens
        part.ends.pop(key, None)
        self.count -= 1
        if (shorter := part.held.get(held.before)) is not None:
            shorter.longer = max(0, shorter.longer - 1)
            if not shorter.longer:
                part.ends[held.before] = None
                part.ends.move_to_end(held.before, last=False)
        numbers = _without(self._holders.get(key, 0), part.number)
        if numbers:
            self._holders[key] = numbers
        else:
            self._holders.pop(key, None)

    def _forget_oldest(self, part: HeldPrefixes) -> None:
        # There is always an end, unless an engine lost prefixes in the middle and hashes of 63 bits were the same.
        self._forget(part, next(iter(part.ends)) if part.ends else next(iter(part.held)))

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
            part = self._gone[-1]
            for _ in range(min(FORGOTTEN_AT_ONCE, len(part.held))):
                self._forget_oldest(part)
            if not part.held:
                self._free_numbers.append(self._gone.pop().number)

    def check(self) -> None:
        """Raise AssertionError if the counts are wrong or more is remembered than is held."""
        parts = [*self.parts.values(), *self._gone]
        assert self.count == sum(len(part.held) for part in parts) <= self._max_held, "prefixes are miscounted"
        for part in self.parts.values():
            tokens = sum(held.tokens for held in part.held.values())
            assert part.tokens == tokens, f"{part.name} miscounts the tokens of its prefixes"
            assert all(not part.held[key].longer for key in part.ends), f"{part.name} would forget a prefix too early"
        by_number = {part.number: part for part in parts}
        assert len(by_number) == len(parts), "two replicas have one number"
        for key, numbers in self._holders.items():
            while numbers:
                assert key in by_number[numbers & NUMBER_MASK].held, "a prefix is remembered where nobody holds it"
                numbers >>= NUMBER_BITS


def longest_in(keys: tuple[int, ...], held: Mapping[int, object]) -> int:
    """How many of the keys are held, if each that is held holds the shorter ones."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low


def _between(lengths: tuple[int, ...], place: int) -> int:
    """The tokens of this prefix beyond the next shorter one."""
    return lengths[place] - lengths[place - 1] if place else lengths[0]


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
