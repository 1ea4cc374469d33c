"""An estimate of a task whose samples have lengths: its costs at several lengths, with curves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from planner.estimate.kernels import Size
from planner.estimate.models import Model
from profiles import lengths as files
from profiles.codec import ALIGNMENT
from profiles.curves import curves_of, us
from profiles.errors import FormatError
from profiles.schema import Layer, Task

Lengths = NDArray[np.uint32]

_SIZES = 6  # at most, and at least one more than a curve has coefficients
_LEAST = 4 * ALIGNMENT  # tokens of the longest, so that there are enough
_LONGEST = 1 << 24  # tokens of a sample: keeps every figure within what the format holds


def read(path: str | Path) -> Lengths:
    """The lengths in a file: a list in JSON, alone or under "lengths", or a numpy array (.npy).
    FormatError where there are none, or some are no numbers of tokens."""
    try:
        given = np.load(path) if Path(path).suffix == ".npy" else _listed(Path(path))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path}: is neither JSON nor a numpy array: {error}") from None
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
        raise FormatError(
            f"{path}: has values of type {given.dtype} and shape {list(given.shape)}, expected a "
            "list of whole numbers, the tokens of every sample"
        )
    wrong = np.flatnonzero((given < 1) | (given > _LONGEST))
    if len(wrong):
        raise FormatError(
            f"{path}: sample {wrong[0]} has {given[wrong[0]]} tokens, expected 1 to {_LONGEST}"
        )
    return np.asarray(given, np.uint32)


def _listed(path: Path) -> NDArray[Any]:
    found = json.loads(path.read_text())
    return np.array(found.get("lengths") if isinstance(found, dict) else found)


def sizes_of(model: Model, lengths: Lengths, number: int) -> list[Size]:
    """Single sequences from short ones to the longest, of multiples of 256 tokens."""
    longest = int(lengths.max())
    if model.positions and longest > model.positions:
        raise FormatError(
            f"{model.name} has {model.positions} positions, the longest sample has {longest} "
            "tokens; cut samples, or take a model without a table of positions"
        )
    top = max(_LEAST, longest) / ALIGNMENT
    units = {int(units) for units in np.ceil(np.geomspace(1, top, _SIZES))}
    return [Size(model, 1, units * ALIGNMENT, number) for units in sorted(units)]


def by_tokens(task: Task, lengths: Lengths) -> Task:
    """The task, whose microbatches are of one sequence of so many tokens each, with `lengths`."""
    return structs.replace(task, lengths=files.describe(lengths))


def step_us(layers: Sequence[Layer], lengths: Lengths, batch: int) -> list[int]:
    """The times of a mean step's forwards and of its backwards, all its sequences together."""
    sums = lengths.sum(dtype=np.float64), np.einsum("i,i", lengths, lengths, dtype=np.float64)
    tokens, squares = (round(float(one) / len(lengths) * batch) for one in sums)
    curves = [curve for one in layers for curve in curves_of(one.costs)]
    return [
        sum(us(curve, tokens, squares) for curve in curves if curve.op == op)
        for op in ("forward", "backward")
    ]


def in_words(lengths: Lengths) -> str:
    """A line with the number of samples and their least, most and mean tokens."""
    least, most = int(lengths.min()), int(lengths.max())
    mean = float(lengths.mean())
    return f"{len(lengths)} samples of {least} to {most} tokens, in the mean {mean:.0f}"
