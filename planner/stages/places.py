"""The place of a stage in a pipeline, and what fits there."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

Team = tuple[int, ...]
"""The kinds of the devices that have replicas of a stage, ascending."""


class Place(NamedTuple):
    """The place of a stage: its team, how many devices it and the stages behind it have, and its
    number, front first, where the stages are given."""

    team: Team
    devices: int
    stage: int | None = None

    def in_flight(self, microbatches: int) -> int:
        """Microbatches between forward and backward on one of its devices, in order 1f1b."""
        return -(-min(microbatches, self.devices) // len(self.team))


Fits = Callable[[Place, int, int], bool]
"""Says if layers first..end-1 fit a place. Of layers that fit, any part must."""


def within(
    fixed: Sequence[int], flying: Sequence[int], limits: Sequence[int], microbatches: int
) -> Fits:
    """Memory as what fits: of every layer what it always holds, and what for each microbatch in
    flight; a limit for each kind of device."""
    always, each = (list(accumulate(sizes, initial=0)) for sizes in (fixed, flying))

    def fits(place: Place, first: int, end: int) -> bool:
        held = (each[end] - each[first]) * place.in_flight(microbatches)
        return always[end] - always[first] + held <= min(limits[kind] for kind in place.team)

    return fits
