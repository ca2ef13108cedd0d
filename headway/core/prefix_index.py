"""Which replica is expected to have which prompt prefixes in its engine's cache.

An engine keeps what it has read of prompts until it needs the memory for others. So each replica's part of the index is
fed with the prompts of the calls that board there, and forgets as a cache of the replica's size would: what was not
used for the longest time first. An engine may forget earlier, or later: what is expected here decides how long a prompt
is thought to take and where a call goes, never how many seats there are.

Prefixes are known by their keys only (types.Call). They form one tree for all replicas: a Node has the keys that one
prompt added to another, a Holding says how many of them a replica holds. Whoever holds a node holds all before it, so
the longest known prefix of a prompt is found by bisection, and a call that changes little touches little.

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
HOLDERS: Final = 3  # looked at for one call
MANY: Final = 8  # holders of one node
FORGOTTEN_AT_ONCE: Final = 256  # keys, at most; few, so that no call waits for it


class Node:
    """The keys by which prompts continue another one, up to where they part."""

    def __init__(self, before: Node | None, place: int, keys: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        self.before = before
        self.place = place  # of the first key among those of a prompt
        self.keys = keys  # the shortest first
        self.lengths = lengths  # in tokens, of all prefixes of the prompt
        self.holders: dict[HeldPrefixes, Holding] = {}  # the last one that got it last

    def tokens(self, keys: int) -> int:
        """Of the first so many keys, beyond what is before."""
        before = self.lengths[self.place - 1] if self.place else 0
        return self.lengths[self.place + keys - 1] - before if keys else 0


class Holding:
    """What a replica holds of one node."""

    def __init__(self, node: Node, keys: int) -> None:
        self.node = node
        self.keys = keys  # the first ones: the longest is forgotten first
        self.answer_tokens = 0  # expected: they count until a prompt continues this one
        self.continued = 0  # by how many holdings of the same replica


class HeldPrefixes:
    """The part of one replica. Made by PrefixIndex.add."""

    def __init__(self, name: str, index: PrefixIndex) -> None:
        self.name = name
        self.index = index
        self.is_gone = False
        self.keys = 0
        self.tokens = 0  # of all that is held
        # What no other holding continues, the least recently used first: only this is forgotten.
        self.ends: OrderedDict[Holding, None] = OrderedDict()

    def cached_tokens(self, call: Call) -> int:
        """How many tokens of the call's prompt its engine is expected to have in its cache."""
        if not self.keys or not call.prefix_keys:
            return 0
        node, keys = self.index.longest_known(call)
        while node is not None:
            holding = node.holders.get(self)
            if holding is not None:
                place = node.place + min(keys, holding.keys) - 1
                return min(call.prefix_tokens[place], call.prompt_tokens)
            node = node.before
            keys = len(KEYED_TOKENS)
        return 0


