"""The face of the other processes of a run, as a segment's streams use it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from executor.replay.facts import Facts


class News(NamedTuple):
    """Op `number` of a stream has ended `at` a time.perf_counter() of this process, and all
    before it; or, of what an X says, it has begun, and a paced link has moved it at `end`."""

    stream: str
    number: int
    at: float
    end: float | None = None
    facts: tuple[Facts, ...] = ()


class Wire(Protocol):
    """What crosses from one device to another one, in order."""

    def send(self, source: Tensor) -> None:
        """Launch the bytes (uint8) into the current stream; the other side receives as many."""

    def receive(self, target: Tensor) -> None:
        """Launch the bytes that the other side sends into the current stream."""


class Team(Protocol):
    """The processes of a run, by rank; `me` is this one's. Each has some of the plan's devices."""

    me: int

    def rank(self, device: int) -> int:
        """The process that has a device of the plan."""

    def tell(self, rank: int, segment: int, news: News) -> None:
        """Send news of a segment to a process, in order; from any thread."""

    def listen(self, segment: int, heard: Callable[[News], None]) -> None:
        """Hand on the news of a segment, also those that have come before, from any thread."""

    def wire(self, source: int, target: int) -> Wire:
        """The wire from a device of the plan to another one, of which one is this process'."""
