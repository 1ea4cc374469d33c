"""Random draws that nobody announced, where one task's must not become another's failure.

Devices of the process may share one default generator. A draw that the plan does not know of moves
it for all of them, and whoever looks next would be blamed. So while tasks are to survive each
other, ops that must not draw are watched: the draw is refused before it is made.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active in a thread, a random op is an error."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise DrawError(
                "draws random numbers although the plan knows of none; profile again, or make the "
                "layer draw the same number each time"
            )
        return func(*args, **(kwargs or {}))


def must_not_draw(work: Work) -> bool:
    """Whether any draw in this op is an error, and would move the generator of other devices."""
    if not work.place.device.source.shared:
        return False
    if work.name.kind in "UNR":
        return True
    if work.name.kind not in "FB" or work.place.alone:
        return False
    draws = work.task.plan.shards[work.name.number].rng_draws
    return draws == 0 or (work.name.kind == "B" and work.activations != "recompute")