class PrefixIndex:
    def __init__(self, max_held: int = MAX_HELD) -> None:
        # By replica, in the order in which they forget keys for others.
        self.parts: OrderedDict[str, HeldPrefixes] = OrderedDict()
        self.count = 0  # keys of all parts, and of those that are gone and not forgotten yet
        self._max_held = max_held
        self._gone: list[HeldPrefixes] = []
        self._nodes: dict[int, Node] = {}  # by key
        # What was found for the last call, until something changes: it is asked for with each replica in question.
        self._found_for: Call | None = None
        self._found: tuple[Node | None, int] = (None, 0)

    def add(self, name: str) -> HeldPrefixes:
        """Begin the part of a replica that has none."""
        part = self.parts[name] = HeldPrefixes(name, self)
        return part

    def remove(self, name: str) -> None:
        """The replica is gone, or its engine has lost all."""
        part = self.parts.pop(name)
        part.is_gone = True
        self._gone.append(part)
        self._forget_gone()

    def lose(self, name: str, keys: list[int]) -> None:
        """Its engine does not have these prefixes any more."""
        part = self.parts[name]
        for key in keys:
            node = self._nodes.get(key)
            holding = node.holders.get(part) if node is not None else None
            place = node.keys.index(key) if node is not None else 0
            if holding is not None and place < holding.keys:
                self._forget_longer(part, holding)
                self._forget_longest(part, holding, holding.keys - place)

    def boarded(self, call: Call, name: str, kv_tokens: int, answer_tokens: int) -> None:
        """The engine reads the call's prompt, and then adds an answer of about this length. It has memory for
        `kv_tokens`; 0 means unknown."""
        self._forget_gone()
        part = self.parts[name]
        if call.prefix_keys:
            self._use(part, call, answer_tokens)
        budget = kv_tokens or UNKNOWN_KV_TOKENS
        while part.tokens > budget:
            self._forget_oldest(part, part.tokens - budget)
        while self.count > self._max_held:
            if self._gone:
                self._forget_gone()
            else:
                oldest = part if part.keys > self._share else self._next_to_forget()
                self._forget_longest(oldest, next(iter(oldest.ends)), self.count - self._max_held)

    def holders(self, call: Call) -> list[HeldPrefixes]:
        """A few replicas that hold much of the prompt, the most first."""
        found: list[HeldPrefixes] = []
        node, keys = self.longest_known(call)
        least = call.prefix_tokens[node.place + keys - 1] // 2 if node is not None else 0
        # Whoever holds less than half of what one holds saves little.
        while node is not None and call.prefix_tokens[node.place + keys - 1] >= least:
            for part in reversed(node.holders.keys()):
                if not part.is_gone and part not in found:
                    found.append(part)
                    if len(found) == HOLDERS:
                        return found
            node = node.before
            keys = len(node.keys) if node is not None else 0
        return found

    def longest_known(self, call: Call) -> tuple[Node | None, int]:
        """The node of the longest prefix of the prompt that anybody holds, and how many keys of it the prompt has."""
        if self._found_for is not call:
            place = longest_in(_bounded_keys(call), self._nodes)
            node = self._nodes[call.prefix_keys[place - 1]] if place else None
            self._found_for = call
            self._found = (node, place - node.place if node is not None else 0)
        return self._found

    def _use(self, part: HeldPrefixes, call: Call, answer_tokens: int) -> None:
        all_keys = _bounded_keys(call)
        node, keys = self.longest_known(call)
        known = node.place + keys if node is not None else 0
        is_longer = known < len(all_keys)
        if node is not None and keys < len(node.keys) and (is_longer or part not in node.holders):
            node = self._split(node, keys)
        if is_longer:
            node = Node(node, known, all_keys[known:], call.prefix_tokens)
            keys = len(node.keys)
            for key in node.keys:
                self._nodes[key] = node
            self._found_for = None
        if node is None:
            return
        last = self._hold(part, node, keys)
        if not last.continued:
            part.tokens += answer_tokens - last.answer_tokens
            last.answer_tokens = answer_tokens
            part.ends.move_to_end(last)

    def _hold(self, part: HeldPrefixes, node: Node, keys: int) -> Holding:
        """The part gets so many keys of the node, and all before it."""
        last: Holding | None = None
        after: Holding | None = None  # that is new, and continues the one in question
        at: Node | None = node
        while at is not None:
            holding = at.holders.get(part)
            is_new = holding is None
            if holding is None:
                holding = at.holders[part] = Holding(at, 0)
                part.ends[holding] = None
            elif at is node:
                at.holders[part] = at.holders.pop(part)  # the last one that got it
            wanted = keys if at is node else len(at.keys)
            if holding.keys < wanted:
                self._resize(part, holding, wanted)
            if after is not None:
                self._continue(part, holding)
            if last is None:
                last = holding
            if not is_new:
                break
            after, at = holding, at.before
        assert last is not None
        return last

    def _continue(self, part: HeldPrefixes, holding: Holding) -> None:
        # The answer that was added here is part of the longer prompt, or not of its conversation.
        part.tokens -= holding.answer_tokens
        holding.answer_tokens = 0
        holding.continued += 1
        part.ends.pop(holding, None)

    def _resize(self, part: HeldPrefixes, holding: Holding, keys: int) -> None:
        part.tokens += holding.node.tokens(keys) - holding.node.tokens(holding.keys)
        part.keys += keys - holding.keys
        self.count += keys - holding.keys
        holding.keys = keys

    def _split(self, node: Node, keys: int) -> Node:
        """Part the node after so many keys. Returns the one before, which is new."""
        shorter = Node(node.before, node.place, node.keys[:keys], node.lengths)
        node.before, node.place, node.keys = shorter, node.place + keys, node.keys[keys:]
        for key in shorter.keys:
            self._nodes[key] = shorter
        for part, holding in list(node.holders.items()):
            before = shorter.holders[part] = Holding(shorter, min(keys, holding.keys))
            holding.keys -= before.keys
            if holding.keys:
                before.continued = 1
                continue
            # It holds nothing of the rest.
            del node.holders[part]
            before.answer_tokens, before.continued = holding.answer_tokens, holding.continued
            if holding in part.ends:
                del part.ends[holding]
                part.ends[before] = None
                part.ends.move_to_end(before, last=False)
        self._drop_unheld(node)
        self._found_for = None
        return shorter

    def _forget_longest(self, part: HeldPrefixes, holding: Holding, keys: int) -> None:
        """Forget the answer and the longest of the prefixes, so many."""
        node = holding.node
        part.tokens -= holding.answer_tokens
        holding.answer_tokens = 0
        self._resize(part, holding, max(0, holding.keys - keys))
        if not holding.keys:
            del node.holders[part]
            part.ends.pop(holding, None)
            before = node.before.holders.get(part) if node.before is not None else None
            if before is not None:
                before.continued -= 1
                if not before.continued:
                    part.ends[before] = None
                    part.ends.move_to_end(before, last=False)
        self._drop_unheld(node)

    def _drop_unheld(self, node: Node) -> None:
        """Take out the longest keys of the node that nobody holds. If many hold some, this waits: so it is cheap."""
        if len(node.holders) > MANY:
            return
        held = 0
        for one in node.holders.values():
            held = max(held, one.keys)
        if held < len(node.keys):
            for key in node.keys[held:]:
                del self._nodes[key]
            node.keys = node.keys[:held]
            self._found_for = None

    def _forget_longer(self, part: HeldPrefixes, holding: Holding) -> None:
        """Forget all that continues this holding."""
        for end in list(part.ends) if holding.continued else ():
            node: Node | None = end.node
            while node is not None and node is not holding.node:
                node = node.before
            at: Holding | None = end if node is not None else None
            while at is not None and at is not holding and not at.continued:
                before = at.node.before
                self._forget_longest(part, at, at.keys)
                at = before.holders.get(part) if before is not None else None

    def _forget_oldest(self, part: HeldPrefixes, tokens: int = 1) -> None:
        """Forget the longest of the prefixes that were not used for the longest time, until so many tokens are free."""
        holding = next(iter(part.ends))
        node, keys = holding.node, holding.keys
        left = node.lengths[node.place + keys - 1] + holding.answer_tokens - tokens
        while keys and node.lengths[node.place + keys - 1] > left:
            keys -= 1
        self._forget_longest(part, holding, max(1, holding.keys - keys))

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
            if self.parts[name].keys > share:
                return self.parts[name]

    def _forget_gone(self) -> None:
        """Forget some keys of the parts that are gone."""
        if self._gone:
            part = self._gone[-1]
            for _ in range(min(FORGOTTEN_AT_ONCE, part.keys)):
                self._forget_oldest(part)
            if not part.keys:
                self._gone.pop()

    def check(self) -> None:
        """Raise AssertionError if the counts are wrong or more is remembered than is held."""
        held: dict[HeldPrefixes, list[Holding]] = {part: [] for part in [*self.parts.values(), *self._gone]}
        for key, node in self._nodes.items():
            assert key in node.keys, "a prefix is remembered in the wrong place"
            assert node.holders, "a prefix is remembered that nobody holds"
            if key == node.keys[0]:
                for part, holding in node.holders.items():
                    held[part].append(holding)
        for part, holdings in held.items():
            tokens = sum(holding.node.tokens(holding.keys) + holding.answer_tokens for holding in holdings)
            assert part.tokens == tokens, f"{part.name} miscounts the tokens of its prefixes"
            assert part.keys == sum(holding.keys for holding in holdings), f"{part.name} miscounts its prefixes"
            ends = {holding for holding in holdings if not holding.continued}
            assert ends == set(part.ends), f"{part.name} would forget a prefix too early, or never"
        assert self.count == sum(part.keys for part in held) <= self._max_held, "prefixes are miscounted"


def _bounded_keys(call: Call) -> tuple[int, ...]:
    """Those whose lengths are known, as many as a prompt may have."""
    return call.prefix_keys[: min(len(call.prefix_tokens), len(KEYED_TOKENS))]


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
