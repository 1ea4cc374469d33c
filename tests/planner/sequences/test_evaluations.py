"""Plans of tasks with lengths that are evaluated."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from support import synthetic
from support.texts import built, text_task

from planner import Infeasible, Problem
from planner.inputs import PackingName, parse_layout
from plans import samples
from plans.order import judge
from plans.samples import table_path
from plans.schema import Plan
from profiles.errors import FormatError
from profiles.lengths import describe, held_out
from profiles.schema import Evaluation
from tests.planner.sequences.test_switching import asked as phased

pytestmark = pytest.mark.usefixtures("quick")

STEPS, BATCH, EVERY = 12, 8, 5
FORMULA = (2_000_000, 3_000_000, 50_000)
RNG = np.random.default_rng(0)
LENGTHS, HELD = (
    np.minimum(3000, RNG.lognormal(6, 1, count)).astype(np.uint32) + 8 for count in (70, 1500)
)


def asked(
    held: NDArray[np.uint32] | None = HELD,
    *,
    room: int = 1 << 30,
    devices: int = 1,
    packing: PackingName = "balanced",
    why_not: str = "",
) -> Problem:
    task = text_task(lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=FORMULA)
    lengths = {"text": LENGTHS}
    if held is not None:
        said = describe(held, why_not)
        task = structs.replace(task, evaluation=Evaluation(EVERY, 1), evaluation_lengths=said)
        lengths[held_out("text")] = held
    if why_not and task.lengths:
        task = structs.replace(task, lengths=structs.replace(task.lengths, why_not=why_not))
    profile = synthetic.profile(task, usable_bytes=room)
    one = Problem.of(profile, devices=devices, device_bytes=room, host_bytes=None)
    return replace(one, packing=packing, lengths=lengths)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """With evaluation, and without."""
    folder = tmp_path_factory.mktemp("both")
    return built(asked(), folder), built(asked(None), folder)


def row(folder: Path) -> NDArray[np.uint16]:
    """The microbatch of each sample, numbered through the rounds of an evaluation."""
    return np.fromfile(table_path(folder / "plan.json", held_out("text")), samples.ENTRY)


@pytest.mark.parametrize(
    ("devices", "packing"),
    [(1, "balanced"), (1, "pad"), (1, "fixed"), (1, "auto"), (2, "ffd"), (3, "balanced")],
)
def test_evaluations_have_segments_and_a_sound_table(
    devices: int, packing: PackingName, tmp_path: Path
) -> None:
    """On all devices, which have about as much to do; where they are due, and as long as the plan
    says."""
    problem = asked(devices=devices, packing=packing)
    plan = built(replace(problem, layout=parse_layout(f"1x{devices}")), tmp_path)
    (task,), program = plan.tasks, judge(plan, "text")
    assert task.evaluation
    assert program
    trained = [(s.program == program.name, s.rounds) for s in plan.segments]
    once = (True, task.evaluation.batches)
    assert trained == [(False, 5), once, (False, 5), once, (False, 2)]
    assert program.devices == devices
    size = len(program.tokens)
    assert size <= 8 * devices
    tokens = np.bincount(row(tmp_path), HELD, size * task.evaluation.batches)
    if packing == "balanced":
        each = tokens.reshape(-1, devices, size // devices).sum(axis=(0, 2))
        assert each.max() <= 1.1 * each.min()
        assert tokens.sum() >= 0.8 * task.evaluation.batches * sum(program.tokens)


def test_training_is_planned_as_without_evaluation(both: tuple[Plan, Plan]) -> None:
    """Where no sample of the evaluation is longer: the same program and the same table."""
    one, other = both
    assert one.tasks[0].lengths == other.tasks[0].lengths
    assert one.programs[0] == other.programs[0]


def test_microbatches_are_as_large_as_those_of_training_where_that_is_shorter(
    tmp_path: Path,
) -> None:
    """Many short samples share each of them."""
    program = judge(built(asked(np.full(200, 100, np.uint32)), tmp_path), "text")
    assert program
    assert max(program.tokens) >= 1000


def test_longer_samples_than_those_of_training_have_room(tmp_path: Path) -> None:
    """In microbatches that are at least as long."""
    plan = built(asked(np.array([9000, 3, 17], np.uint32)), tmp_path)
    program = judge(plan, "text")
    assert program
    assert max(program.tokens) >= 9000 > max(plan.programs[0].tokens)


def test_models_that_mix_sequences_have_one_in_each_microbatch(tmp_path: Path) -> None:
    """No two samples of an evaluation share one either."""
    built(asked(packing="auto", why_not="its convolution reaches across"), tmp_path)
    assert len(set(row(tmp_path).tolist())) == len(HELD)


def test_the_memory_that_a_refusal_names_would_do(tmp_path: Path) -> None:
    """Also where the longest sample is one of evaluation."""
    held = np.array([20_000], np.uint32)
    with pytest.raises(Infeasible, match="its longest sample has 20000 tokens") as refused:
        built(asked(held, room=1 << 20), tmp_path)
    assert built(asked(held, room=refused.value.smallest), tmp_path)


def test_more_microbatches_than_a_table_knows_are_refused(tmp_path: Path) -> None:
    """One line with both numbers."""
    held = np.full(70_000, 3, np.uint32)
    text = "text: its evaluation has 70000 microbatches, a table has numbers for 65536"
    with pytest.raises(FormatError, match=text):
        built(asked(held, packing="auto", why_not="its convolution reaches across"), tmp_path)


def test_steps_of_two_mixes_are_evaluated_by_one_program(tmp_path: Path) -> None:
    """On all devices, also between steps of either mix; the samples are longer than those of the
    steps that the other mix has."""
    one = phased()
    (task,) = one.tasks
    said = {"evaluation": Evaluation(3, 1), "evaluation_lengths": describe(HELD)}
    held = {**one.lengths, held_out(task.name): HELD}
    plan = built(replace(one.alike(tasks=(structs.replace(task, **said),)), lengths=held), tmp_path)
    mixes = {program.name for program in plan.programs if not program.evaluates}
    turns = [s.program for s in plan.segments]
    assert len(mixes) == 2 == len(set(turns) & mixes)
    assert turns.count("text.eval") == 3
    assert sum(s.rounds for s in plan.segments if s.program in mixes) == task.steps


def test_several_tasks_are_each_evaluated_on_their_own_samples(tmp_path: Path) -> None:
    """Two of one shape, one with others, one without evaluation, and one without lengths."""
    held = {"a": HELD, "b": HELD, "c": HELD[:50], "d": None}
    plain = synthetic.task("plain", layers=3, steps=STEPS)
    tasks, lengths = [structs.replace(plain, evaluation=Evaluation(4, 3))], {}
    for name, own in held.items():
        task = text_task(name, lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=FORMULA)
        lengths[name] = LENGTHS
        if own is not None:
            lengths[held_out(name)] = own
            said = {"evaluation": Evaluation(EVERY, 1), "evaluation_lengths": describe(own)}
            task = structs.replace(task, **said)
        tasks.append(task)
    profile = synthetic.profile(*tasks, usable_bytes=1 << 30)
    one = Problem.of(profile, devices=2, device_bytes=1 << 30, host_bytes=None)
    plan = built(replace(one, packing="ffd", lengths=lengths), tmp_path)
    rounds = {task.name: task.evaluation and task.evaluation.batches for task in plan.tasks}
    assert rounds["plain"] == 3
    assert rounds["d"] is None
    assert rounds["a"] == rounds["b"]
    for task in plan.tasks:
        found = [s.rounds for s in plan.segments if s.program.startswith(f"{task.name}.eval")]
        due = STEPS // task.evaluation.every if task.evaluation else 0
        assert found == [rounds[task.name]] * due
    names = {path.name for path in tmp_path.glob("*.evaluation.samples")}
    assert names == {f"plan.{name}.evaluation.samples" for name in "abc"}


def test_times_of_plans_hold_their_evaluations(both: tuple[Plan, Plan]) -> None:
    """All segments in a row take as long as is predicted, no less than the bound, which knows of
    them."""
    one, other = (plan.prediction for plan in both)
    assert other.makespan_us < one.lower_bound_us <= one.makespan_us
