"""The planner's benchmark set: what it holds, and that an instance goes through."""

from dataclasses import replace

import pytest

from tests.benchmarks import planner_set
from tests.benchmarks.instances import Instance, instances, problem

TINY = Instance(
    {
        "kind": "chain", "name": "tiny", "batch": 4, "steps": 1000, "seed": 0, "layers": 8,
        "param_kib": 4000, "boundary_kib": 100, "forward_us": 500, "device_gb_per_s": 1000,
        "host_gb_per_s": 50,
    },
    memory_percent=80, link_gb_per_s=12, optimizer="adamw", microbatches=2,
)  # fmt: skip


def test_the_set_is_the_same_1440_instances_every_time() -> None:
    """15 bases x 4 memories x 4 links x 2 optimizers x 3 microbatch counts, each once."""
    names = [instance.name for instance in instances()]
    assert len(names) == len(set(names)) == 1440
    assert names[0] == "gpt2-xl/mem10/link5/sgd/mb1"
    assert names[-1] == "even-200/mem80/link50/adamw/mb16"
    some = instances()[::97]
    assert [problem(one) for one in some] == [problem(one) for one in some]


def test_a_tiny_instance_goes_through() -> None:
    """It is planned by both policies, with a bound below its period, and reported in one line."""
    row = planner_set.solve(TINY, 5.0)
    assert row.status == "ok"
    assert row.gap is not None
    assert 0 <= row.gap < 1
    assert row.ratio is not None
    assert row.ratio >= 1
    assert planner_set.line(row).startswith("tiny/mem80/link12/adamw/mb2")
    head, overall, *_ = planner_set.groups([row])
    assert dict(zip(head, overall, strict=True))["planned"] == "1"
    assert f"{row.gap:.2%}" in overall
    assert "- none" in planner_set.markdown([row], 5.0)


def test_an_instance_without_room_says_how_much_would_do() -> None:
    """Infeasible is a row with the smallest budget, in the list below the table."""
    row = planner_set.solve(replace(TINY, memory_percent=1), 5.0)
    assert row.status == "infeasible"
    assert row.smallest_bytes
    assert row.period_us is None
    assert f"- {planner_set.line(row)}" in planner_set.markdown([row], 5.0)


def test_an_instance_that_breaks_the_planner_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on: its row names the error."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(planner_set, "build", broken)
    assert planner_set.solve(TINY, 5.0).status == "FAILED, RuntimeError: no such luck"
