"""What the parts of a task's batches are to the whole: losses and gradients of both are compared.

A few samples of a batch run together and one by one, on the host, as they train. Random numbers are
the same for both; what a part leaves in buffers is there for the next one, as in a run. Where the
model can, it computes with 64 bits, so that rounding moves nothing from one side of a ReLU to the
other.
"""

import copy
import inspect
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from executor.cutting import bare, call, isolated, run
from executor.errors import RunError, WorkloadError, text_of
from executor.numerics import DrawError, SameDraws, mapped, tensors_of
from executor.shards import Modes
from executor.workload import Batch, Ending, Task, Weigh, counting, part, shares, weigh_of
from profiles.schema import Counts, Parts

_PATIENCE_S = 20.0  # after which no other batch is compared
_BATCHES = 2
_CUTS = ((1, 1), (1, 1, 2), (2, 2))  # samples of each part
_NUMBERS = 4096  # of each gradient that are compared
_FLOOR = 1e-2  # of the largest gradient: smaller ones may be rounding and nothing else
_LOSS = 64  # units in the last place
_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_WIDENED = 1 << 30  # bytes of a model: in larger ones no single number moves a gradient far

Seen = dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]]  # what calls take and give


class _NoPart(Exception):
    """The model cannot be run with so few samples, or its loss of them is no number."""


class _Run(NamedTuple):
    """The loss of a batch or of a part of it, and some numbers of each parameter's gradient."""

    loss: Tensor
    grads: Mapping[str, Tensor]


@dataclass(frozen=True)
class Probe:
    """A task's model, or the `layers` of one that has no forward, its mode, and whether it computes
    with 64 bits."""

    task: Task
    model: nn.Module
    layers: Sequence[nn.Module] = ()
    trains: bool = True
    wide: bool = False

    def apart(self, *, wide: bool) -> "Probe":
        """A copy of the model, of which nothing comes back."""
        model, layers = copy.deepcopy((self.model, [*self.layers]))
        return replace(self, model=model.double() if wide else model, layers=layers, wide=wide)

    def holds(self, batch: Batch, cut: Sequence[int], weigh: Weigh | None) -> bool:
        """True if loss, gradients and buffers of a batch are those of its parts, of so many samples
        each, by what they weigh: the samples by default. _NoPart where they cannot be compared."""
        pieces = list(_pieces(batch, cut))
        by = shares(weigh or _samples, batch, [piece for _, piece in pieces])
        draws, parts = SameDraws(sum(cut)), list[tuple[float, _Run]]()
        with self.alone(), draws:
            whole, after = self._told(batch), self._buffers()
        if not whole.loss.isfinite():
            raise _NoPart(f"its loss is {whole.loss.item()}")
        with self.alone(), draws:
            for (begin, piece), share in zip(pieces, by, strict=True):
                draws.take(begin, _samples(piece))
                found = self._told(piece)
                if share.divisor < math.inf:
                    parts.append((1 / share.divisor, found))
            return _alike(whole, parts) and _same(after, self._buffers())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While active, the model may change what it likes: it is afterwards as before."""
        modes = Modes([self.model])
        with isolated(self.model), bare(list(self.model.parameters())):
            modes.train(self.trains)
            try:
                yield
            finally:
                modes.train(True)

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, with a graph."""
        change = _wide if self.wide else Tensor.clone
        inputs, targets = (mapped(change, value) for value in batch)
        outputs = run(self.layers, inputs) if self.layers else call(self.model, inputs)
        return Ending(self.task.loss).loss_of(outputs, Batch(inputs, targets))

    def _told(self, batch: Batch) -> _Run:
        try:
            return self._run(batch)
        except DrawError:
            raise
        except Exception as error:  # whatever a user's model raises
            raise _NoPart(text_of(error)) from error

    def _run(self, batch: Batch) -> _Run:
        loss, found = self.loss(batch), dict[str, Tensor]()
        torch.autograd.backward(loss)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[name], parameter.grad = _some(parameter.grad), None
        return _Run(loss.detach().clone(), found)

    def _buffers(self) -> dict[str, Tensor]:
        every = self.model.named_buffers()
        return {name: _some(buffer) for name, buffer in every if buffer.is_floating_point()}


def find_parts(probe: Probe, batches: Sequence[Batch]) -> Parts:
    """What the parts of these batches are to the whole. WorkloadError for a task whose `weight`
    does not fit its loss."""
    if _samples(batches[0]) == 1:
        return Parts()
    size = sum(parameter.nbytes for parameter in probe.model.parameters())
    why = ""
    for one in _probes(probe, wide=size <= _WIDENED):
        counts = None if one.task.weight else _counts(one, batches[0])
        if isinstance(found := _compared(one, batches, counts), Parts):
            return found
        why = found
    return Parts("whole", why)


