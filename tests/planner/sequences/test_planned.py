"""Plans of a task whose samples have lengths."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic
from support.texts import text_task

import plans
from planner import Infeasible, Problem, build
from planner.inputs import PackingName, parse_layout
from plans import prove_tables
from plans.order import task_runs
from plans.samples import open_table, table_path
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

PLENTY, ROOM, LITTLE = 1 << 30, 17 << 20, 15 << 20
STEPS, BATCH = 12, 8
LENGTHS = np.minimum(4096, np.random.default_rng(0).lognormal(6, 1, 70)).astype(np.uint32) + 8


def asked(room: int = PLENTY, devices: int = 2, packing: PackingName = "auto") -> Problem:
    task = text_task(
        lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=(2_000_000, 3_000_000, 50_000)
    )
    profile = synthetic.profile(task, usable_bytes=room)
    one = Problem.of(profile, devices=devices, device_bytes=room, host_bytes=None)
    return replace(one, packing=packing, lengths={task.name: LENGTHS})


def built(problem: Problem, folder: Path) -> Plan:
    """Its plan, saved, and its table proven for the lengths of all samples."""
    output = folder / "plan.json"
    plan = build(problem, profile_sha256="0" * 64, output=output)
    plans.save(output, plan)
    prove_tables(plan, output, {"text": LENGTHS})
    return plan


@pytest.mark.parametrize("packing", ["pad", "fixed", "ffd", "balanced"])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_packing_has_a_sound_plan(packing: PackingName, devices: int, tmp_path: Path) -> None:
    """The checker proves plan and table, and the table has a row for each step."""
    plan = built(asked(devices=devices, packing=packing), tmp_path)
    rows = open_table(table_path(tmp_path / "plan.json", "text"), BATCH)
    assert len(rows) == STEPS == sum(run.steps for run in task_runs(plan, "text"))
    lengths = plan.tasks[0].lengths
    assert lengths
    assert lengths.padded == (packing == "pad")


def test_auto_is_no_longer_than_packings_and_layouts(tmp_path: Path) -> None:
    """In a memory that is short for the longest sample; to one part in fifty, by which steps of a
    kind may differ from their mean."""
    auto = built(asked(ROOM), tmp_path).prediction.makespan_us
    others = [asked(ROOM, packing="pad"), asked(ROOM, packing="balanced")]
    others += [replace(asked(ROOM), layout=parse_layout(one)) for one in ("2x1", "1x2")]
    assert all(auto <= built(one, tmp_path).prediction.makespan_us * 1.02 for one in others)


def test_little_memory_gets_pipelines_of_several_depths(tmp_path: Path) -> None:
    """On three devices of which one alone cannot hold the longest sample, two are one pipeline."""
    with pytest.raises(Infeasible):
        built(asked(LITTLE, devices=1), tmp_path)
    plan = built(asked(LITTLE, devices=3), tmp_path)
    told = next(one for one in plan.solver.alternatives if not one.why_not)
    assert told.layout == "2+1"


def test_the_memory_that_a_refusal_names_would_do(tmp_path: Path) -> None:
    """The refusal is about the longest sample; with what it says there is a plan."""
    longest = f"longest sample has {LENGTHS.max()} tokens"
    with pytest.raises(Infeasible, match=longest) as refused:
        built(asked(1 << 20), tmp_path)
    assert built(asked(refused.value.smallest), tmp_path)


def test_the_same_inputs_give_the_same_plan(tmp_path: Path) -> None:
    """Byte for byte, with the same table."""
    one, other = (built(asked(), tmp_path) for _ in range(2))
    assert one == other


def test_models_that_mix_sequences_get_one_in_each_microbatch(tmp_path: Path) -> None:
    """No two samples of a step share one."""
    one = asked()
    (task,) = one.tasks
    assert task.lengths
    lengths = structs.replace(task.lengths, why_not="its convolution reaches across")
    built(one.alike(tasks=(structs.replace(task, lengths=lengths),)), tmp_path)
    rows = open_table(table_path(tmp_path / "plan.json", "text"), BATCH)
    assert all(len(set(row)) == BATCH for row in rows.tolist())
