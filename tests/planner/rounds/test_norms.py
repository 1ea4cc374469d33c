"""Plans of tasks whose updates wait for the norms of all gradients."""

import pytest
from msgspec import structs
from support import synthetic

from planner import Infeasible, Problem, build
from planner.bounds.task import task_bound
from planner.inputs.problem import Effort
from planner.shards.costs import TaskCosts
from planner.shards.shard_cost import Links
from plans.schema import Op, Plan
from profiles.check import violations
from profiles.schema import Numerics, Profile

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64
CASES = ((3, 1), (6, 50), (8, 1), (100, 50))  # MiB of the device, slowness of the host


def profile(*, norms: bool = True, states: int = 2, host_slowness: int = 1) -> Profile:
    """Five layers of a MiB or so."""
    task = synthetic.task(
        "t", layers=5, steps=50, norms=norms, states=states, host_slowness=host_slowness
    )
    return synthetic.profile(task, usable_bytes=1 << 30)


def built(of: Profile, mib: int, policy: str = "gantry") -> Plan:
    asked = Problem.of(of, devices=1, device_bytes=mib << 20, host_bytes=None)
    return build(asked, profile_sha256=HASH, policy=policy)  # type: ignore[arg-type]


def kinds(plan: Plan, stream: str) -> str:
    """The kinds of a stream's ops in a round, in order."""
    ops = [op for op in plan.programs[0].round if op.stream == stream]
    return "".join(op.name.kind for op in ops)


def ops(plan: Plan, kind: str) -> list[Op]:
    return [op for op in plan.programs[0].round if op.name.kind == kind]


@pytest.mark.parametrize(("mib", "slowness"), CASES)
def test_every_update_follows_every_note(mib: int, slowness: int) -> None:
    """From devices that just fit a few shards to one that holds all: each shard's N once, right
    behind its last backward, and no update before the last of them."""
    plan = built(profile(host_slowness=slowness), mib)
    assert {op.id.split(".")[1] for op in ops(plan, "N")} == {
        f"s{k}" for k in range(len(plan.tasks[0].shards))
    }
    compute = kinds(plan, "0.compute")
    assert "U" not in compute[: compute.rindex("N")]
    noted = max(op.end_us for op in ops(plan, "N"))
    assert all(op.start_us >= noted for op in ops(plan, "U"))
    assert all("norm" in op.reads for op in ops(plan, "U"))


@pytest.mark.parametrize("states", [0, 2])
def test_the_baseline_waits_for_norms_too(states: int) -> None:
    """Its gradients wait on the host, and one more sweep updates."""
    plan = built(profile(states=states), 12, "hydra")
    compute = kinds(plan, "0.compute")
    assert compute.endswith("U" * len(plan.tasks[0].shards))
    assert compute.count("N") == compute.count("U")


def test_norms_that_nobody_reads_on_the_host_stay_on_the_device() -> None:
    """Few bytes, but a copy takes its time."""
    plan = built(profile(host_slowness=50), 100)
    assert [op.id for op in plan.programs[0].round if ".norm." in op.id] == []
    assert not any(buffer.name == "t.norm" for buffer in plan.host.buffers)
    others = built(profile(), 6).host.buffers
    assert [buffer.name for buffer in others if buffer.name.endswith("norm")] == ["t.norm"]


def test_a_plan_says_how_its_tasks_compute() -> None:
    """Precision, norms and the switches of the process come from the profile."""
    of = profile()
    task = structs.replace(of.tasks[0], precision="fp16-autocast")
    machine = structs.replace(of.machine, numerics=Numerics(tf32=True))
    plan = built(structs.replace(of, machine=machine, tasks=(task,)), 100)
    assert plan.numerics == Numerics(tf32=True)
    assert plan.tasks[0].precision == "fp16-autocast"
    assert plan.tasks[0].norm_bytes == task.norm_bytes > 0


def test_noting_norms_takes_compute_time() -> None:
    """The compute bound is longer by it."""
    with_norms, without = (profile(norms=norms).tasks[0] for norms in (True, False))
    links = Links.of(profile().machine.devices[0])
    bounds = [task_bound(t, Effort(1e12, 0), links, 1 << 30) for t in (with_norms, without)]
    noting = TaskCosts(with_norms, 1).total("norm_us")
    assert bounds[0].us("compute") - bounds[1].us("compute") == noting > 0


def buffered(kind: str) -> Profile:
    """Two tasks with module buffers of a MiB each, on a device of this kind."""
    made = []
    for name in "ab":
        task = synthetic.task(name, layers=4, steps=9)
        first = structs.replace(task.layers[0], buffer_bytes=1 << 20)
        made.append(structs.replace(task, layers=(first, *task.layers[1:])))
    of = synthetic.profile(*made, usable_bytes=1 << 26)
    device = structs.replace(of.machine.devices[0], kind=kind, emulation=None)
    return structs.replace(of, machine=structs.replace(of.machine, devices=(device,)))


def test_a_cuda_device_holds_the_buffers_of_all_tasks() -> None:
    """Its budget is what they leave; elsewhere they are in the reserve of the task at work."""
    budgets = {kind: built(buffered(kind), 12).devices[0].budget_bytes for kind in ("cpu", "cuda")}
    assert budgets == {"cpu": 12 << 20, "cuda": 10 << 20}


def test_budgets_in_messages_are_those_of_the_command() -> None:
    """With the module buffers that a CUDA device holds beside."""
    with pytest.raises(Infeasible, match=r"the device offers 3\.0 MiB") as caught:
        built(buffered("cuda"), 3)
    asked = Problem.of(
        buffered("cuda"), devices=1, device_bytes=caught.value.smallest, host_bytes=None
    )
    assert build(asked, profile_sha256=HASH)


def test_a_profile_times_norms_exactly_where_updates_wait() -> None:
    of = profile()
    assert violations(of) == []
    (task,) = of.tasks
    plain = structs.replace(task, norm_bytes=0)
    assert any(
        "norm_bytes are 0" in line for line in violations(structs.replace(of, tasks=(plain,)))
    )
    layers = tuple(structs.replace(layer, norm=None) for layer in task.layers)
    bare = structs.replace(of, tasks=(structs.replace(task, layers=layers),))
    assert len([line for line in violations(bare) if "but no norm time" in line]) == 5
