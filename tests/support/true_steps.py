"""How long the steps of a plan with lengths last, where each op takes what the curves of a profile
say for the very sequences that its microbatch has in that step.

It shares no code with the planner or with emulated devices: it walks every round of every segment,
ops of a stream one after the other, each as soon as all that it waits for has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plans.samples import open_table, table_path
from plans.schema import Op, Plan, RoundKind, Segment, Shard, Task
from profiles.curves import curves_of
from profiles.schema import Layer, Profile

Load = tuple[int, int]  # tokens of a microbatch, and the sum of the squares of its sequences'
_Parts = tuple[tuple[str, int], ...]  # curves of a layer, added and taken away

_FORWARD: Mapping[str, _Parts] = {
    "recompute": (("forward", 1),),
    "saved": (("recompute_backward", 1), ("backward", -1)),
    "offload": (("pack_backward", 1), ("unpack_backward", -1)),
}
_BACKWARD: Mapping[str, _Parts] = {
    "recompute": (("recompute_backward", 1),),
    "saved": (("backward", 1),),
    "offload": (("unpack_backward", 1),),
}


def loads(task: Task, row: NDArray[np.uint16], lengths: Sequence[int], count: int) -> list[Load]:
    """The load of each of a step's microbatches; one without samples has a token of padding."""
    assert task.lengths
    held: list[list[int]] = [[] for _ in range(count)]
    for size, microbatch in zip(lengths, row.tolist(), strict=True):
        held[microbatch].append(size)
    if task.lengths.padded:
        held = [[max(own)] * len(own) if own else own for own in held]
    return [(sum(own) or 1, sum(n * n for n in own) or 1) for own in held]


class Truth:
    """Lives while a plan's steps are walked. lengths: of all samples."""

    def __init__(self, plan: Plan, path: str | Path, profile: Profile, lengths: ArrayLike) -> None:
        (self._task,) = plan.tasks
        self._plan, self._lengths = plan, np.asarray(lengths).tolist()
        (self._layers,) = (one.layers for one in profile.tasks)
        self._rows = open_table(table_path(path, self._task.name), self._task.batch)

    def step_us(self) -> list[float]:
        """How long after the one before it, or after enter, each step has ended."""
        found, first = list[float](), 0
        for segment in self._plan.segments:
            ends = list(self._ends(segment, first))
            found += [end - before for before, end in zip([0.0, *ends], ends, strict=False)]
            first += segment.rounds
        return found

    def _ends(self, segment: Segment, first: int) -> Iterator[float]:
        """When each round of a segment has ended, counted from the end of enter."""
        program, now = self._plan.program(segment.program), 0.0
        kinds = (RoundKind(program.tokens, 0, 0, program.round), *program.kinds)
        for kind, rounds in segment.kinds or ((0, segment.rounds),):
            before, streams = dict[str, float](), dict[str, float]()
            for _ in range(rounds):
                own = self._loads(first, len(kinds[kind].tokens))
                before = self._round(kinds[kind].ops, own, before, streams, now)
                yield max(before.values())
                first += 1
            now = max(streams.values())

    def _loads(self, step: int, count: int) -> list[Load]:
        batch, every = self._task.batch, self._lengths
        begin = (self._task.done + step) * batch
        own = [every[(begin + j) % len(every)] for j in range(batch)]
        return loads(self._task, self._rows[step], own, count)

    def _round(
        self,
        ops: Sequence[Op],
        own: Sequence[Load],
        before: Mapping[str, float],
        streams: dict[str, float],
        now: float,
    ) -> dict[str, float]:
        """When each op of a round ends, where those of the round before and streams ended then."""
        ends, waiting = dict[str, float](), list(ops)
        while waiting:
            blocked, rest = set[str](), list[Op]()
            for op in waiting:
                lags = [name[:-3] for name in op.after if name.endswith("@-1")]
                same = [name for name in op.after if not name.endswith("@-1")]
                if op.stream in blocked or not all(name in ends for name in same):
                    blocked.add(op.stream)
                    rest.append(op)
                    continue
                times = [ends[name] for name in same] + [before.get(name, now) for name in lags]
                begin = max(now, streams.get(op.stream, now), *times)
                ends[op.id] = streams[op.stream] = begin + self._us(op, own)
            assert len(rest) < len(waiting), "ops wait in a circle"
            waiting = rest
        return ends

    def _us(self, op: Op, own: Sequence[Load]) -> float:
        """A pass as its microbatch says; all else as planned."""
        name = op.name
        if name.item != "s" or name.kind not in "FBIW":
            return op.end_us - op.start_us
        shard, load = self._task.shards[name.number], own[name.index]
        return float(_pass_us(shard, name.kind, self._layers, load))


def _pass_us(shard: Shard, kind: str, layers: Sequence[Layer], load: Load) -> Fraction:
    parts = _parts(shard, kind)
    return sum(
        (
            sign * _curve_us(layer, what, load)
            for layer in layers[shard.first_layer : shard.end_layer]
            for what, sign in parts
        ),
        Fraction(),
    )


def _parts(shard: Shard, kind: str) -> _Parts:
    """The measured times that a pass adds up. I is a B without what W takes."""
    if kind == "W":
        return (("backward_weight", 1),)
    whole = (_FORWARD if kind == "F" else _BACKWARD)[shard.activations]
    return (*whole, ("backward", -1), ("backward_input", 1)) if kind == "I" else whole


def _curve_us(layer: Layer, what: str, load: Load) -> Fraction:
    (curve,) = (one for one in curves_of(layer.costs) if one.op == what)
    tokens, squares = load
    whole = curve.square_fs * squares + 1000 * curve.linear_ps * tokens + 10**6 * curve.fixed_ns
    return Fraction(whole, 10**9)
