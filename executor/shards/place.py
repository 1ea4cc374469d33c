"""A device of the plan that ops run on, and the bytes seen in use there."""

from collections.abc import Iterable, Iterator, Mapping

from executor.devices import Device, Meter
from executor.numerics import Guard

_WARM = 2  # rounds after which nothing should be new to the allocator


class Place:
    """A device, its number in the plan, and the bytes seen in use there.

    `alone`: no other device of the process draws from the same generator. peak_bytes: most of slab
    and transients together; late_allocations: those after a segment's first rounds.
    """

    def __init__(self, number: int, device: Device, alone: bool) -> None:
        self.number = number
        self.device = device
        self.guard = Guard(device.source)
        self.alone = alone
        self.peak_bytes = 0
        self.late_allocations = 0
        self._meter: Meter | None = None
        self._warm: int | None = None  # allocations when the first rounds were over

    @property
    def meter(self) -> Meter:
        """Made when the first op is measured: what libraries keep for a thread is there by then."""
        self._meter = self._meter or self.device.meter()
        return self._meter

    def begin(self) -> None:
        """Another segment begins: what is on the device now is none of its ops'."""
        self._meter = None

    def allocating(self, rounds: Iterable[int]) -> Iterator[int]:
        """The rounds of a compute stream; from its third one on, count what the device allocates
        until `allocated`."""
        for index in rounds:
            if index == _WARM:
                self._warm = self.device.allocations()
            yield index

    def allocated(self) -> None:
        """The rounds are over."""
        if self._warm is not None:
            self.late_allocations += self.device.allocations() - self._warm
            self._warm = None

    def took(self, count: int) -> None:
        """So many bytes of the device were in use at once."""
        self.peak_bytes = max(self.peak_bytes, count)


def places_of(devices: Mapping[int, Device]) -> dict[int, Place]:
    """The devices of this process, by number."""
    return {
        number: Place(number, device, alone=len(devices) == 1 or not device.source.shared)
        for number, device in devices.items()
    }
