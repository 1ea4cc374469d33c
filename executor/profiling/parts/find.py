"""The relation of a batch's parts to the whole: losses and gradients of both are compared.

A few samples of a batch run together and one by one, as they train, on a GPU that has room for the
model or else on the host. Random numbers are
the same for both; what a part leaves in buffers is there for the next one, as in a run. Where the
model can, it computes with 64 bits, so that rounding moves nothing from one side of a ReLU to the
other.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from executor.devices import Device
from executor.errors import RunError, WorkloadError, text_of
from executor.numerics import DrawError
from executor.profiling.parts.culprit import culprit
from executor.profiling.parts.ignored import counts_of, masked
from executor.profiling.parts.probe import NoPart, Probe
from executor.workload import Batch, Task, part, weight_function
from profiles.schema import Counts, Parts

_PATIENCE_S = 20.0  # after which no other batch is compared
_BATCHES = 2
_LONGEST = 200  # characters of a reason
_CUTS = ((1, 1), (1, 1, 2), (2, 2))  # samples of each part
_COPIES = 4  # of a model that a device has room for: its gradients, and either in 64 bits
_WIDENED = 1 << 30  # bytes of a model: in larger ones no single number moves a gradient far


def find_parts(probe: Probe, batches: Sequence[Batch], device: Device | None = None) -> Parts:
    """The relation of these batches' parts to the whole. WorkloadError for a task whose `weight`
    does not fit its loss. `device`: where the model may be tried."""
    if batches[0].size == 1:
        return Parts()
    # On the host, which goes on after a value that is no token.
    counts = None if probe.task.weight else counts_of(probe, batches[0])
    why = ""
    for one in _probes(probe, device):
        with suppress(torch.OutOfMemoryError):  # the host has room
            if isinstance(found := _compared(one, batches, counts), Parts):
                return found
            why = found
    return Parts("whole", why[:_LONGEST])


def _probes(probe: Probe, device: Device | None) -> Iterator[Probe]:
    """Ways to try a model: on a device, with 64 bits, and as it is."""
    size = sum(parameter.nbytes for parameter in probe.model.parameters())
    widths = (True, False) if size <= _WIDENED else (False,)
    places: list[Device | None] = [None]
    if device and device.where.type != "cpu" and _COPIES * size <= device.spec.budget_bytes:
        places.insert(0, device)
    for place in places:
        if place or size <= _WIDENED:
            with suppress(Exception):  # whoever has to copy it says so
                yield from (probe.apart(wide=wide, device=place) for wide in widths)
                continue
        yield probe


def _compared(probe: Probe, batches: Sequence[Batch], counts: Counts | None) -> Parts | str:
    """The same for what may count, or why it could not be compared."""
    task, size = probe.task, batches[0].size
    why, start = "", time.monotonic()
    weigh, compared = weight_function(task, counts), 0
    first = [masked(batches[0], counts.tensor, counts.ignored)] if counts else []
    for batch in [*first, *batches[:_BATCHES]]:
        if compared and time.monotonic() - start > _PATIENCE_S:
            break
        for cut in _cuts(size, compared):
            few = part(batch, 0, sum(cut))
            try:
                holds = probe.holds(few, cut, weigh)
                plain = not holds and weigh is not None and probe.holds(few, cut, None)
            except DrawError as error:
                return Parts(why=text_of(error)[:_LONGEST])
            except (NoPart, RunError) as error:
                why = text_of(error)
                continue
            if plain and task.weight:
                raise WorkloadError(
                    f"task {task.name}: its loss is the mean over samples, and `weight` gives "
                    "parts of a batch other shares; leave it out, or let it count what the loss "
                    "is a mean of"
                )
            if plain:  # the loss leaves nothing out
                weigh = counts = None
            elif not holds:
                return _whole(probe, few, cut, counts)
            compared += 1
            break
    if not compared:
        return why
    return Parts("weighted", _told(task, counts), counts) if weigh else Parts()


def _cuts(size: int, compared: int) -> list[tuple[int, ...]]:
    """Ways to cut the first samples of a batch, the first of which that can be run is compared."""
    fit: list[tuple[int, ...]] = [cut for cut in _CUTS if sum(cut) <= size]
    return fit if not compared else [*fit[1:2], *fit[:1], *fit[2:]]


def _whole(probe: Probe, batch: Batch, cut: Sequence[int], counts: Counts | None) -> Parts:
    """The relation where parts are not the whole, say by BatchNorm. The loss may be weighted still,
    which eval mode shows."""
    weigh, still, why = weight_function(probe.task, counts), False, "loss"
    with suppress(NoPart, RunError):
        still = bool(weigh) and replace(probe, trains=False).holds(batch, cut, weigh)
    with suppress(Exception):  # of a model that forbids hooks, say
        why = culprit(probe, batch, cut)
    return Parts("whole", why[:_LONGEST], counts if still else None)


def _told(task: Task, counts: Counts | None) -> str:
    """The thing that is counted, in words."""
    if counts is None:
        return "Task.weight"
    return f"targets other than {counts.ignored}"
