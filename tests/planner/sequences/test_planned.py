"""Plans of a task whose samples have lengths."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic
from support.texts import built, text_task
from support.true_steps import Truth

from planner import Infeasible, Problem
from planner.inputs import PackingName, parse_layout
from planner.views import describe
from plans.order import task_runs
from plans.samples import open_order, open_table, table_path
from plans.schema import Plan
from plans.timing import duration_us, runs

pytestmark = pytest.mark.usefixtures("quick")

PLENTY, ROOM, LITTLE = 1 << 30, 17 << 20, 15 << 20
PACKINGS: tuple[PackingName, ...] = ("pad", "fixed", "ffd", "balanced")
STEPS, BATCH = 12, 8
LENGTHS = np.minimum(4096, np.random.default_rng(0).lognormal(6, 1, 70)).astype(np.uint32) + 8


def asked(room: int = PLENTY, devices: int = 2, packing: PackingName = "auto") -> Problem:
    task = text_task(
        lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=(2_000_000, 3_000_000, 50_000)
    )
    profile = synthetic.profile(task, usable_bytes=room)
    one = Problem.of(profile, devices=devices, device_bytes=room, host_bytes=None)
    return replace(one, packing=packing, lengths={task.name: LENGTHS})


@pytest.mark.parametrize(
    ("packing", "devices"),
    [*((how, 1) for how in PACKINGS), ("fixed", 2), ("balanced", 2)],
)
def test_every_packing_has_a_sound_plan(packing: PackingName, devices: int, tmp_path: Path) -> None:
    """The checker proves plan and table, and the table has a row for each step."""
    plan = built(asked(devices=devices, packing=packing), tmp_path)
    rows = open_table(table_path(tmp_path / "plan.json", "text"), BATCH)
    assert len(rows) == STEPS == sum(run.steps for run in task_runs(plan, "text"))
    lengths = plan.tasks[0].lengths
    assert lengths
    assert lengths.padded == (packing == "pad")


@pytest.fixture(scope="module")
def scarce(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """In a memory that is short for the longest sample."""
    return built(asked(ROOM), tmp_path_factory.mktemp("scarce"))


def test_auto_is_no_longer_than_packings_and_layouts(scarce: Plan, tmp_path: Path) -> None:
    """Than all packings in all layouts, in a memory that is short for the longest sample; to one
    part in fifty, by which steps of a kind may differ from their mean."""
    most = scarce.prediction.makespan_us / 1.02
    for packing, layout in product(PACKINGS, ("2x1", "1x2")):
        one = replace(asked(ROOM, packing=packing), layout=parse_layout(layout))
        assert most <= built(one, tmp_path).prediction.makespan_us, (packing, layout)


def test_little_memory_gets_pipelines_of_several_depths(tmp_path: Path) -> None:
    """On three devices of which one alone cannot hold the longest sample, two are one pipeline."""
    with pytest.raises(Infeasible):
        built(asked(LITTLE, devices=1), tmp_path)
    plan = built(asked(LITTLE, devices=3, packing="balanced"), tmp_path)
    assert "2+1" in {one.layout for one in plan.solver.alternatives if not one.why_not}


def test_the_memory_that_a_refusal_names_would_do(tmp_path: Path) -> None:
    """The refusal is about the longest sample; with what it says there is a plan."""
    longest = f"longest sample has {LENGTHS.max()} tokens"
    with pytest.raises(Infeasible, match=longest) as refused:
        built(asked(1 << 20), tmp_path)
    assert built(asked(refused.value.smallest), tmp_path)


def test_the_same_inputs_give_the_same_plan(scarce: Plan, tmp_path: Path) -> None:
    """Byte for byte, with the same table."""
    assert built(asked(ROOM), tmp_path) == scarce


def test_models_that_mix_sequences_get_one_in_each_microbatch(tmp_path: Path) -> None:
    """No two samples of a step share one."""
    one = replace(asked(), layout=parse_layout("1x2"))
    (task,) = one.tasks
    assert task.lengths
    lengths = structs.replace(task.lengths, why_not="its convolution reaches across")
    built(one.alike(tasks=(structs.replace(task, lengths=lengths),)), tmp_path)
    rows = open_table(table_path(tmp_path / "plan.json", "text"), BATCH)
    assert all(len(set(row)) == BATCH for row in rows.tolist())


def test_windows_make_steps_shorter_where_few_samples_are_long(tmp_path: Path) -> None:
    """The plan says the window; its table is proven, and what it predicts is shorter by more than
    steps of a kind differ from their mean."""
    one = replace(asked(devices=4, packing="balanced"), layout=parse_layout("1x4"))
    plain, plan = (built(replace(one, reorder_window=window), tmp_path) for window in (1, 4))
    (task,) = plan.tasks
    assert task.lengths
    assert task.lengths.reordered == 4
    assert plan.prediction.makespan_us < 0.95 * plain.prediction.makespan_us
    assert plan.prediction.lower_bound_us <= plain.prediction.lower_bound_us
    assert "reordered within windows of 4 steps" in describe(plan)


def test_what_is_left_has_the_order_of_the_whole(tmp_path: Path) -> None:
    """On other devices, too, and wherever it begins."""
    one = replace(asked(devices=2, packing="ffd"), reorder_window=4)
    (task,) = one.tasks
    left = replace(one.alike(tasks=(structs.replace(task, steps=STEPS - 3),)), done={"text": 3})
    orders = list[list[int]]()
    for problem in (one, left):
        (planned,) = built(problem, tmp_path).tasks
        assert planned.lengths
        order = open_order(table_path(tmp_path / "plan.json", "text"), planned.lengths.samples)
        assert order is not None
        orders.append(order.tolist())
    assert orders[0] == orders[1]


def truth(plan: Plan, folder: Path) -> float:
    """How long its rounds last for the sequences that they have, over what it says."""
    profile = synthetic.profile(asked().tasks[0], usable_bytes=PLENTY)
    took = sum(Truth(plan, folder / "plan.json", profile, LENGTHS).step_us())
    (program,), (segment,) = plan.programs, plan.segments
    return took / (duration_us(program, STEPS, runs(segment)) - program.enter_us - program.leave_us)


@pytest.mark.parametrize("packing", ["pad", "balanced"])
def test_steps_last_as_long_as_their_sequences_say(packing: PackingName, tmp_path: Path) -> None:
    """To one part in a hundred in the mean, also where stages wait now for this microbatch, now for
    that one: a step of mean microbatches is up to nine parts shorter."""
    one = replace(asked(packing=packing), layout=parse_layout("2x1"))
    assert truth(built(one, tmp_path), tmp_path) == pytest.approx(1, abs=0.01)
