"""Bounds on the steps of a task whose samples have lengths."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from support import synthetic
from support.synthetic import time_us
from support.texts import text_task, us_of

from planner.bounds.lengths import bounds_by_lengths, compute_us, dispatch_us, judged_us, longest_us
from planner.inputs import DeviceGroup
from planner.packing import Curve, PipelineType, Pool
from planner.packing.asked import LengthsTask
from profiles.curves import OPS
from profiles.schema import Evaluation, Layer, LayerCost, Task

FORMULA = (2_000_000, 3_000_000, 0)
LENGTHS = np.array([100, 2000, 300, 700, 50], np.uint32)


def asked(task: Task, done: int = 0) -> LengthsTask:
    kind = DeviceGroup.of("cpu", synthetic.profile(task, usable_bytes=1 << 30), 2, None)
    return LengthsTask(task, LENGTHS, kind, 1 << 30, done)


def with_times(layer: Layer, times: Callable[[LayerCost], Mapping[str, int]]) -> Layer:
    """The layer with other medians in µs of some ops at each length."""
    costs = [
        structs.replace(cost, **{op: time_us(us) for op, us in times(cost).items()})
        for cost in layer.costs
    ]
    return structs.replace(layer, costs=tuple(costs))


@pytest.mark.parametrize("done", [0, 3])
def test_compute_is_every_sample_of_every_step_by_itself(done: int) -> None:
    """Three times the formula of a forward, on both devices, for samples that begin again."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    samples = [int(LENGTHS[n % 5]) for n in range(3 * done, 3 * done + 12)]
    whole = sum(3 * len(task.layers) * us_of(FORMULA, s, s * s) for s in samples)
    assert 0.99 * whole / 2 <= compute_us(asked(task, done), 2) <= whole / 2


def test_tasks_that_have_come_as_far_have_the_same_bounds() -> None:
    """Of one model and the same samples; those of other steps have others."""
    names = ("a", "b", "c")
    tasks = [text_task(n, lengths=LENGTHS, batch=3, steps=4, formula=FORMULA) for n in names]
    problem = synthetic.problem(*tasks, usable_bytes=1 << 30, devices=2)
    done = {"b": 3, "c": 3}
    first, *others = bounds_by_lengths(
        replace(problem, lengths=dict.fromkeys(names, LENGTHS), done=done)
    )
    assert others[0] == others[1] != first
    assert others[0][0, 1].us("compute") == compute_us(asked(tasks[1], 3), 1) // 4


def test_a_forward_that_is_recomputed_may_be_shorter_than_one_alone() -> None:
    """By what each microbatch saves at most, one for every sample."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    held, saved = np.array([1000, 900], np.uint32), 1_000_000
    layer = with_times(
        task.layers[0], lambda one: {"backward": one.backward.median_us + saved // 1000}
    )
    judged = structs.replace(task, layers=(layer,) * 4, evaluation=Evaluation(4, 1))
    whole = 4 * sum(us_of(FORMULA, int(s), int(s) ** 2) - saved / 1000 for s in held)
    assert 0.99 * whole <= judged_us(judged, held, 0) <= whole


def test_parts_that_take_less_than_nothing_leave_no_bound_below_nothing() -> None:
    """On a busy machine a backward may be measured longer than one that also recomputes."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    none = dict.fromkeys(set(OPS) - {"backward"}, 0)
    layers = tuple(with_times(layer, lambda _: none) for layer in task.layers)
    busy = asked(structs.replace(task, layers=layers))
    assert compute_us(busy, 1) == 0
    assert longest_us(busy, [1]) == [0]


def test_evaluations_count_as_often_as_they_are_due() -> None:
    """Once the formula for every sample, after steps 2 and 4."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    held = np.array([1000, 40], np.uint32)
    task = structs.replace(task, evaluation=Evaluation(2, 1))
    whole = 2 * sum(len(task.layers) * us_of(FORMULA, int(s), int(s) ** 2) for s in held)
    assert 0.99 * whole <= judged_us(task, held, 0) <= whole
    assert judged_us(task, held[:0], 0) == 0


def test_steps_are_no_shorter_than_their_longest_samples_one_after_the_other() -> None:
    """On many devices; on few ones their samples shared out evenly, whichever is more in a step."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    steps = [[int(LENGTHS[(3 * n + at) % 5]) for at in range(3)] for n in range(4)]
    for devices, found in zip((1, 2, 8), longest_us(asked(task), (1, 2, 8)), strict=True):
        whole = 0.0
        for own in steps:
            took = [3 * len(task.layers) * us_of(FORMULA, s, s * s) for s in own]
            whole += max(max(took), sum(took) / devices)
        assert 0.99 * whole <= found <= whole


def test_layers_before_the_first_that_is_trained_do_not_wait() -> None:
    """A step's forwards through them may begin before the one before it is done."""
    task = text_task(lengths=LENGTHS, batch=3, steps=4, formula=FORMULA)
    frozen = structs.replace(task.layers[0], grad_bytes=0)
    fewer = structs.replace(task, layers=(frozen, *task.layers[1:]))
    (every,), (trained,) = (longest_us(asked(one), (8,)) for one in (task, fewer))
    assert trained <= every * (1 - 0.99 / len(task.layers))


def test_dispatch_is_the_best_division_of_sequences() -> None:
    """Two equal pipelines share all; where only one may take the long ones, it is their sum."""
    task = text_task(lengths=LENGTHS, batch=5, steps=2, formula=FORMULA)
    curve, whole = Curve(0.0, 1000.0), 2 * 1000 * int(LENGTHS.sum())
    equal = Pool((PipelineType(curve, 1, 2048, 2),))
    assert 0.99 * whole / 2 <= dispatch_us(asked(task), [equal]) <= whole / 2
    deep = Pool((PipelineType(curve, 1, 2048), PipelineType(curve, 1, 512)))
    long = 2 * 1000 * 2700
    assert 0.99 * long <= dispatch_us(asked(task), [deep]) <= long
