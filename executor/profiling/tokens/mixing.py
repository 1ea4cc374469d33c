"""Finds out if sequences of one microbatch see each other: two are packed, and one is changed."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from executor.cutting import isolated, name_of, through
from executor.errors import text_of
from executor.numerics import mapped, tensors_of
from executor.profiling.tokens.sequences import piece
from executor.workload import Batch, Task, lengths_of, pack, tokens_of

_LENGTHS = (24, 17)
_ROUNDING = 64  # units in the last place of the largest value

Seen = list[list[Tensor]]  # what each layer makes, its numbers of each token


def mixes(task: Task, model: nn.Module, layers: Sequence[nn.Module]) -> str:
    """The reason why no two sequences may share a microbatch, empty where they may: the layer after
    which one of them is another when the other one changes, or when there is no other one."""
    longest = int(lengths_of(task).max())
    places = (0, len(lengths_of(task)) // 2)
    a, b = (piece(task, min(n, longest), at) for n, at in zip(_LENGTHS, places, strict=True))
    first, second = slice(None, tokens_of(a)), slice(tokens_of(a), None)
    changing = "changes by {} when another one of its microbatch does"
    missing = "is off by {} from what it is without the others of its microbatch"
    try:
        both, draws = _run(task, model, layers, [a, b])
        for words, kept, pieces in (
            (changing, second, [_other(a), b]),
            (changing, first, [a, _other(b)]),
            *([] if draws else [(missing, first, [a]), (missing, second, [b])]),
        ):
            seen, _ = _run(task, model, layers, pieces)
            alone = slice(None) if len(pieces) == 1 else kept
            for layer, was, now in zip(layers, both, seen, strict=True):
                pairs = zip(was, now, strict=True)
                off = max((_off(x[kept], y[alone]) for x, y in pairs), default=0.0)
                if off:
                    place = f"layer {layers.index(layer)} ({name_of(layer)})"
                    return f"{place}: a sequence {words.format(f'{off:.2g} of its size')}"
    except Exception as error:  # of the user's code, which one sequence alone goes through
        return f"two sequences in a microbatch: {text_of(error)}"
    return ""


def _run(
    task: Task, model: nn.Module, layers: Sequence[nn.Module], pieces: Sequence[Batch]
) -> tuple[Seen, bool]:
    """The layers' outputs for a microbatch, always from the same random state; True if they draw
    random numbers."""
    inputs = pack(task, pieces).inputs
    tokens = sum(map(tokens_of, pieces))
    seen: Seen = []
    with isolated(model), torch.no_grad():
        state, value = torch.default_generator.get_state(), inputs
        for layer in layers:
            value = through(layer, value, inputs)
            found = [x for x in tensors_of(value) if x.is_floating_point()]
            seen.append([x.clone() for x in found if x.dim() and len(x) == tokens])
        draws = not torch.equal(state, torch.default_generator.get_state())
    return seen, draws


def _other(sample: Batch) -> Batch:
    """A sample of its length that has the first token again and again."""
    return Batch(mapped(lambda x: x[:1].expand_as(x), sample.inputs), sample.targets)


def _off(x: Tensor, y: Tensor) -> float:
    """The largest difference over the largest value; 0 where it is rounding."""
    size, apart = x.abs().max().item(), (x - y).abs().max().item()
    return apart / size if apart > _ROUNDING * torch.finfo(x.dtype).eps * size else 0.0
