"""One task on several devices trains what a plain loop trains that adds as the plan does.

Each replica adds its microbatches in ascending order, and replicas are added in the order of their
first microbatches. With one replica of everything that is the ordinary loop.
"""

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from support.device_cases import (
    KEPT,
    MICROBATCHES,
    RESIDENT,
    SPILLING,
    any_way,
    choosy,
    dropping,
    failing,
    layout,
    norming,
    one_after_another,
    overflowing,
    replicated,
    two_of_which_one_fails,
)
from support.fit import later
from support.pauses import pausing
from support.plain import train
from support.same import added_as, assert_same, goes_on, shares_of, step_in
from support.slabs import bound

from executor import run
from executor.driver import Options
from executor.errors import InterruptedRun, RunError
from plans import runlog

pytestmark = pytest.mark.usefixtures("quick", "untimed", "one_thread")


@pytest.mark.parametrize("seed", range(8))
def test_any_way_at_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of a loop that adds as the plan does, with nothing outside of what was planned on
    any device, whatever delays there are before ops."""
    case, way = any_way(seed)
    pausing(monkeypatch, seed, 500)
    plan = case.planned(way)
    ends = bound(monkeypatch, plan)
    done = run(plan, [case.task])
    assert_same(plan, [case.task], done, added_as(plan))
    memory = plan.programs[0].memory
    assert ends == [one.slab_bytes for one in memory]
    for peak, one in zip(done.peak_bytes, memory, strict=True):
        assert one.slab_bytes < peak <= one.slab_bytes + one.reserve_bytes


def test_another_order_of_addition_has_other_bits() -> None:
    """The ordinary loop is not what replicas train, and the test would see it."""
    case = replicated()
    way = case.way(((0, 1, 2, 3),) * 4)
    done = case.trained(way)
    with pytest.raises(AssertionError):
        assert_same(case.planned(way), [case.task], done)


def test_a_step_is_left_out_on_all_devices_or_on_none() -> None:
    """A gradient that is not finite on one device is known before any of them updates."""
    for mode in (RESIDENT, SPILLING):
        case, way = overflowing(mode)
        done = case.trained(way)
        counts = {float(one["step"]) for one in done.optimizer_state("a").values()}
        assert len(counts) == 1
        assert counts.pop() < 4


def test_gradients_that_a_replica_does_not_have() -> None:
    """They are left out of the sum, of norms and updates, wherever they are sent."""
    (case, way), _ = choosy(0.5, KEPT)
    case.trained(way)
    _, (case, way) = choosy(None, SPILLING)
    case.trained(way)


def test_replicas_of_what_forwards_change_are_refused() -> None:
    """One device has to see all microbatches in turn: the profile says so, and the first step."""
    case = norming()
    assert all(case.costs.shard(k, k + 1).in_turn for k in range(3))
    assert not dropping().costs.shard(0, 4).in_turn
    plan = case.planned(case.way(((0, 1), (2,), (2,))))
    text = (
        r"a\.s0\.F\d on [01]\.compute in round 0: .*one device has to run its microbatches in turn"
    )
    with pytest.raises(RunError, match=text):
        run(plan, [case.task])


def test_a_run_goes_on_where_another_ended(tmp_path: Path) -> None:
    """On other devices than before, in another order, adding alike."""
    ways = one_after_another("scaled")
    (case, _), _ = ways
    first, rest = (case.planned(way) for _, way in ways)
    goes_on(first, [case.task], tmp_path, added_as(first), other=rest)


@pytest.mark.usefixtures("heard")
def test_a_signal_ends_all_devices_behind_the_same_round(tmp_path: Path) -> None:
    """Rounds under way end on every device, the state is kept, and the rest trains the same."""
    case = dropping()
    rows = case.task.data

    def data(step: int) -> object:
        if step == 4:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.3)
        return rows(step)

    task = replace(case.task, steps=9)
    way = case.way(layout(2, 1), KEPT)
    plan = later(case.planned(way), 0, 9)
    with pytest.raises(InterruptedRun):
        run(plan, [replace(task, data=data)], Options(folder=tmp_path))
    done = step_in(tmp_path)
    losses = [line.loss for line in runlog.load(tmp_path).steps]
    assert len(losses) == done
    assert 0 < done < 9
    rest = run(later(plan, done, 9 - done), [task], Options(folder=tmp_path))
    plain = train(task, MICROBATCHES, shares=shares_of(plan, task))
    assert losses + rest.losses["a"] == plain.losses
    left = plain._replace(losses=plain.losses[done:])
    assert_same(plan, [task], rest, lambda *_: left)


def test_a_failure_on_one_device_ends_all() -> None:
    """By the name of its op, not of one that waits for it."""
    case = dropping()
    plan = later(case.planned(case.way(layout(2, 1), KEPT)), 0, 5)
    with pytest.raises(RunError, match=r"^a\.s3\.B\d on 2\.compute in round \d: .*coffee is cold"):
        run(plan, [replace(case.task, model=failing, steps=5)])


def test_a_task_that_fails_leaves_others_alone() -> None:
    """With --keep-going, those that train on other devices end with the bits of their own runs."""
    plan, tasks, (other, _) = two_of_which_one_fails()
    result = run(plan, tasks, Options(keep_going=True))
    assert result.dropped.keys() == {"a"}
    assert result.dropped["a"].op.startswith("a.s3.B")
    (mine,) = [task for task in plan.tasks if task.name == "b"]
    alone = structs.replace(plan, tasks=(mine,))
    assert_same(alone, [other.task], result, added_as(plan))
