"""Samples of every length: what the data gives of each, and several of them as one microbatch.

Tensors are tokens first and have no batch dimension. A microbatch is made of pieces, samples and
padding, one behind the other; each piece is a sequence of its own, so that nothing attends to
padding, and padding to nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from executor.errors import RunError
from executor.numerics import mapped, tensors_of
from executor.workload.contents import weigh
from executor.workload.loss import IGNORED, Batch
from executor.workload.task import Task

Form = tuple[Any, tuple[tuple[torch.dtype, torch.Size], ...]]  # of one token


def lengths_of(task: Task) -> NDArray[np.uint32]:
    """The tokens of each of the task's samples."""
    return np.asarray(task.lengths).astype(np.uint32, copy=False)


def weight_of(task: Task, number: int, sample: Batch) -> float:
    """The weight of a sample in the mean of losses: as the task says, or its tokens that have a
    target. RunError where that is no number, or cannot be seen."""
    if task.weights is not None:
        return float(np.asarray(task.weights)[number])
    if task.weight is not None:
        return weigh(task.weight, tuple(sample))
    signed = [y for y in tensors_of(sample.targets) if y.dim() and _nothing(y) == IGNORED]
    each = [(y != IGNORED).reshape(len(y), -1).any(1) for y in signed]
    for n, own in enumerate(each):
        if not torch.equal(own, each[0]):
            raise RunError(
                f"sample {number} has {int(each[0].sum())} targets that are not {IGNORED} in its "
                f"first tensor of targets and {int(own.sum())} in number {n + 1}, or others; say "
                "what a sample counts: weight=lambda sample: ..."
            )
    return float(each[0].sum()) if each else float(sample.size)


def held_out(task: Task) -> Task:
    """The task as if it had the samples that it is evaluated on."""
    own = task.evaluate
    assert own is not None
    return replace(task, data=own.data, lengths=own.lengths, weights=own.weights)


def take(task: Task, samples: Sequence[int]) -> list[Batch]:
    """These samples, in this order, detached. RunError where they are not as many as asked for, not
    as long as the lengths say, or not alike; whatever else the data raises goes on."""
    given = task.data(list(samples))
    if not isinstance(given, list | tuple):
        raise RunError(f"returned a {type(given).__name__}, not a list of (inputs, targets)")
    if len(given) != len(samples):
        raise RunError(f"returned {len(given)} samples, asked for were {len(samples)}")
    taken = [_sample(n, one, int(task.lengths[n])) for n, one in zip(samples, given, strict=True)]
    for n, one in zip(samples, taken, strict=True):
        check_alike(one, taken[0], f"sample {n}", f"sample {samples[0]}")
    return taken


def check_alike(one: Batch, other: Batch, mine: str, theirs: str) -> None:
    """RunError for two samples, by these names, whose tokens are of different forms."""
    if (form := _form(one)) != (first := _form(other)):
        raise RunError(f"{mine} has tokens of {_told(form)}, {theirs} of {_told(first)}")


def beginning(task: Task, tokens: int) -> Batch:
    """A microbatch of so many tokens or more: of the first samples, as few as that takes."""
    lengths = lengths_of(task)
    numbers, found = [0], int(lengths[0])
    while found < tokens:
        numbers.append((numbers[-1] + 1) % len(lengths))
        found += int(lengths[numbers[-1]])
    return pack(task, take(task, numbers))


def padding(like: Batch, tokens: int) -> Batch:
    """So many tokens of padding for samples like this one: inputs of 0, and targets that
    cross_entropy leaves out."""
    return Batch(
        mapped(lambda x: x.new_zeros((tokens, *x.shape[1:])), like.inputs),
        mapped(lambda y: y.new_full((tokens, *y.shape[1:]), _nothing(y)), like.targets),
    )


def silent(sample: Batch) -> Batch:
    """The sample with the targets of padding, which have no loss."""
    return Batch(sample.inputs, padding(sample, sample.size).targets)


def padded(samples: Sequence[Batch], row: int) -> list[Batch]:
    """The samples, each followed by as much padding as a row of so many tokens needs."""
    pieces: list[Batch] = []
    for sample in samples:
        missing = row - sample.size
        pieces += [sample, padding(sample, missing)] if missing else [sample]
    return pieces


def joined(pieces: Sequence[Batch]) -> Batch:
    """Pieces of one form, their tensors one behind the other."""
    if len(pieces) == 1:
        return pieces[0]
    flat = [tree_flatten(tuple(piece)) for piece in pieces]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    made = [torch.cat(c) if isinstance(c[0], Tensor) else c[0] for c in columns]
    return Batch(*tree_unflatten(made, flat[0][1]))


def pack(task: Task, pieces: Sequence[Batch]) -> Batch:
    """A microbatch of these pieces, at least one: its inputs are the arguments of the model.

    RunError where the task's `arguments` give tensors that have another number of tokens."""
    inputs, targets = joined(pieces)
    counts = torch.tensor([piece.size for piece in pieces])
    total = int(counts.sum())
    sequences = torch.repeat_interleave(torch.arange(len(pieces)), counts)
    positions = torch.arange(total) - (counts.cumsum(0) - counts)[sequences]
    given = (task.arguments or arguments)(inputs, positions, sequences)
    for tensor in tensors_of(given):
        if not tensor.dim() or len(tensor) != total:
            raise RunError(
                f"arguments gave a tensor of shape {list(tensor.shape)} for a microbatch of "
                f"{total} tokens; each must have the tokens as its first dimension"
            )
    return Batch(given, targets)


def arguments(inputs: Any, positions: Tensor, sequences: Tensor) -> Any:
    """The arguments of a model whose task does not say them."""
    if isinstance(inputs, dict):
        return inputs | {"position_ids": positions, "sequence_ids": sequences}
    if isinstance(inputs, tuple | list):
        return (*inputs, positions, sequences)
    return (inputs, positions, sequences)


def _sample(number: int, given: Any, tokens: int) -> Batch:
    if not isinstance(given, list | tuple) or len(given) != 2 or not tensors_of(given[0]):
        raise RunError(f"sample {number} is something else than a pair of inputs and targets")
    for whose, value in (("", given[0]), ("the targets of ", given[1])):
        for tensor in tensors_of(value):
            found = len(tensor) if tensor.dim() else 0
            if found != tokens:
                verb = "have" if whose else "has"
                raise RunError(
                    f"{whose}sample {number} {verb} {found} tokens, lengths say {tokens}"
                )
    return Batch(*(mapped(Tensor.detach, value) for value in given))


def _form(sample: Batch) -> Form:
    leaves, tree = tree_flatten(tuple(sample))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return tree, tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors)


def _told(form: Form) -> str:
    return ", ".join(f"{str(dtype)[6:]}{list(shape)}" for dtype, shape in form[1])


def _nothing(target: Tensor) -> int:
    signed = target.dtype.is_signed and not target.is_floating_point() and not target.is_complex()
    return IGNORED if signed else 0
