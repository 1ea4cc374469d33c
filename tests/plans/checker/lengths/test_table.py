"""Tables beside a plan: every violation by step and sample, against a loop over all of them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray
from support.cli import planner_cli
from support.kinded import BATCH, MOST, SAMPLES, kinded

import plans
from plans.checker.lengths import table as table_module
from plans.checker.lengths import tables
from plans.order import task_runs
from plans.samples import table_path, write
from plans.schema import Lengths, Plan
from plans.timing import Runs, kinds_of
from profiles.errors import FormatError
from profiles.schema import Evaluation

LENGTHS = np.array([100, 200, 30, 250, 6, 60, 7], np.uint32)
RUNS: Runs = ((0, 2), (1, 1), (0, 1))
Rows = list[list[int]]


def planned(
    path: Path,
    rows: Rows,
    runs: Runs = RUNS,
    *,
    padded: bool = False,
    order: list[int] | None = None,
) -> Plan:
    """A plan whose kind 1 has one microbatch of 512 tokens, with this table beside its file; order:
    of all samples, within windows of one step."""
    plan = kinded("resident", [[MOST, 256], [MOST]], runs)
    numbers = None if order is None else np.array(order, np.uint32)
    digest = write(table_path(path, "a"), [np.array(row) for row in rows], numbers)
    own = hashlib.sha256(LENGTHS.tobytes()).hexdigest()
    assert plan.tasks[0].lengths
    more = {"padded": padded, "reordered": int(order is not None)}
    said = replace(plan.tasks[0].lengths, sha256=own, table=digest, **more)
    plan = replace(plan, tasks=(replace(plan.tasks[0], lengths=said, done=3),))
    plans.save(path, plan)
    return plan


def found(path: Path, rows: Rows, lengths: NDArray[np.uint32] | None = LENGTHS) -> list[str]:
    given = {} if lengths is None else {"a": lengths}
    return list(tables(planned(path, rows), path, given))


# Steps 3 to 6 of 5 samples each: 1 2 3 4 5, 6 0 1 2 3, 4 5 6 0 1, 2 3 4 5 6.
SOUND = [[0, 0, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]


def test_a_sound_table_is_passed(tmp_path: Path) -> None:
    """It gives each of five samples in four steps a microbatch of the step's kind of round, one of
    them with as many tokens as it may have."""
    assert found(tmp_path / "p.json", SOUND) == []


BEYOND = "tokens of {} sample(s), expected at most 256; beyond that with sample {} of {} tokens"


def put(rows: Rows, step: int, column: int, entry: int) -> Rows:
    """The table with another entry."""
    made = [list(row) for row in rows]
    made[step][column] = entry
    return made


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ((0, 1, 2), "a: step 3: sample 2 is in microbatch 2, but the round has 2"),
        ((2, 4, 1), "a: step 5: sample 1 is in microbatch 1, but the round has 1"),
        ((3, 4, 65535), "a: step 6: sample 6 is in microbatch 65535, but the round has 2"),
        ((0, 0, 1), f"a: step 3: microbatch 1 has 456 {BEYOND.format(3, 3, 250)}"),
        ((3, 4, 1), f"a: step 6: microbatch 1 has 257 {BEYOND.format(2, 6, 7)}"),
    ],
)
def test_what_is_wrong_is_told_by_step_and_sample(
    tmp_path: Path, place: tuple[int, int, int], line: str
) -> None:
    assert found(tmp_path / "p.json", put(SOUND, *place)) == [line]


@pytest.mark.parametrize("rows", [SOUND[:3], [*SOUND, SOUND[0]]])
def test_a_row_too_few_or_too_many_is_refused(tmp_path: Path, rows: Rows) -> None:
    path = tmp_path / "p.json"
    (line,) = found(path, rows)
    assert (
        line == f"{table_path(path, 'a')}: has {len(rows)} rows, expected one for each of 4 steps"
    )


def judging(path: Path, row: list[int]) -> Plan:
    """A plan with this table of an evaluation in two rounds of two microbatches."""
    plan = planned(path, SOUND)
    (task,), (program,) = plan.tasks, plan.programs
    digest = write(table_path(path, "a.evaluation"), [np.array(row)])
    own = hashlib.sha256(LENGTHS.tobytes()).hexdigest()
    said = Lengths(own, len(LENGTHS), digest)
    task = replace(task, evaluation=Evaluation(2, 2), evaluation_lengths=said)
    judge = replace(program, name="solo.eval", evaluates=True, kinds=(), tokens=(MOST, 256))
    return replace(plan, tasks=(task,), programs=(program, judge))


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        ([0, 0, 1, 2, 3, 3, 3], []),
        (
            [0, 0, 1, 2, 3, 4, 3],
            ["a.evaluation: sample 5 is in microbatch 4, but its rounds have 4"],
        ),
        ([0, 2, 1, 3, 0, 0, 3], [f"a.evaluation: microbatch 3 has 257 {BEYOND.format(2, 6, 7)}"]),
    ],
)
def test_every_sample_of_an_evaluation_has_a_microbatch(
    tmp_path: Path, row: list[int], lines: list[str]
) -> None:
    path = tmp_path / "p.json"
    plan = judging(path, row)
    assert list(tables(plan, path, {"a": LENGTHS, "a.evaluation": LENGTHS})) == lines


def test_the_table_of_an_evaluation_is_the_plans(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    plan = judging(path, [0, 0, 1, 2, 3, 3, 3])
    for lengths, text in (
        (LENGTHS[:6], "a.evaluation: 6 samples, the plan was made for 7"),
        (LENGTHS + 1, "a.evaluation: the sha256 of its samples' lengths is"),
    ):
        (line,) = tables(plan, path, {"a.evaluation": lengths})
        assert line.startswith(text)
    file = table_path(path, "a.evaluation")
    write(file, [np.zeros(14, np.int64)])
    (other,) = tables(plan, path)
    assert "that of the table of a.evaluation" in other
    file.unlink()
    with pytest.raises(FormatError, match=r"p\.a\.evaluation\.samples: cannot be read"):
        list(tables(plan, path))


def test_a_table_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    plan = planned(path, SOUND)
    table_path(path, "a").unlink()
    with pytest.raises(FormatError, match=r"p\.a\.samples: cannot be read"):
        plans.prove_tables(plan, path)


@pytest.mark.parametrize(
    ("order", "window"),
    [
        ([4, 3, 2, 1, 0, 6, 5], None),
        ([4, 3, 2, 1, 1, 6, 5], "0 to 4"),  # sample 0 never comes
        ([4, 3, 2, 1, 5, 6, 0], "0 to 4"),  # 0 and 5 are in one another's
        ([4, 3, 2, 1, 0, 6, 7], "5 to 6"),  # there are seven samples
    ],
)
def test_an_order_has_every_sample_once_within_its_window(
    tmp_path: Path, order: list[int], window: str | None
) -> None:
    """Of one step of five samples; the last one is shorter."""
    path = tmp_path / "p.json"
    plan = planned(path, [[0] * BATCH] * 4, order=order)
    wrong = (
        f"a: places {window} of the order of its samples, a window of 1 steps, do not have each "
        f"of samples {window} once"
    )
    assert list(tables(plan, path)) == ([wrong] if window else [])


def slow(plan: Plan, rows: Rows, order: Sequence[int]) -> list[str]:
    """Step, and what is wrong there, sample by sample."""
    wrong, (task,) = list[str](), plan.tasks
    assert task.lengths
    kinds = [
        kinds_of(plan.program(run.program))[run.kind]
        for run in task_runs(plan, "a")
        for _ in range(run.steps)
    ]
    held: list[dict[int, list[int]]] = [{} for _ in rows]
    for step, row in enumerate(rows):
        for j, number in enumerate(row):
            sample = order[((3 + step) * BATCH + j) % SAMPLES]
            if number >= len(kinds[step].tokens):
                wrong.append(f"step {3 + step}: sample {sample} is in")
            else:
                held[step].setdefault(number, []).append(int(LENGTHS[sample]))
    for step, (kind, there) in enumerate(zip(kinds, held, strict=True), 3):
        tokens = kind.tokens
        for number, own in there.items():
            size = max(own) * len(own) if task.lengths.padded else sum(own)
            if size > tokens[number]:
                wrong.append(f"step {step}: microbatch {number} has {size} tokens of {len(own)} ")
    return wrong


@st.composite
def cases(draw: st.DrawFn) -> tuple[Runs, Rows, bool, int, list[int] | None]:
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    runs = tuple((n % 2, count) for n, count in enumerate(counts))
    order = draw(st.none() | st.permutations(range(BATCH)))
    row = st.lists(st.integers(0, 2), min_size=BATCH, max_size=BATCH)
    rows = draw(st.lists(row, min_size=sum(counts), max_size=sum(counts)))
    return (
        runs,
        rows,
        draw(st.booleans()),
        draw(st.sampled_from([1, 11, 1000])),
        order and [*order, 6, 5],
    )


@given(cases())
def test_violations_are_those_of_a_loop_over_all_samples(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Runs, Rows, bool, int, list[int] | None]
) -> None:
    """Whatever the kinds and the order, padded or not, however many rows are looked at together."""
    runs, rows, padded, at_once, order = case
    path = tmp_path_factory.mktemp("table") / "p.json"
    plan = planned(path, rows, runs, padded=padded, order=order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "_AT_ONCE", at_once)
        lines = list(tables(plan, path, {"a": LENGTHS}))
    wanted = slow(plan, rows, order or range(SAMPLES))
    assert len(lines) == len(wanted)
    assert all(any(f"a: {one}" in line for line in lines) for one in wanted)


def test_check_proves_the_tables_beside_a_plan(tmp_path: Path) -> None:
    """With the file of the lengths tokens too; without it says that it did not."""
    path, file = tmp_path / "p.json", tmp_path / "x.a.lengths"
    planned(path, SOUND)
    file.write_bytes(LENGTHS.tobytes())
    whole = planner_cli("check", path, "--lengths", file)
    assert (whole.code, whole.err) == (0, "")
    part = planner_cli("check", path)
    assert part.code == 0
    assert "a: how many tokens its microbatches get was not looked at" in part.err
    assert planner_cli("check", path, "--lengths", path).code == 2
    planned(path, put(SOUND, 0, 0, 1))
    wrong = planner_cli("check", path, "--lengths", file)
    assert wrong.code == 1
    assert (
        "a: step 3: microbatch 1 has 456 tokens of 3 sample(s), expected at most 256" in wrong.err
    )
