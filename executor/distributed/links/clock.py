"""The clock of a run, time.perf_counter() of process 0, as other processes know it.

Processes of one machine have it. Those of others ask process 0 for its time when they come, and
every second from then on; an answer was given half way between question and arrival, or at most
half of the whole way off.

    asked ────────▶ there        ahead = there - (asked + now) / 2, give or take (now - asked) / 2
    now   ◀────────
"""

import time
from math import inf

_DRIFT = 1e-4  # seconds by which two clocks may go apart in a second
_EVERY_S = 1.0  # between two questions


class Clock:
    """`ahead`: seconds by which the clock of the run is ahead of this process'. `same`: it is this
    process' own, nothing is asked for."""

    def __init__(self, *, same: bool = True) -> None:
        self.ahead = 0.0
        self._same = same
        self._error = inf  # of `ahead`, when it was found
        self._found = self._asked = 0.0

    def due(self) -> bool:
        """True if it is time to ask again, which is noted."""
        now = time.perf_counter()
        if self._same or now < self._asked + _EVERY_S:
            return False
        self._asked = now
        return True

    def note(self, asked: float, there: float) -> None:
        """An answer has come now; it counts if what is known is not better."""
        now = time.perf_counter()
        error = (now - asked) / 2
        if error <= self._error + _DRIFT * (now - self._found):
            self.ahead, self._error, self._found = there - (asked + now) / 2, error, now
