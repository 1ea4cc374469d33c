"""A device of the plan that ops run on, and the bytes seen in use there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from executor.devices import Device, Meter
from executor.numerics import Guard

_WARM = 2  # rounds after which nothing should be new to the allocator


@dataclass(eq=False)
class Place:
    """A device, its number in the plan, and the bytes seen in use there.

    `alone`: no other device of the process draws from the same generator. peak_bytes: most of slab
    and transients together; slab_bytes: end of the last byte touched; late_allocations: those after
    a segment's first rounds.
    """

    number: int
    device: Device
    guard: Guard
    alone: bool
    peak_bytes: int = 0
    slab_bytes: int = 0
    late_allocations: int = 0
    _meter: Meter | None = None

    @property
    def meter(self) -> Meter:
        """Made when the first op is measured: what libraries keep for a thread is there by then."""
        self._meter = self._meter or self.device.meter()
        return self._meter

    def begin(self) -> None:
        """Another segment begins: what is on the device now is none of its ops'."""
        self._meter = None

    def allocating(self, rounds: Iterable[int]) -> Iterator[int]:
        """The rounds of a compute stream; count what the device allocates after the first ones."""
        before: int | None = None
        for index in rounds:
            if index == _WARM:
                before = self.device.allocations()
            yield index
        if before is not None:
            self.late_allocations += self.device.allocations() - before
