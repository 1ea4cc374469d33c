"""How often a segment repeats its round: as the plan says, or less once it is asked to end."""

import threading
from collections.abc import Iterator


class Laps:
    """The rounds of a segment, which all of its streams make equally often. `count`: how many."""

    def __init__(self, planned: int) -> None:
        self.count = planned
        self._begun = 0
        self._lock = threading.Lock()

    def each(self) -> Iterator[int]:
        """The rounds of one stream."""
        index = 0
        while self._begins(index):
            yield index
            index += 1

    def end(self) -> None:
        """No round begins any more that no stream has begun, but for the first."""
        with self._lock:
            self.count = max(1, self._begun)

    def _begins(self, index: int) -> bool:
        with self._lock:
            if index < self.count:
                self._begun = max(self._begun, index + 1)
            return index < self.count
