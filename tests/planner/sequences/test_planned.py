"""Plans of a task whose samples have lengths."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic, texts
from support.texts import built, text_task
from support.true_steps import Truth

from planner import Infeasible, Options, Problem, build, read_problem
from planner.inputs import PackingName, parse_layout
from planner.sequences import with_lengths
from planner.views import describe
from plans.order import task_runs
from plans.samples import open_order, open_table, table_path
from plans.schema import Plan
from plans.timing import duration_us, runs
from profiles import lengths
from profiles.codec import pretty
from profiles.errors import FormatError
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick")

PLENTY, ROOM, LITTLE = 1 << 30, 17 << 20, 15 << 20
STEPS, BATCH = 8, 6
LENGTHS = np.minimum(4096, np.random.default_rng(0).lognormal(6, 1, 70)).astype(np.uint32) + 8


ASKED: tuple[tuple[PackingName, str], ...] = (("fixed", "1x2"), ("balanced", "2x1"))


def asked(room: int = PLENTY, devices: int = 2, packing: PackingName = "auto") -> Problem:
    task = text_task(
        lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=(2_000_000, 3_000_000, 50_000)
    )
    profile = synthetic.profile(task, usable_bytes=room)
    one = Problem.of(profile, devices=devices, device_bytes=room, host_bytes=None)
    return replace(one, packing=packing, lengths={task.name: LENGTHS})


@pytest.mark.parametrize(
    ("packing", "devices"), [("pad", 1), ("ffd", 1), ("fixed", 2), ("balanced", 2)]
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
    """Than any packing in a layout, in a memory that is short for the longest sample; to one
    part in fifty, by which steps of a kind may differ from their mean."""
    most = scarce.prediction.makespan_us / 1.02
    for packing, layout in ASKED:
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
    assert built(asked(ROOM), tmp_path) == scarce


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


TASK = text_task()
PROFILE = synthetic.profile(TASK, usable_bytes=1 << 30)


def problem(profile: Profile = PROFILE, devices: int = 2) -> Problem:
    known = {task.name: np.array(texts.LENGTHS, np.uint32) for task in profile.tasks}
    one = Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)
    return replace(one, lengths=known)


def changed(**change: object) -> Problem:
    """The problem of a task that differs in this."""
    return problem(structs.replace(PROFILE, tasks=(structs.replace(TASK, **change),)))


def drawn(*draws: int | None) -> Problem:
    """The problem of a task whose second layer draws so many random numbers at each length."""
    layer = TASK.layers[1]
    costs = [structs.replace(c, rng_draws=n) for c, n in zip(layer.costs, draws, strict=True)]
    layers = (TASK.layers[0], structs.replace(layer, costs=tuple(costs)), *TASK.layers[2:])
    return changed(layers=layers)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (replace(problem(), layout=parse_layout("3,1")), "equally many replicas"),
        (drawn(256, 512, 1024, 4097), r"draws of layer 1 \(Block\) are no constant and so many"),
        (drawn(0, None, 0, 0), "draws of layer 1"),
    ],
)
def test_what_does_not_go_with_lengths_is_refused(asked: Problem, said: str) -> None:
    with pytest.raises(FormatError, match=f"^text: .*{said}"):
        with_lengths(asked)


def test_packing_and_windows_are_about_lengths() -> None:
    plain = synthetic.profile(synthetic.task("a", layers=2), usable_bytes=1 << 30)
    one = Problem.of(plain, devices=1, device_bytes=None, host_bytes=None)
    assert not with_lengths(one)
    with pytest.raises(FormatError, match=r"^--packing .* none has; leave it out"):
        with_lengths(replace(one, packing="ffd"))
    with pytest.raises(FormatError, match=r"^--reorder-window .* none has; leave it out"):
        with_lengths(replace(one, reorder_window=2))


def test_pipelines_side_by_side_are_for_lengths() -> None:
    plain = synthetic.profile(synthetic.task("a", layers=2), usable_bytes=1 << 30)
    one = Problem.of(plain, devices=3, device_bytes=None, host_bytes=None)
    with pytest.raises(FormatError, match=r"^--layout 2\+1 .* depth x replicas"):
        with_lengths(replace(one, layout=parse_layout("2+1")))
    assert with_lengths(replace(problem(), layout=parse_layout("2+1")))


def test_models_that_mix_sequences_are_not_packed() -> None:
    """The reason is that of the profile; with padding each has a microbatch of its own."""
    assert TASK.lengths
    alone = structs.replace(TASK.lengths, why_not="its convolution reaches across")
    asked = changed(lengths=alone)
    assert with_lengths(asked)
    with pytest.raises(FormatError, match="its convolution reaches across; give --packing pad"):
        with_lengths(replace(asked, packing="ffd"))


def test_a_plan_with_a_table_needs_a_place_for_it() -> None:
    with pytest.raises(FormatError, match="output="):
        build(problem())


@pytest.mark.parametrize("given", [{"microbatch": 4}, {"corrections": ["c.json"]}])
def test_flags_of_measured_sizes_are_refused(given: dict[str, object], tmp_path: Path) -> None:
    """A task with lengths has microbatches of any size, from curves."""
    path = tmp_path / "p.json"
    path.write_bytes(pretty(PROFILE))
    lengths.save(path, "text", texts.LENGTHS)
    flag = f"--{next(iter(given))} does not go"
    with pytest.raises(FormatError, match=flag):
        read_problem(str(path), Options(**given))  # type: ignore[arg-type]
    assert read_problem(str(path)).lengths["text"].tolist() == texts.LENGTHS
