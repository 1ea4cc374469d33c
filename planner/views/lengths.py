"""The lengths of a task's samples, in words: how many are how long, and what is lost on padding.

Lengths may be hundreds of millions, mapped into memory: they are counted some at a time, and all
but what padding and packing lose is told from the counts. That is told of some steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.codec import ALIGNMENT
from profiles.console import columns
from profiles.schema import Task

Array = NDArray[np.int64]

_CHUNK = 1 << 22  # samples at once
_FINE_BITS = 20  # of lengths that are told apart
_TRIED = 1 << 18  # samples of the steps of which waste is told
_BAR = 24


@dataclass(frozen=True)
class Counts:
    """The count of each value among some numbers, values up to `unit` - 1 above it included."""

    counts: Array
    unit: int

    @property
    def values(self) -> Array:
        """The values, ascending."""
        return np.maximum(np.arange(len(self.counts)) * self.unit, 1)

    def quantile(self, part: float) -> int:
        """The smallest value that so large a part does not exceed."""
        sums = self.counts.cumsum()
        return int(self.values[np.searchsorted(sums, part * sums[-1])])


@dataclass(frozen=True)
class Waste:
    """A way to make microbatches: on average so many a step, the part of their tokens that is
    padding, and their compute over that of all sequences without any."""

    way: str
    microbatches: float
    padding: float
    compute: float


@dataclass(frozen=True)
class Shape:
    """The lengths of a task: of its samples, and of the longest sample of each step, as often as
    steps have them until the samples begin again. tried: steps of which waste is told."""

    task: Task
    samples: Counts
    longest: Counts
    room: int  # tokens of a microbatch
    tried: int
    wastes: tuple[Waste, ...]


def shape_of(task: Task, lengths: NDArray[np.uint32]) -> Shape:
    """The shape of these lengths of a task, with microbatches as large as its longest sample."""
    assert task.lengths is not None
    longest = task.lengths.longest
    unit = 1 << max(0, longest.bit_length() - _FINE_BITS)
    batch, steps = task.batch, min(task.steps, len(lengths) // task.batch)
    parts = (lengths[n : n + _CHUNK] for n in range(0, len(lengths), _CHUNK))
    some = max(1, _CHUNK // batch)
    rows = (
        lengths[n * batch : min(n + some, steps) * batch].reshape(-1, batch).max(axis=1)
        for n in range(0, steps, some)
    )
    room = -(-longest // ALIGNMENT) * ALIGNMENT
    tried = np.unique(np.linspace(0, steps - 1, max(1, min(steps, _TRIED // batch))).astype(int))
    work = [lengths[n * batch : (n + 1) * batch].astype(np.int64) for n in tried.tolist()]
    return Shape(
        task,
        _counted(parts, longest, unit),
        _counted(rows, longest, unit),
        room,
        len(tried),
        tuple(_wastes(task, work, room)),
    )


def _counted(parts: Iterator[NDArray[np.uint32]], longest: int, unit: int) -> Counts:
    found = np.zeros(longest // unit + 1, np.int64)
    for part in parts:
        found += np.bincount(part // unit if unit > 1 else part, minlength=len(found))
    return Counts(found, unit)


Laid = tuple[int, int, int]  # microbatches; their tokens; squares of lengths that attention goes by


def _to_longest_of_step(lengths: Array, room: int) -> Laid:
    longest, count = int(lengths.max()), len(lengths)
    return -(-count // (room // longest)), count * longest, count * longest**2


def _to_longest_of_microbatch(lengths: Array, room: int) -> Laid:
    ordered, at = -np.sort(-lengths), 0
    microbatches = tokens = squares = 0
    while at < len(ordered):
        longest = int(ordered[at])
        rows = min(room // longest, len(ordered) - at)
        microbatches, at = microbatches + 1, at + rows
        tokens, squares = tokens + rows * longest, squares + rows * longest**2
    return microbatches, tokens, squares


def _in_turn(lengths: Array, room: int) -> Laid:
    sums, at, microbatches = lengths.cumsum(), 0, 0
    while at < len(sums):
        before = int(sums[at - 1]) if at else 0
        at = int(np.searchsorted(sums, before + room, side="right"))
        microbatches += 1
    return microbatches, microbatches * room, int(lengths @ lengths)


_WAYS: tuple[tuple[str, Callable[[Array, int], Laid]], ...] = (
    ("padded to the longest of the step", _to_longest_of_step),
    ("sorted, padded to the longest of the microbatch", _to_longest_of_microbatch),
    ("packed in turn into microbatches of one length", _in_turn),
)


def _wastes(task: Task, steps: list[Array], room: int) -> Iterator[Waste]:
    curves = [c for one in task.layers for c in one.curves if c.op in ("forward", "backward")]
    square, linear = (sum(getattr(c, f) for c in curves) for f in ("square_fs", "linear_ps"))
    fixed = sum(curve.fixed_ns for curve in curves)

    def fs(microbatches: int, tokens: int, squares: int) -> int:
        found: int = square * squares + 10**3 * linear * tokens + 10**6 * fixed * microbatches
        return found

    tokens = sum(int(one.sum()) for one in steps)
    least = sum(fs(-(-int(one.sum()) // room), int(one.sum()), int(one @ one)) for one in steps)
    for way, lay in _WAYS:
        laid = [lay(one, room) for one in steps]
        microbatches, taken, squares = (sum(values) for values in zip(*laid, strict=True))
        compute = fs(microbatches, taken, squares) / max(1, least)
        yield Waste(way, microbatches / len(steps), 1 - tokens / taken, compute)


def describe_lengths(shape: Shape) -> str:
    """The shape for people: a histogram, the longest of the steps, and what is lost."""
    lengths, longest = shape.samples, shape.longest
    said, task = shape.task.lengths, shape.task
    assert said is not None
    steps = int(longest.counts.sum())
    lines = [
        f"{task.name}: {said.samples:,} samples, {said.tokens:,} tokens; mean "
        f"{said.tokens / said.samples:,.0f}, {_quantiles(lengths)}, longest {said.longest:,}",
        *(f"  each sequence has a microbatch of its own; {x}" for x in (said.why_not,) if x),
        "",
        *("  " + line for line in columns(_histogram(lengths), numbers=True)),
        "",
        f"  the longest of the {task.batch:,} samples of a step, of {steps:,} steps: "
        f"{_quantiles(longest)}",
        f"  in microbatches of {shape.room:,} tokens, of {shape.tried:,} of the steps:",
    ]
    rows = [("way", "microbatches", "padding", "compute")]
    rows += [
        (one.way, f"{one.microbatches:.1f}", f"{one.padding:.1%}", f"{one.compute:.2f}")
        for one in shape.wastes
    ]
    lines += ["    " + line for line in columns(rows, numbers=True)]
    lines.append("  compute: over that of all sequences in as few microbatches, without padding")
    return "\n".join(lines)


def _quantiles(of: Counts) -> str:
    return f"median {of.quantile(0.5):,}, p90 {of.quantile(0.9):,}, p99 {of.quantile(0.99):,}"


def classes(of: Counts) -> list[tuple[int, int, float, float, float]]:
    """The classes of lengths, from a power of two to the next or the longest: of each its first
    length and that behind it, and its part of the samples, of tokens, and of squares of lengths."""
    last = int(of.values[-1])
    edges = [*(1 << n for n in range(last.bit_length())), last + of.unit]
    places = np.searchsorted(of.values, edges)
    values = of.values.astype(float)
    weights = [of.counts.astype(float) * values**power for power in (0, 1, 2)]
    sums = [np.concatenate([[0.0], weight.cumsum()]) for weight in weights]
    parts = [(total[places[1:]] - total[places[:-1]]) / max(total[-1], 1.0) for total in sums]
    found = zip(edges, edges[1:], *(part.tolist() for part in parts), strict=False)
    return [row for row in found if row[2]]


def _histogram(of: Counts) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("tokens", "samples", "of tokens", "up to here", "of squares", "")
    ]
    told = classes(of)
    most, before = max(row[2] for row in told), 0.0
    for first, end, samples, tokens, squares in told:
        before += tokens
        parts = (f"{part:.1%}" for part in (samples, tokens, before, squares))
        bar = "#" * round(_BAR * samples / most)
        rows.append((f"{first:,} - {end - 1:,}", *parts, bar.ljust(_BAR)))
    return rows
