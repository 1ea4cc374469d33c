"""Finds out if sequences of one microbatch see each other: some are packed, and each runs alone.

So that both can be compared, the model runs without chance, and without parameters that are all 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from executor.cutting import isolated, name_of, through
from executor.errors import text_of
from executor.numerics import OpMode, tensors_of
from executor.profiling.tokens.sequences import piece
from executor.profiling.tokens.summing import differ, loss_of
from executor.shards import Modes
from executor.workload import Batch, Task, lengths_of, pack

TO_PACK = (
    "to pack sequences, take positions as they are given (no torch.arange) and let attention, "
    "convolutions, recurrent layers and statistics see one of them at a time, in a loop inside of "
    "one module"
)

_BEFORE, _BEHIND = 17, 24  # the first is no multiple of a block of tokens
_ROUNDING = 64  # units in the last place of the largest value
_CHANCE = {"bernoulli", "exponential", "geometric", "log_normal", "normal", "random", "uniform"}
_CHANCE |= {f"rand{kind}{like}" for kind in ("", "n", "int") for like in ("", "_like")}
_DRAWN = 0.5  # instead of a number from anywhere; what may be dropped is kept


def mixes(task: Task, model: nn.Module, layers: Sequence[nn.Module], longest: int) -> str:
    """The reason why no two sequences may share a microbatch, empty where they may: the layer after
    which one of them is another than alone, as the task trains or evaluates.

    longest: the tokens of one that is packed between short ones."""
    lengths, modes = lengths_of(task), Modes(layers)
    places = (0, int(lengths.argmax()), len(lengths) // 2)
    sizes = (min(n, int(lengths.max())) for n in (_BEFORE, longest, _BEHIND))
    before, long, behind = (piece(task, n, at) for n, at in zip(sizes, places, strict=True))
    for training in (True, False) if task.evaluate else (True,):
        modes.train(training)
        try:
            with isolated(model), torch.no_grad(), _stirred(layers):
                for pieces in ([behind, before], [before, long, behind]):
                    if why := _apart(task, layers, pieces):
                        return why if training else f"{why}, in eval mode"
        except Exception as error:  # of the user's code, which one sequence alone goes through
            return f"two sequences in a microbatch: {text_of(error)}"
        finally:
            modes.train(True)
    return ""


def _apart(task: Task, layers: Sequence[nn.Module], pieces: Sequence[Batch]) -> str:
    """The reason why these pieces are not in one microbatch what each is alone, empty where they
    are."""
    batches = [pack(task, pieces), *(pack(task, [one]) for one in pieces)]
    values, compared = [batch.inputs for batch in batches], False
    for index, layer in enumerate(layers):
        with _Undrawn() as drawing:
            for n, batch in enumerate(batches):
                with isolated(layer):
                    values[n] = through(layer, values[n], batch.inputs)
        place = f"layer {index} ({name_of(layer)})"
        if drawing.unknown:
            return f"{place}: a sequence alone draws other numbers, by {drawing.unknown}"
        found = _differences(values, [one.size for one in pieces])
        if off := max(found, default=0.0):
            return f"{place}: a sequence is off by {off:.2g} of its size from what it is alone"
        compared = bool(found)
    if not compared:
        whole, *parts = (loss_of(task, *pair) for pair in zip(values, batches, strict=True))
        if differ(whole, *parts):
            return f"the loss of sequences is {whole:.6g} in one microbatch, {sum(parts):.6g} alone"
    return ""


class _Undrawn(OpMode):
    """While active, the same number is drawn for every token, whatever is drawn beside it.

    `unknown`: an operation that drew in another way, empty where none did."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown = ""

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        state, made = torch.default_generator.get_state(), func(*args, **kwargs)
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _CHANCE:
            for x in tensors_of(made):
                fixed = _DRAWN if x.is_floating_point() else x.flatten()[:1].clone()
                x.copy_(torch.as_tensor(1.0 if name == "bernoulli" else fixed))
        elif not torch.equal(state, torch.default_generator.get_state()):
            self.unknown = name
        return made


@contextmanager
def _stirred(layers: Sequence[nn.Module]) -> Iterator[None]:
    """While active, parameters that are all 0 are not, as they would hide what comes before them:
    the last product of a block that begins as the identity."""
    every = {id(p): p.data for layer in layers for p in layer.parameters()}
    still = [p for p in every.values() if p.numel() and p.is_floating_point() and not p.any()]
    before, generator = [p.clone() for p in still], torch.Generator().manual_seed(0)
    try:
        for p in still:
            bound = p.shape[-1] ** -0.5 if p.dim() else 1.0
            p.uniform_(-bound, bound, generator=generator)
        yield
    finally:
        for p, values in zip(still, before, strict=True):
            p.copy_(values)


def _differences(values: Sequence[Any], tokens: Sequence[int]) -> list[float]:
    """The distance of each tensor of the first value from the others', each of which has one
    sequence, of so many tokens; nothing of tensors that have no dimension for tokens."""
    every = [[x for x in tensors_of(value) if x.is_floating_point()] for value in values]
    spans, total = [*pairwise(accumulate(tokens, initial=0))], sum(tokens)
    return [
        _off(x.narrow(dim, begin, end - begin), y)
        for x, *alone in zip(*every, strict=True)
        for y, (begin, end) in zip(alone, spans, strict=True)
        if (dim := _rows(x, y, (total, end - begin))) is not None
    ]


def _rows(x: Tensor, y: Tensor, tokens: tuple[int, int]) -> int | None:
    """The dimension of x and y that is their tokens, of which they have so many; None where there
    is none, or they differ in others."""
    if x.dim() != y.dim():
        return None
    pairs = [*zip(x.shape, y.shape, strict=True)]
    unlike = [n for n, (mine, other) in enumerate(pairs) if mine != other]
    return unlike[0] if len(unlike) == 1 and pairs[unlike[0]] == tokens else None


def _off(x: Tensor, y: Tensor) -> float:
    """The largest difference over the largest value; 0 where it is rounding."""
    unlike = (x != y) & ~(x.isnan() & y.isnan())
    if not unlike.any():
        return 0.0
    size = y.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    apart = (x - y)[unlike].abs().nan_to_num(torch.inf).max().item()
    return 0.0 if apart <= _ROUNDING * torch.finfo(x.dtype).eps * size else apart / (size or 1.0)
