"""The reserve: how many light seats there should be, which is what express demand needed recently plus some headroom.

A full replica becomes light enough only as its streams end, so light seats must be ready before they are requested. The
reserve is the peak number of express streams present in a short window, plus headroom. It rises with demand immediately
and falls after the window. It depends only on the number of express streams; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from math import ceil, sqrt


class Reserve:
    def __init__(self, window_s: float, headroom: float) -> None:
        self.present = 0
        self._window_s = window_s
        self._headroom = headroom
        self._peaks: deque[tuple[float, int]] = deque()  # decreasing values; the first is the peak of the window

    def change(self, by: int, now: float) -> None:
        self.present += by
        while self._peaks and self._peaks[-1][1] <= self.present:
            self._peaks.pop()
        self._peaks.append((now, self.present))

    def wanted_seats(self, now: float) -> int:
        """The total number of light seats that there should be, taken or ready."""
        while len(self._peaks) > 1 and self._peaks[1][0] <= now - self._window_s:
            self._peaks.popleft()
        peak = self._peaks[0][1] if self._peaks else 0
        return peak + ceil(self._headroom * sqrt(peak))
