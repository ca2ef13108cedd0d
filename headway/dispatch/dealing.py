"""Deals replicas out over relays: each replica is probed by one relay. When relays come and go, only as many replicas
change hands as must."""

from __future__ import annotations


class Dealing:
    def __init__(self) -> None:
        self.hands: dict[str, set[str]] = {}  # by relay
        self._undealt: list[str] = []
        self._holder: dict[str, str] = {}  # by replica

    def holder(self, replica: str) -> str | None:
        """The relay that probes it; None if there is no relay."""
        return self._holder.get(replica)

    def add(self, replica: str) -> set[str]:
        """Give a new replica to the relay that has the fewest. Returns the relays whose replicas have changed."""
        if not self.hands:
            self._undealt.append(replica)
            return set()
        relay = min(self.hands, key=lambda one: len(self.hands[one]))
        self._give(replica, relay)
        return {relay}

    def remove(self, replica: str) -> None:
        if (relay := self._holder.pop(replica, None)) is not None:
            self.hands[relay].discard(replica)
        else:
            self._undealt.remove(replica)

    def join(self, relay: str) -> set[str]:
        """Give the relay its part, from those that have more. Returns the relays whose replicas have changed."""
        if relay in self.hands:
            return set()
        hand = self.hands[relay] = set()
        for replica in self._undealt:
            self._give(replica, relay)
        changed = {relay} if self._undealt else set()
        self._undealt = []
        part = sum(map(len, self.hands.values())) // len(self.hands)
        for other, theirs in self.hands.items():
            for replica in sorted(theirs)[part:] if other != relay else ():
                if len(hand) >= part:
                    break
                theirs.discard(replica)
                self._give(replica, relay)
                changed |= {other, relay}
        return changed

    def leave(self, relay: str) -> set[str]:
        """Give the relay's replicas to the others. Returns the relays whose replicas have changed."""
        left = sorted(self.hands.pop(relay, ()))
        if not self.hands:
            self._undealt += left
            for replica in left:
                del self._holder[replica]
            return set()
        others = sorted(self.hands, key=lambda other: len(self.hands[other]))
        for number, replica in enumerate(left):
            self._give(replica, others[number % len(others)])
        return set(others[: len(left)])

    def _give(self, replica: str, relay: str) -> None:
        self.hands[relay].add(replica)
        self._holder[replica] = relay
