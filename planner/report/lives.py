"""From when to when the buffers of a device hold something that is still read.

A write that does not read begins a value; it ends with the last op before the next such write.

    writes P0 ..... reads F0 ... reads B0   |   nothing   |   writes P4 ... reads F4
    |------------- a life ----------------|                   |--------- another
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from plans.ops import OpKind
from plans.schema import Program, Task
from plans.timing import Phase, kinds_of, scaled


class Life(NamedTuple):
    """A value on a device of a program, in µs since its phase began. name: of a buffer, or the op
    whose graph it is."""

    device: int
    name: str
    bytes: int
    start_us: int
    end_us: int


class _Use(NamedTuple):
    start_us: int
    end_us: int
    begins: bool  # it writes and does not read


def lives(program: Program, phase: Phase, tasks: Mapping[str, Task]) -> list[Life]:
    """All of a phase, in order of time; of rounds those that begin in one, which may end in the
    next. A buffer into which a round puts nothing new holds its value throughout."""
    uses: dict[str, list[_Use]] = {}
    for op in sorted(phase.ops, key=lambda op: op.start_us):
        reads = set(op.reads.values())
        for name in reads.union(op.writes.values()):
            uses.setdefault(name, []).append(_Use(op.start_us, op.end_us, name not in reads))
    found = [
        Life(int(buffer.space), buffer.name, buffer.bytes, start, end)
        for buffer in program.buffers
        if buffer.name in uses
        for start, end in _spans(uses[buffer.name], phase)
    ]
    if phase.name == "round" and not program.evaluates:
        found += _graphs(program, phase, tasks)
    return sorted(found, key=lambda life: life.start_us)


def _spans(uses: Sequence[_Use], phase: Phase) -> Iterator[tuple[int, int]]:
    begins = [place for place, use in enumerate(uses) if use.begins]
    if phase.name == "round":
        if not begins:
            yield 0, phase.period_us
            return
        later = [use._replace(end_us=use.end_us + phase.period_us) for use in uses[: begins[0]]]
        uses = [*uses, *later]
    elif begins[:1] != [0]:  # what was there before
        begins = [0, *begins]
    for first, behind in pairwise([*begins, len(uses)]):
        stays = phase.name == "enter" and behind == len(uses)
        ends = (op.end_us for op in phase.ops) if stays else _ends(uses[first:behind])
        yield (uses[first].start_us if uses[first].begins else 0), max(ends)


def _ends(uses: Iterable[_Use]) -> Iterator[int]:
    return (use.end_us for use in uses)


def _graphs(program: Program, phase: Phase, tasks: Mapping[str, Task]) -> Iterator[Life]:
    """The lives of graphs in the reserve: from a forward to its backward, or from I to its W."""
    ops = {op.id: op for op in phase.ops}
    tokens = kinds_of(program)[phase.kind].tokens
    for op in phase.ops:
        name = op.name
        if name.item != "s" or name.kind not in (OpKind.FORWARD, OpKind.INPUT_GRAD):
            continue
        task = tasks[name.task]
        shard = task.shards[name.number]
        size = shard.saved_bytes if shard.activations == "saved" else 0
        ends = [OpKind.BACKWARD, OpKind.INPUT_GRAD]
        if name.kind is OpKind.INPUT_GRAD:
            size, ends = shard.left_bytes, [OpKind.WEIGHT_GRAD]
        size = scaled(size, tokens[name.index], task.microbatch) if tokens else size
        after = [ops[key] for kind in ends if (key := str(replace(name, kind=kind))) in ops]
        if size and after:
            yield Life(op.queue.device, f"graph of {op.id}", size, op.end_us, after[0].end_us)
