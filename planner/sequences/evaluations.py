"""Evaluations of a task with lengths: all their samples packed once, into rounds of one kind.

Every device has the whole model, and the same number of microbatches in each round. With R rounds
the first R of a device's microbatches are the first ones of the rounds, the next R the second ones,
and so on: what is packed together has descending tokens.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from planner.errors import Infeasible
from planner.lowering import evaluating
from planner.packing import Array, How, LengthsTask, PipelineType, Pool, bucket, loads, pack_step
from planner.search import Evaluations
from planner.shards import Planned
from plans import samples
from plans.schema import Lengths, Program
from profiles.errors import FormatError
from profiles.lengths import held_out

_MOST = 8  # microbatches of a device in a round
_BLOCK = 1024  # samples that are packed together: more would take longer, and pack no better


def evaluations(asked: LengthsTask, strategy: Planned, tables: Path) -> tuple[Program, Evaluations]:
    """The program that evaluates on the devices of a way to train, packed as is asked, and what a
    plan says of it; its table is in this folder. Microbatches are as large as the largest of
    training, or where a device has no memory for that as the longest sample; Infeasible where it
    has none for that either."""
    try:
        return _evaluations(asked, strategy, tables, strategy.costs.microbatch)
    except Infeasible:
        return _evaluations(asked, strategy, tables, bucket(int(_lengths(asked).max())))


def _evaluations(
    asked: LengthsTask, strategy: Planned, tables: Path, most: int
) -> tuple[Program, Evaluations]:
    """The evaluation in microbatches of at most so many tokens."""
    how, devices, said = asked.hows[0], asked.devices, asked.task.evaluation_lengths
    assert said
    row, rounds, held = _packed(asked, most, how)
    program = _program(asked, strategy, held, most, rounds)
    table = tables / f"{held_out(asked.task.name)}.{devices}"
    digest = samples.write(table, [row])
    lengths = Lengths(said.sha256, said.samples, digest, padded=how == "pad")
    return program, Evaluations(rounds, lengths, table)


def _lengths(asked: LengthsTask) -> Array:
    assert asked.held_out is not None
    return asked.held_out.astype(np.int64)


def _packed(asked: LengthsTask, most: int, how: How) -> tuple[Array, int, Array]:
    """The microbatch of every sample, numbered through the rounds; the number of these; and the
    tokens and squares of each microbatch (2 x rounds x microbatches)."""
    lengths, devices = _lengths(asked), asked.devices
    (curve,) = asked.curves(most, lambda costs: [costs.total("forward_us")])
    pool = Pool((PipelineType(curve, 1, most, devices),))
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
    held = loads(row, lengths, size, padded=how == "pad")
    return row, rounds, held.reshape(2, rounds, -1)


def _places(pool: Pool, lengths: Array, how: How) -> tuple[Array, Array]:
    """The device of every sample, and the number of its microbatch among those of this device."""
    device, number = np.empty((2, len(lengths)), np.int64)
    counts = np.zeros(pool.pipelines, np.int64)
    for own in np.array_split(np.arange(len(lengths)), -(-len(lengths) // _BLOCK)):
        step = pack_step(pool, lengths[own], how)
        firsts = np.cumsum(step.counts) - step.counts
        device[own] = np.searchsorted(firsts, step.groups, side="right") - 1
        number[own] = step.groups + (counts - firsts)[device[own]]
        counts += step.counts
    return device, number


def _program(asked: LengthsTask, strategy: Planned, held: Array, most: int, rounds: int) -> Program:
    """The program whose microbatches take what those of all rounds do in the mean; of the tokens
    and squares of each (2 x rounds x microbatches), padding has one."""
    task = asked.task
    assert task.evaluation
    means = np.maximum(held, 1).mean(axis=1).round().astype(int)
    used, squares = np.maximum(1, means.mean(axis=1).astype(int)).tolist()
    mean = asked.costs(most, squares, used, means.shape[1])
    evaluation = structs.replace(task.evaluation, batches=rounds)
    costs = replace(mean, task=structs.replace(mean.task, evaluation=evaluation))
    program = evaluating(
        replace(strategy, costs=costs),
        asked.links,
        asked.kind.device_bytes,
        devices=asked.devices,
        each=[asked.costs(most, q, t) for t, q in means.T.tolist()],
    )
    return structs.replace(program, tokens=tuple(map(bucket, held[0].max(axis=0).tolist())))
