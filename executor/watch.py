"""Random draws that nobody announced, where one task's must not become another's failure.

Devices of the process may share one default generator. A draw that the plan does not know of moves
it for all of them, and whoever looks next would be blamed. So while tasks are to survive each
other, ops that must not draw are watched: the draw is refused before it is made.
"""

from executor.ops import Work
from executor.rng import DrawError, Guard, Source


class Doubt(DrawError):
    """Somebody moved the generator that all devices draw from, and nobody knows who or when."""


class KeepingGuard(Guard):
    """A guard after whose complaint others go on.

    `alone`: only the device of this guard draws from `source`; it is put back to where it was.
    """

    def __init__(self, source: Source, alone: bool) -> None:
        super().__init__(source)
        self._alone = alone

    def check(self) -> None:
        """DrawError when somebody drew since the last check, Doubt when it may be anybody."""
        try:
            super().check()
        except DrawError as error:
            if not self._alone:
                why = "all devices draw from one generator, so no task can go on"
                raise Doubt(f"{error}; {why}") from None
            self._source.set(self._parked)
            raise


UNPLANNED = (
    "draws random numbers although the plan knows of none; profile again, or make the layer draw "
    "the same number each time"
)


def must_not_draw(work: Work) -> bool:
    """Whether any draw in this op is an error, and would move the generator of other devices."""
    if not work.place.device.source.shared:
        return False
    if work.name.kind in "UNR" or (work.evaluates and work.name.kind == "F"):
        return True
    if work.name.kind not in "FB" or work.place.alone:
        return False
    draws = work.task.plan.shards[work.name.number].rng_draws
    return draws == 0 or (work.name.kind == "B" and work.activations != "recompute")
