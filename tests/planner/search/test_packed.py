"""Plans of several tasks of which some have samples with lengths."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from support import synthetic
from support.texts import built, text_task

from planner import Infeasible, Problem
from planner.inputs import Want, parse_layout
from planner.timetable.host_store import _gathered
from plans.order import task_runs, waiting
from plans.samples import open_table, table_path
from plans.schema import Plan
from plans.timing import Runs, joined, task_spans
from profiles.schema import Disk, Rate, Task

pytestmark = pytest.mark.usefixtures("quick")

PLENTY, LITTLE = 1 << 30, 20 << 20
BATCH = 8
Lengths = Mapping[str, NDArray[np.uint32]]
Wants = Mapping[str, Want]


def drawn(seed: int) -> NDArray[np.uint32]:
    found = np.random.default_rng(seed).lognormal(6, 1, 70)
    return np.minimum(4096, found).astype(np.uint32) + 8


def text(name: str, steps: int, lengths: Lengths, layers: int = 4) -> Task:
    formula = (2_000_000, 3_000_000, 50_000)
    return text_task(
        name, lengths=lengths[name], batch=BATCH, steps=steps, formula=formula, layers=layers
    )


LENGTHS = {"one": drawn(0), "two": drawn(1)}
PLAIN = synthetic.task("plain", layers=1, steps=200)
TASKS = (text("one", 16, LENGTHS), text("two", 12, LENGTHS, layers=6), PLAIN)


def asked(*tasks: Task, room: int = PLENTY, lengths: Lengths = LENGTHS, **more: Any) -> Problem:
    """These tasks for two devices of so much memory."""
    profile = synthetic.profile(*tasks, usable_bytes=room)
    one = Problem.of(profile, devices=2, device_bytes=room, host_bytes=None)
    own = {task.name: lengths[task.name] for task in tasks if task.lengths}
    return replace(one, lengths=own, packing="ffd" if own else "auto", **more)


def turns_of(plan: Plan, task: str) -> Runs:
    """The kinds of its steps, in all segments together."""
    return joined((run.kind, run.steps) for run in task_runs(plan, task))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """The plan of all three, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return built(asked(*TASKS), folder), folder


def test_all_tasks_share_the_devices(whole: tuple[Plan, Path], tmp_path: Path) -> None:
    """No longer than one after the other on all devices, and near the bound; a table beside the
    plan for each task with lengths."""
    plan, folder = whole
    told = plan.prediction
    alone = [built(asked(task), tmp_path / task.name).prediction for task in TASKS]
    assert told.makespan_us <= sum(one.makespan_us for one in alone)
    compute = [bound.us for one in alone for bound in one.bounds if bound.name == "compute"]
    assert sum(compute) * 0.99 <= told.lower_bound_us
    assert told.lower_bound_us <= told.makespan_us <= 1.05 * told.lower_bound_us
    assert told.configuration_us <= told.makespan_us
    assert [task.lengths is not None for task in plan.tasks] == [True, True, False]
    names = {path.name for path in folder.glob("*.samples")}
    assert names == {"plan.one.samples", "plan.two.samples"}


def test_samples_too_long_for_one_device_get_two(tmp_path: Path) -> None:
    """And what the others then do pays for it: all end sooner than with one device each."""
    wide = built(asked(*TASKS, room=LITTLE), tmp_path)
    devices = {segment.program: segment.devices for segment in wide.segments}
    assert devices["one"] == devices["two"] == (0, 1)
    two = built(asked(TASKS[1], room=LITTLE), tmp_path).prediction.makespan_us
    narrow = replace(asked(TASKS[0], room=LITTLE), layout=parse_layout("1x1"))
    one = built(narrow, tmp_path).prediction.makespan_us
    assert wide.prediction.makespan_us < one + two


def due(us: int) -> Wants:
    return {"two": Want(deadline_us=us)}


@pytest.mark.parametrize(
    ("first", "wishes"),
    [
        ("two", {"objective": "completion"}),
        ("one", {"objective": "completion", "wants": {"one": Want(weight=50)}}),
        ("two", {"wants": {"one": Want(start_us=100_000)}}),
    ],
)
def test_wishes_go_by_the_time_of_all_steps(
    first: str, wishes: Mapping[str, Any], tmp_path: Path
) -> None:
    """On one device, where "one" takes longer. Nothing begins before it may."""
    problem = replace(asked(*TASKS[:2]), **wishes).alike(count=1)
    plan = built(problem, tmp_path)
    assert plan.segments[0].program == first
    assert len(plan.segments) == 2
    spans = task_spans(plan)
    assert all(task.start_us <= spans[task.name][0] for task in plan.tasks)


