"""Searches stop strings in text that comes in pieces, as vLLM does: what may be the beginning of one is held back."""

from __future__ import annotations


class StopStrings:
    def __init__(self, stops: tuple[str, ...], held: str) -> None:
        """`held` was generated before and not delivered."""
        self._stops = stops
        self._held = held
        self._kept = max((len(stop) for stop in stops), default=1) - 1

    def add(self, text: str, *, is_last: bool) -> tuple[str, str | None]:
        """Returns the text that can be delivered now, and the stop string that ends the answer, if there is one."""
        if not self._stops:
            return text, None
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda one: one[0])
            return self._held[:at], stop
        shown = self._held if is_last else self._held[: max(0, len(self._held) - self._kept)]
        self._held = self._held[len(shown) :]
        return shown, None