def _probes(probe: Probe, *, wide: bool) -> Iterator[Probe]:
    """Ways to try a model: with 64 bits, and as it is."""
    if wide:
        with suppress(Exception):  # whoever has to copy it says so
            yield from (probe.apart(wide=wide) for wide in (True, False))
            return
    yield probe


def _compared(probe: Probe, batches: Sequence[Batch], counts: Counts | None) -> Parts | str:
    """The same for what may count, or why it could not be compared."""
    task, size = probe.task, _samples(batches[0])
    why, start = "", time.monotonic()
    weigh, compared = weigh_of(task, counts), 0
    first = [_masked(batches[0], counts.tensor, counts.ignored)] if counts else []
    for batch in [*first, *batches[:_BATCHES]]:
        if compared and time.monotonic() - start > _PATIENCE_S:
            break
        for cut in _cuts(size, compared):
            few = part(batch, 0, sum(cut))
            try:
                holds = probe.holds(few, cut, weigh)
                plain = not holds and weigh is not None and probe.holds(few, cut, None)
            except DrawError as error:
                return Parts(why=text_of(error))
            except (_NoPart, RunError) as error:
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
    """Of a task whose parts are not the whole, say by BatchNorm. Its loss may be weighted still,
    which eval mode shows."""
    weigh, still = weigh_of(probe.task, counts), False
    with suppress(_NoPart, RunError):
        still = bool(weigh) and replace(probe, trains=False).holds(batch, cut, weigh)
    return Parts("whole", _culprit(probe, batch, cut), counts if still else None)


def _told(task: Task, counts: Counts | None) -> str:
    """What is counted, in words."""
    if counts is None:
        return "Task.weight"
    return f"targets other than {counts.ignored}"


# --- what a loss leaves out ----------------------------------------------------------------------


class _Losses(TorchFunctionMode):
    """Notes each cross-entropy that is computed while active: the number of its targets that count,
    and the target that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (F.cross_entropy, F.nll_loss):
            given = inspect.signature(func).bind(*args, **kwargs or {})
            given.apply_defaults()
            target, ignored = given.arguments["target"], given.arguments["ignore_index"]
            if not target.is_floating_point():
                self.found.append((int((target != ignored).sum()), ignored))
        return func(*args, **kwargs or {})


def _counts(probe: Probe, batch: Batch) -> Counts | None:
    """The tensor of a batch whose values say what counts in its loss: a cross-entropy has as many
    targets less as values of it are changed to the one that is left out. Whether some are left out
    in these batches does not matter."""
    few = part(batch, 0, 2)
    known = {ignored for _, ignored in _losses(probe, few)}
    for number, tensor in enumerate(_tensors(few)):
        if tensor.is_floating_point() or not tensor.dtype.is_signed:
            continue
        for ignored in known:
            changed = _masked(few, number, ignored)
            before = _losses(probe, _masked(few, number, ignored, none=True))
            found = {*_losses(probe, changed)}.difference(before)
            for shifted in (False, True)[: tensor.dim()]:
                counts = Counts(number, shifted, ignored)
                if (int(counting(counts)(changed)), ignored) in found:
                    return counts
    return None


def _losses(probe: Probe, batch: Batch) -> list[tuple[int, int]]:
    """The cross-entropies of a batch; none where the model cannot be run with it."""
    losses = _Losses()
    try:
        with probe.alone(), torch.no_grad(), losses:
            probe.loss(batch)
    except Exception:  # a value that is no token, say
        return []
    return losses.found


def _masked(batch: Batch, number: int, ignored: int, *, none: bool = False) -> Batch:
    """The batch with half of the first sample's targets left out, and no others; or with none."""
    numbers = count()

    def change(tensor: Tensor) -> Tensor:
        if next(numbers) != number:
            return tensor
        made = tensor.masked_fill(tensor == ignored, 0)
        if not none:
            row = made[:1].reshape(-1)
            made[:1] = torch.where(torch.arange(len(row)) * 2 <= len(row), ignored, row).view_as(
                made[:1]
            )
        return made

    return Batch(*(mapped(change, value) for value in batch))


# --- comparing -----------------------------------------------------------------------------------


def _tensors(batch: Batch) -> list[Tensor]:
    return [*tensors_of(batch.inputs), *tensors_of(batch.targets)]


def _samples(batch: Batch) -> int:
    return len(_tensors(batch)[0])