def test_a_deadline_that_a_refusal_names_is_kept(tmp_path: Path) -> None:
    """It is when the shorter task ends if it is taken first."""
    one = asked(*TASKS[:2]).alike(count=1)
    with pytest.raises(Infeasible, match=r"two: ends at .* give it --deadline two=\d+us") as error:
        built(replace(one, wants=due(1)), tmp_path)
    found = re.search(r"two=(\d+)us", str(error.value))
    assert found
    plan = built(replace(one, wants=due(int(found[1]))), tmp_path)
    (_, first), (_, second) = task_spans(plan).values()
    assert second == int(found[1]) < first


def test_tasks_of_one_shape_are_searched_once_and_cut_where_it_pays(tmp_path: Path) -> None:
    """Three equal ones on two devices end when three halves are done; the kinds of a task that is
    cut go on in its next segment, and all tables are the same."""
    names, lengths = ("a", "b", "c"), dict.fromkeys("abc", LENGTHS["one"])
    problem = asked(*(text(n, 20, lengths) for n in names), lengths=lengths)
    plan = built(problem, tmp_path)
    once = built(asked(text("a", 20, lengths), lengths=lengths), tmp_path / "once").solver
    assert plan.solver.candidates <= 2 * once.candidates
    assert len(plan.segments) > 3
    (turns,) = {turns_of(plan, name) for name in names}
    assert len(turns) > 1
    short = built(replace(problem, segment_steps=3), tmp_path)
    assert {turns_of(short, name) for name in names} == {turns}
    gathered = structs.replace(plan, segments=tuple(_gathered(problem, plan)))
    assert len(gathered.segments) == 3
    assert {turns_of(gathered, name) for name in names} == {turns}
    tables = {table_path(tmp_path / "plan.json", name).read_bytes() for name in names}
    assert len(tables) == 1
    assert len(open_table(table_path(tmp_path / "plan.json", "a"), BATCH)) == 20
    whole = sum(segment.end_us - segment.start_us for segment in plan.segments) / 2
    assert plan.prediction.makespan_us <= 1.02 * whole


def test_other_lengths_or_steps_are_other_shapes(tmp_path: Path) -> None:
    """Each has a table of its own samples, for its own steps."""
    lengths = {"a": LENGTHS["one"], "b": LENGTHS["two"], "c": LENGTHS["one"]}
    steps = {"a": 12, "b": 12, "c": 9}
    problem = asked(*(text(n, steps[n], lengths) for n in "abc"), lengths=lengths)
    built(problem, tmp_path)
    for name, count in steps.items():
        assert len(open_table(table_path(tmp_path / "plan.json", name), BATCH)) == count


def test_what_timetables_know_goes_with_lengths(tmp_path: Path) -> None:
    """Starts, completion times and short segments."""
    late = asked(*TASKS[::2], wants={"one": Want(start_us=3_000_000)}, segment_steps=7)
    plan = built(late, tmp_path)
    assert plan.task("one").start_us == 3_000_000
    assert min(s.start_us for s in plan.segments if s.program == "one") >= 3_000_000
    assert max(s.rounds for s in plan.segments) == 7
    early = built(asked(*TASKS[::2], objective="completion"), tmp_path)
    ends = {name: end_us for name, (_, end_us) in task_spans(early).items()}
    assert min(ends, key=lambda name: ends[name]) == "plain"


def test_what_all_need_of_the_host_is_enough(whole: tuple[Plan, Path], tmp_path: Path) -> None:
    """As for other tasks."""
    room = whole[0].host.bytes
    assert built(replace(asked(*TASKS), host_bytes=room), tmp_path).host.bytes <= room


def test_tasks_wait_on_the_disk(tmp_path: Path) -> None:
    """Three of one shape where the host has room for two; kinds go on where a task comes back."""
    lengths = dict.fromkeys("abc", LENGTHS["one"])
    problem = asked(*(text(n, 20, lengths) for n in "abc"), lengths=lengths)
    roomy = built(problem, tmp_path)
    disk = Disk(1 << 40, Rate(10**9, 0), Rate(10**9, 0))
    plan = built(replace(problem, host_bytes=roomy.host.bytes * 3 // 4, disk=disk), tmp_path)
    assert waiting(plan)
    assert len({turns_of(plan, name) for name in "abc"}) == 1


def test_tasks_that_go_on_from_other_steps_have_tables_of_their_own(tmp_path: Path) -> None:
    """Though they are of one shape and have as many steps left: other samples come next."""
    lengths = {name: LENGTHS["one"] for name in ("one", "other")}
    tasks = [text(name, 6, lengths) for name in lengths]
    plan = built(asked(*tasks, room=30 << 20, lengths=lengths, done={"other": 3}), tmp_path)
    rows = [open_table(table_path(tmp_path / "plan.json", name), BATCH) for name in lengths]
    assert [task.done for task in plan.tasks] == [0, 3]
    assert not np.array_equal(*rows)
