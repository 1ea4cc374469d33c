"""A clock that goes on only while somebody sleeps: what emulated devices do, exactly, however busy
the machine."""


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._looked = self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-9)

    def passed(self) -> float:
        """Seconds since this was asked last."""
        before, self._looked = self._looked, self.now
        return self.now - before
