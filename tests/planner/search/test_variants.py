"""Steps divided among segments, sums that a task goes on with, and searches for ties and casts."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from numpy.typing import NDArray
from support import handmade, synthetic
from support.texts import built, text_task

from planner import Infeasible, Problem, build, show
from planner.inputs import Want
from planner.search.packed import Packed, StepRun
from planner.search.sums import adds_alike, sums_of
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from planner.timetable.host_store import _gathered
from plans.additions import Addition, additions
from plans.order import task_runs, waiting
from plans.samples import open_table, table_path
from plans.schema import Lengths, Memory, Op, Plan, Program, RoundKind
from plans.timing import Runs, joined, task_spans
from profiles.schema import Disk, Rate, Task
from profiles.units import show_us

pytestmark = pytest.mark.usefixtures("quick")


OP = Op("a.s0.B0", "0.compute", 0, 1)
ONE = Program("a", (Memory(1, 1),), ("a",), 0, 10, 10, 0, (), (), (OP,), ())
KINDS = structs.replace(ONE, kinds=(RoundKind((256,), 70, 70, (OP,)),))
SAID = Lengths("0" * 64, 1, "0" * 64)

runs = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=4)


@given(runs)
def test_pieces_of_unlike_steps_end_when_their_mean_says(turns: list[tuple[int, int]]) -> None:
    """To half a step, wherever they are cut; all of them together have all steps."""
    packed = Packed(tuple(turns), SAID, Path(), 0)
    each = [70 if kind else 10 for kind, rounds in turns for _ in range(rounds)]
    counts = range(len(each) + 1)
    reached = [one.rounds for count in counts for one in packed.between(KINDS, 0, count)]
    assert reached == sorted(reached)
    assert reached[-1] == len(each)
    for count, steps in enumerate(reached):
        off = sum(each[:steps]) - sum(each) * count / len(each)
        assert abs(off) <= max(each[max(0, steps - 1) : steps + 1]) / 2 + 1


@given(st.lists(runs, min_size=2, max_size=4), st.data())
def test_pieces_of_several_programs_have_each_step_once(
    every: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """In the same kind of round of the same program, wherever they are cut."""
    programs = [structs.replace(KINDS, name=f"a.{n}") for n in range(len(every))]
    parts = tuple(
        StepRun(program, sum(rounds for _, rounds in own), tuple(own))
        for program, own in zip(programs, every, strict=True)
    )
    packed, whole = Packed((), SAID, Path(), 0, parts), sum(one.rounds for one in parts)
    cuts = sorted(data.draw(st.sets(st.integers(1, whole - 1), max_size=3))) if whole > 1 else []
    found = [
        one for a, b in pairwise([0, *cuts, whole]) for one in packed.between(programs[0], a, b)
    ]
    assert steps(found) == steps(parts)


def steps(parts: list[StepRun] | tuple[StepRun, ...]) -> list[tuple[str, int]]:
    """The program and the kind of every step."""

    def kinds(turns: Runs) -> list[int]:
        return [kind for kind, rounds in turns for _ in range(rounds)]

    assert all(len(kinds(one.kinds)) == one.rounds for one in parts)
    return [(one.program.name, kind) for one in parts for kind in kinds(one.kinds)]


REPLICATED = (Addition(0, 1, "(0)+(1)"),)


def problem() -> Problem:
    """A task of one layer."""
    return synthetic.problem(
        synthetic.task("a", layers=1, batch=2), usable_bytes=24 << 20, devices=2
    )


def way(plan: Plan) -> Candidate:
    """A strategy with the program of such a plan."""
    costs = TaskCosts(problem().tasks[0], 1)
    return Candidate(Strategy(costs, (0, 1), (Mode(),), 0), plan.programs[:1])


ALONE, SENT = way(handmade.resident()), way(handmade.parallel())


@pytest.mark.parametrize(("before", "other"), [((), SENT), (REPLICATED, ALONE)])
def test_a_task_that_goes_on_adds_as_before(before: tuple[Addition, ...], other: Candidate) -> None:
    """One that keeps its microbatches; others add as is best."""
    asked = replace(problem(), microbatch={"a": 1}, additions={"a": before})
    assert [sums_of(one.program, one.strategy) for one in (ALONE, SENT)] == [(), REPLICATED]
    for one in (ALONE, SENT):
        adds_alike(problem(), one)
        if one is not other:
            adds_alike(asked, one)
    with pytest.raises(Infeasible, match="no plan that was found on"):
        adds_alike(asked, other)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("devices", "used"), [(3, 2), (4, 4)])
def test_the_rest_of_a_run_is_on_as_many_devices_as_add_alike(devices: int, used: int) -> None:
    """All of them but those that its replicas do not go into, which the plan tells of."""
    task = synthetic.task("a", layers=8, batch=4, steps=9, forward_us=90_000, param_bytes=64)
    asked = synthetic.problem(only_microbatch(task), usable_bytes=24 << 20, devices=devices)
    sums = {"a": (Addition(0, 8, "(0+2)+(1+3)"),)}
    plan = build(replace(asked, microbatch={"a": 1}, additions=sums), profile_sha256="0" * 64)
    assert plan.programs[0].devices == used
    assert additions(plan) == sums
    time = show_us(plan.prediction.makespan_us)
    told = f"left idle: 2 cpu2; no plan that was found gains by it: 2 devices would take {time}"
    assert (told in show(plan)) == (devices == 3)


def only_microbatch(task: Task) -> Task:
    """The task as if one sample had been the only size."""
    layers = (structs.replace(layer, costs=layer.costs[:1]) for layer in task.layers)
    return structs.replace(task, batches=task.batches[:1], layers=tuple(layers))


PLENTY, BATCH = 1 << 30, 8
Known = Mapping[str, NDArray[np.uint32]]
Wants = Mapping[str, Want]


def drawn(seed: int) -> NDArray[np.uint32]:
    found = np.random.default_rng(seed).lognormal(6, 1, 70)
    return np.minimum(4096, found).astype(np.uint32) + 8


def text(name: str, steps: int, lengths: Known, layers: int = 4) -> Task:
    formula = (2_000_000, 3_000_000, 50_000)
    return text_task(
        name, lengths=lengths[name], batch=BATCH, steps=steps, formula=formula, layers=layers
    )


LENGTHS = {"one": drawn(0), "two": drawn(1)}
PLAIN = synthetic.task("plain", layers=1, steps=200)
TASKS = (text("one", 16, LENGTHS), text("two", 12, LENGTHS, layers=6), PLAIN)


def asked(*tasks: Task, room: int = PLENTY, lengths: Known = LENGTHS, **more: Any) -> Problem:
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


def test_all_tasks_share_the_devices(whole: tuple[Plan, Path]) -> None:
    """Near the bound; a table beside the plan for each task with lengths."""
    plan, folder = whole
    told = plan.prediction
    assert told.lower_bound_us <= told.makespan_us <= 1.05 * told.lower_bound_us
    assert told.configuration_us <= told.makespan_us
    assert [task.lengths is not None for task in plan.tasks] == [True, True, False]
    names = {path.name for path in folder.glob("*.samples")}
    assert names == {"plan.one.samples", "plan.two.samples"}


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


def test_other_lengths_or_steps_are_other_shapes(tmp_path: Path) -> None:
    """Each has a table of its own samples, for its own steps."""
    lengths = {"a": LENGTHS["one"], "b": LENGTHS["two"], "c": LENGTHS["one"]}
    steps = {"a": 12, "b": 12, "c": 9}
    problem = asked(*(text(n, steps[n], lengths) for n in "abc"), lengths=lengths)
    built(problem, tmp_path)
    for name, count in steps.items():
        assert len(open_table(table_path(tmp_path / "plan.json", name), BATCH)) == count
