"""How many light seats are kept ready: as many as express demand has needed lately, and a little more.

Draining a full replica down to a light one takes a stream's lifetime, so the seats must be there before they are asked
for. Kept is the peak of express calls present over a short window, plus room for it to grow; that follows demand up at
once and down after the window. Knows only how many express calls there are; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from math import ceil, sqrt


class Reserve:
    def __init__(self, window_s: float, headroom: float) -> None:
        self.present = 0
        self._window_s = window_s
        self._headroom = headroom
        self._peaks: deque[tuple[float, int]] = deque()  # falling values; the first is the peak of the window

    def change(self, by: int, now: float) -> None:
        self.present += by
        while self._peaks and self._peaks[-1][1] <= self.present:
            self._peaks.pop()
        self._peaks.append((now, self.present))

    def wanted_seats(self, now: float) -> int:
        """Light seats there should be in all, taken or ready."""
        while len(self._peaks) > 1 and self._peaks[1][0] <= now - self._window_s:
            self._peaks.popleft()
        peak = self._peaks[0][1] if self._peaks else 0
        return peak + ceil(self._headroom * sqrt(peak))
