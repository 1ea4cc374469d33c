"""Two mixes of pipelines in a plan: which step has which, and what the plan says of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic, texts
from support.texts import text_task

import plans
from planner import Problem, build, show
from planner.estimate import Spec, estimate
from planner.inputs import OrderName, parse_layout
from planner.sequences import choose
from planner.sequences.switching import assigned
from planner.views import describe_alternatives
from plans import InvalidPlan, prove_tables
from plans.samples import open_table, table_path, write
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

ROOM = 15 << 20  # one device has no memory for the longest sample
STEPS, BATCH, DONE = 10, 8, 7  # the last ones have long samples


def _lengths() -> np.ndarray:
    drawn = np.random.default_rng(0).integers(60, 500, STEPS * BATCH).astype(np.uint32)
    drawn[DONE * BATCH :: BATCH] = 2872
    return drawn


LENGTHS = _lengths()


def asked(bytes_per_s: int = 1_000_000_000) -> Problem:
    task = text_task(
        lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=(2_000_000, 3_000_000, 50_000)
    )
    profile = synthetic.profile(task, usable_bytes=ROOM, bytes_per_s=bytes_per_s)
    one = Problem.of(profile, devices=2, device_bytes=ROOM, host_bytes=None)
    return replace(one, packing="balanced", lengths={task.name: LENGTHS})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan of two mixes with its table."""
    output = tmp_path_factory.mktemp("switching") / "plan.json"
    plan = build(asked(), profile_sha256="0" * 64, output=output)
    plans.save(output, plan)
    return plan, output


def _took(costs: np.ndarray, begins: Sequence[int], ways: Sequence[int]) -> float:
    """What steps take in these ways, counted one by one."""
    total = float(begins[ways[0]])
    total += sum(begins[way] for before, way in pairwise(ways) if way != before)
    return total + sum(float(costs[step, way]) for step, way in enumerate(ways))


@pytest.mark.parametrize("seed", range(6))
def test_steps_have_the_ways_that_take_least_in_turn(seed: int) -> None:
    """Of all ways to give eight steps one of two, of which the second does not hold all."""
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, 20, (8, 2)).astype(float)
    costs[rng.random(8) < 0.3, 1] = np.inf
    begins = rng.integers(0, 15, 2).tolist()
    which, total = assigned(costs, begins)
    assert total == _took(costs, begins, which.tolist())
    assert total == min(_took(costs, begins, ways) for ways in product((0, 1), repeat=8))


def test_a_long_phase_has_pipelines_of_its_own(made: tuple[Plan, Path]) -> None:
    """A segment for each mix, one after the other; plan and table are proven."""
    plan, path = made
    prove_tables(plan, path, {"text": LENGTHS})
    first, second = plan.segments
    assert (first.program, first.rounds) == ("text.1+1", DONE)
    assert (second.program, second.rounds) == ("text.2x1", STEPS - DONE)
    assert (first.start_us, second.start_us) == (0, first.end_us)
    assert plan.prediction.makespan_us == second.end_us
    assert plan.prediction.configuration_us <= plan.prediction.makespan_us


def test_two_mixes_are_shorter_than_any_of_them(made: tuple[Plan, Path], tmp_path: Path) -> None:
    """By more than one part in a hundred; the mix that is given has all steps."""
    alone = replace(asked(), layout=parse_layout("2x1"))
    plan = build(alone, profile_sha256="0" * 64, output=tmp_path / "plan.json")
    assert len(plan.programs) == 1
    assert made[0].prediction.makespan_us < 0.99 * plan.prediction.makespan_us


def test_no_switch_is_made_that_takes_more_than_it_gains(tmp_path: Path) -> None:
    """Links are so slow that a segment takes longer to begin than all steps on one mix."""
    slow = asked(bytes_per_s=10_000_000)
    plan = build(slow, profile_sha256="0" * 64, output=tmp_path / "plan.json")
    assert len(plan.segments) == 1


def test_a_plan_says_which_steps_have_which_mix(made: tuple[Plan, Path]) -> None:
    """Among the alternatives, and with the kinds of rounds."""
    plan, _ = made
    told = [one for one in plan.solver.alternatives if not one.why_not]
    assert {one.layout for one in told} == {"1+1", "2x1"}
    words = "3 steps of at most 2,872 tokens"
    assert words in show(plan)
    assert words in describe_alternatives(plan)


def test_a_microbatch_of_the_other_mix_is_refused(made: tuple[Plan, Path], tmp_path: Path) -> None:
    """By step and sample: the long sample of a step in one for short ones, and one that only the
    rounds of the other mix have."""
    plan, path = made
    rows = np.array(open_table(table_path(path, "text"), BATCH))
    counts = {program.name: len(program.tokens) for program in plan.programs}
    few, many = sorted(counts, key=lambda name: counts[name])
    assert counts[few] < counts[many]
    step = 0 if plan.segments[0].program == few else DONE
    rows[step, 1] = counts[few]
    (task,) = plan.tasks
    assert task.lengths
    sha256 = write(table_path(tmp_path / "x.json", "text"), [rows])
    lengths = structs.replace(task.lengths, table=sha256)
    other = structs.replace(plan, tasks=(structs.replace(task, lengths=lengths),))
    with pytest.raises(InvalidPlan, match=f"step {step}: sample {step * BATCH + 1} is in"):
        prove_tables(other, tmp_path / "x.json", {"text": LENGTHS})


EVEN = np.random.default_rng(0).integers(500, 1_000, 64).astype(np.uint32)


def built(folder: Path, order: OrderName = "auto") -> Plan:
    """A pipeline of four stages with few microbatches, so that stages wait for one another."""
    profile = estimate(Spec("gpt2", "4090", 8, steps=4), lengths=EVEN)
    one = Problem.of(profile, devices=4, device_bytes=None, host_bytes=None)
    one = replace(one, layout=parse_layout("4x1"), packing="ffd", lengths={"gpt2": EVEN})
    return texts.built(replace(one, order=order), folder, seconds=600)


def orders(plan: Plan) -> list[str]:
    """The orders that were tried, that of the plan first."""
    return [one.order.partition(",")[0] for one in plan.solver.alternatives]


def test_passes_in_another_order_are_taken_where_steps_are_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a twentieth at least, against the same search of one order alone."""
    plan = built(tmp_path)
    assert {"1f1b", "interleaved", "zero-bubble"} <= {*orders(plan)}
    assert orders(plan)[0] != "1f1b"
    monkeypatch.setattr(choose, "_REORDERED", 0)
    alone = built(tmp_path)
    assert {*orders(alone)} == {"1f1b"}
    assert plan.prediction.makespan_us < 0.95 * alone.prediction.makespan_us


@pytest.mark.parametrize("order", ["gpipe", "interleaved", "breadth"])
def test_passes_come_in_the_order_that_is_asked_for(order: OrderName, tmp_path: Path) -> None:
    """In no other."""
    assert {*orders(built(tmp_path, order))} == {order}
