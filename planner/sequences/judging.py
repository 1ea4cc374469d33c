"""Evaluations of a task with lengths: all their samples packed once, into rounds of one kind.

Every device has the whole model, and the same number of microbatches in each round. With R rounds
the first R of a device's microbatches are the first ones of the rounds, the next R the second ones,
and so on: what is packed together has descending tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

from planner.dispatch import Curve, PipelineType, Pool
from planner.errors import Infeasible
from planner.lowering import evaluating
from planner.packing import Array, Asked, How, bucket, laid_out
from planner.search import Judging
from planner.shards import Planned
from plans import samples
from plans.schema import Lengths, Program
from plans.timing import duration_us
from profiles.errors import FormatError
from profiles.lengths import held_out

_MOST = 8  # microbatches of a device in a round
_BLOCK = 1024  # samples that are packed together: more would take longer, and pack no better


class Judged(NamedTuple):
    """The program that evaluates, and what a plan says of it."""

    program: Program
    said: Judging


@dataclass(frozen=True, eq=False)
class _Packed:
    """row: the microbatch of every sample, numbered through the rounds. tokens, squares: of each of
    these microbatches (rounds x microbatches)."""

    row: Array
    tokens: Array
    squares: Array

    @property
    def rounds(self) -> int:
        return len(self.tokens)


def judged(asked: Asked, strategy: Planned, tables: Path) -> Judged:
    """The shortest evaluation found on the devices of a way to train, packed as is asked, with its
    table in this folder: microbatches are as large as the largest of training, or as the longest
    sample. Infeasible where a device has no memory for that."""
    how, devices = asked.hows[0], asked.devices
    tried = list[tuple[int, _Packed, Program]]()
    failed: Infeasible | None = None
    for most in sorted({strategy.costs.microbatch, bucket(int(_lengths(asked).max()))}):
        found = _packed(asked, most, how, devices)
        try:
            program = _program(asked, strategy, found, most, devices)
        except Infeasible as error:
            failed = failed or error
            continue
        tried.append((duration_us(program, found.rounds), found, program))
    if not tried:
        raise failed or AssertionError("one is tried")
    _, found, program = min(tried, key=lambda one: one[0])
    said = asked.task.evaluation_lengths
    assert said
    table = tables / f"{held_out(asked.task.name)}.{devices}"
    digest = samples.write(table, [found.row])
    lengths = Lengths(said.sha256, said.samples, digest, padded=how == "pad")
    return Judged(program, Judging(found.rounds, lengths, table))


def _lengths(asked: Asked) -> Array:
    assert asked.judged is not None
    return asked.judged.astype(np.int64)


def _packed(asked: Asked, most: int, how: How, devices: int) -> _Packed:
    """All samples, some of them after the other, in microbatches of at most so many tokens."""
    lengths = _lengths(asked)
    pool = Pool((PipelineType(_curve(asked, most), 1, most, devices),))
    device, number = _places(pool, lengths, how)
    longest = int(number.max()) + 1
    rounds = -(-longest // _MOST)
    each = -(-longest // rounds)  # microbatches of a device in a round
    size = rounds * devices * each
    if size > samples.MOST:
        raise FormatError(
            f"{asked.task.name}: its evaluation has {size} microbatches, a table has numbers for "
            f"{samples.MOST}; evaluate it on fewer samples"
        )
    place, turn = np.divmod(number, rounds)
    row = (turn * devices + device) * each + place
    if how == "pad":
        widest = np.zeros(size, np.int64)
        np.maximum.at(widest, row, lengths)
        tokens = widest * np.bincount(row, minlength=size)
        squares = tokens * widest
    else:
        tokens = np.bincount(row, lengths, size).astype(np.int64)
        squares = np.bincount(row, lengths * lengths, size).astype(np.int64)
    return _Packed(row, tokens.reshape(rounds, -1), squares.reshape(rounds, -1))


def _places(pool: Pool, lengths: Array, how: How) -> tuple[Array, Array]:
    """The device of every sample, and the number of its microbatch among those of this device."""
    device, number = np.empty((2, len(lengths)), np.int64)
    counts = np.zeros(pool.pipelines, np.int64)
    for own in np.array_split(np.arange(len(lengths)), -(-len(lengths) // _BLOCK)):
        step = laid_out(pool, lengths[own], how)
        firsts = np.cumsum(step.counts) - step.counts
        device[own] = np.searchsorted(firsts, step.groups, side="right") - 1
        number[own] = step.groups + (counts - firsts)[device[own]]
        counts += step.counts
    return device, number


def _curve(asked: Asked, most: int) -> Curve:
    """The time of a microbatch's forwards through all layers."""
    a, b, c = (
        asked.costs(most, squares, used).total("forward_us")
        for squares, used in ((0, 1), (0, most), (most * most, most))
    )
    return Curve(max(0.0, (c - b) / most**2), (b - a) / (most - 1), float(a))


def _program(asked: Asked, strategy: Planned, found: _Packed, most: int, devices: int) -> Program:
    """The program whose microbatches take what those of all rounds do in the mean."""
    task = asked.task
    assert task.evaluation
    pairs = [*_means(found)]
    squares, used = (max(1, sum(column) // len(pairs)) for column in zip(*pairs, strict=True))
    mean = asked.costs(most, squares, used, len(pairs))
    evaluation = structs.replace(task.evaluation, batches=found.rounds)
    costs = replace(mean, task=structs.replace(mean.task, evaluation=evaluation))
    program = evaluating(
        replace(strategy, costs=costs),
        asked.links,
        asked.kind.device_bytes,
        devices=devices,
        each=[asked.costs(most, *pair) for pair in pairs],
    )
    tokens = tuple(bucket(int(own)) for own in found.tokens.max(axis=0))
    return structs.replace(program, tokens=tokens)


def _means(found: _Packed) -> Iterator[tuple[int, int]]:
    """The squares and tokens of each microbatch of a round in the mean; padding has one."""
    for squares, tokens in zip(found.squares.T, found.tokens.T, strict=True):
        yield round(np.maximum(squares, 1).mean()), round(np.maximum(tokens, 1).mean())
