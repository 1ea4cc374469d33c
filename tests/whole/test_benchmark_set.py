"""The planner's benchmark set: what it holds, and that an instance goes through."""

from dataclasses import replace

import pytest

from profiles import violations
from profiles.schema import Host, Machine, Profile
from tests.benchmarks import planner_set
from tests.benchmarks.instances import Instance, footprint, instances, problem

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


@pytest.mark.parametrize("instance", instances()[5::96], ids=lambda one: one.base["name"])
def test_every_base_expands_to_a_sound_problem(instance: Instance) -> None:
    """One microbatch size, the asked links, a budget of that share of what everything takes."""
    asked = problem(instance)
    (task,) = asked.tasks
    assert [batch.microbatch for batch in task.batches] == [16 // instance.microbatches]
    rates = {link.alone.bytes_per_s for link in asked.device.links if link.kind != "d2d"}
    assert rates == {link.both.bytes_per_s for link in asked.device.links if link.kind != "d2d"}
    assert rates == {instance.link_gb_per_s * 10**9}
    assert asked.device_bytes == footprint(task) * instance.memory_percent // 100
    host = Host(usable_bytes=asked.host_bytes, cores=1)
    machine = Machine(devices=(asked.device,), host=host, load=1)
    assert violations(Profile(machine=machine, tasks=asked.tasks)) == []
    held = sum(layer.param_bytes + layer.grad_bytes + layer.state_bytes for layer in task.layers)
    assert footprint(task) > held


def test_random_chains_span_what_can_be_short() -> None:
    """Among the chains some are bound by compute, some by a link, some by the host's updates."""
    short = set()
    for instance in instances():
        grid = instance.link_gb_per_s, instance.optimizer, instance.microbatches
        if instance.base["kind"] == "chain" and grid == (12, "adamw", 4):
            (task,) = problem(instance).tasks
            runs = instance.microbatches
            costs = [layer.costs[0] for layer in task.layers]
            loads = {
                "compute": runs * sum(c.forward.median_us + c.recompute_backward.median_us
                                      for c in costs),
                "link": 2 * sum(layer.param_bytes for layer in task.layers) // 12_000,
                "host": sum(layer.update_host.median_us for layer in task.layers),
            }  # fmt: skip
            short.add(max(loads, key=lambda name: loads[name]))
    assert short == {"compute", "link", "host"}


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