def _pieces(batch: Batch, cut: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """The parts of a batch, and where each begins."""
    for end, size in zip(accumulate(cut), cut, strict=True):
        yield end - size, part(batch, end - size, size)


def _wide(tensor: Tensor) -> Tensor:
    """A copy with 64 bits for each real number."""
    return tensor.double() if tensor.dtype in _NARROW else tensor.clone()


def _some(tensor: Tensor) -> Tensor:
    """Some of its numbers, evenly spread."""
    flat = tensor.detach()
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
    return flat[:: max(1, len(flat) // _NUMBERS)].clone()


def _alike(whole: _Run, parts: Sequence[tuple[float, _Run]]) -> bool:
    """True if what the whole gives is the sum of what its parts give, by their factors, but for
    rounding."""
    losses = [factor * one.loss.item() for factor, one in parts]
    size = abs(whole.loss.item()) + sum(map(abs, losses))
    if not abs(whole.loss.item() - sum(losses)) <= _LOSS * _eps(whole.loss) * size:
        return False
    most = max((_size(grad) for grad in whole.grads.values()), default=0.0)
    every = [whole, *(one for _, one in parts)]
    for name in {name for one in every for name in one.grads}:
        terms = [f * one.grads[name].double() for f, one in parts if name in one.grads]
        like = next(one.grads[name] for one in every if name in one.grads)
        grad = whole.grads.get(name, torch.zeros_like(like)).double()
        least = max(_size(grad), *map(_size, terms), _FLOOR * most) if terms else _FLOOR * most
        if not _size(grad - sum(terms)) <= math.sqrt(_eps(like)) * least:
            return False
    return True


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """True if buffers have the same values but for rounding, or none at all."""
    return all(_near(tensor, other[name]) for name, tensor in one.items())


def _near(one: Tensor, other: Tensor) -> bool:
    off = (one - other).abs().nan_to_num(0.0, 0.0)  # no numbers or infinite ones, in both
    return _size(off) <= math.sqrt(_eps(one)) * max(_size(one.nan_to_num(0.0, 0.0, 0.0)), 1e-30)


def _size(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _eps(tensor: Tensor) -> float:
    """The relative rounding of such numbers; models may compute parts with 32 bits of 64."""
    return max(torch.finfo(kind).eps for kind in (tensor.dtype, torch.float32))


# --- which module it is --------------------------------------------------------------------------


def _culprit(probe: Probe, batch: Batch, cut: Sequence[int]) -> str:
    """The module that gives samples something else when it has them alone: the first whose inputs
    are the same and whose outputs are not. "loss" where there is none."""
    draws, names = SameDraws(sum(cut)), dict(probe.model.named_modules())
    with probe.alone(), torch.no_grad(), draws:
        whole = _seen(probe, batch)
    with probe.alone(), torch.no_grad(), draws:
        parts = list[Seen]()
        for begin, piece in _pieces(batch, cut):
            draws.take(begin, _samples(piece))
            parts.append(_seen(probe, piece))
    for key, (taken, given) in whole.items():
        own = [seen[key] for seen in parts if key in seen]
        if len(own) < len(cut) or not _rows(taken, [took for took, _ in own]):
            continue
        if _rows(given, [gave for _, gave in own]) is False:
            return f"{type(names[key[0]]).__name__} {key[0]}".strip()
    return "loss"


def _seen(probe: Probe, batch: Batch) -> Seen:
    """The calls of modules in a forward, in the order in which they end."""
    found, handles = Seen(), []

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        number = next(n for n in count() if (name, n) not in found)
        values = tensors_of((args, kwargs)), tensors_of(made)
        found[name, number] = [t.clone() for t in values[0]], [t.clone() for t in values[1]]

    for name, module in probe.model.named_modules():
        handles.append(module.register_forward_hook(partial(note, name), with_kwargs=True))
    try:
        probe.loss(batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _rows(whole: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> bool | None:
    """True if these values of the parts, one behind the other, are those of the whole; None where
    they do not lie so."""
    if any(len(own) != len(whole) for own in parts):
        return None
    for tensor, *own in zip(whole, *parts, strict=True):
        if not tensor.is_floating_point():
            continue
        if all(one.shape == tensor.shape for one in own):
            joined = [tensor] * len(own), own
        else:
            made = (torch.cat(own, dim) for dim in _growing(tensor, own))
            joined = [tensor], [one for one in made if one.shape == tensor.shape][:1]
        if len(joined[0]) != len(joined[1]):
            return None
        if not all(_near(a, b) for a, b in zip(*joined, strict=True)):
            return False
    return True


def _growing(whole: Tensor, own: Sequence[Tensor]) -> list[int]:
    """The dimension in which the parts are smaller than the whole, if it is the only one."""
    if any(one.dim() != whole.dim() for one in own):
        return []
    dims = [d for d in range(whole.dim()) if any(one.shape[d] != whole.shape[d] for one in own)]
    return dims if len(dims) == 1 else []
