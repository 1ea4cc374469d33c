"""Tasks on several nodes: each keeps to its own, and its states are where they are read, as their
execution on bytes says."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, succeeded
from support.replayed import run_harm

import planner
import plans
from planner import Infeasible, Options, Problem, build, face, load, read_problem
from planner.inputs import Layout, Nodes, on_nodes
from planner.inputs.problem import Policy
from plans.order import nodes_of, store_bytes
from plans.schema import Plan
from profiles.codec import pretty, write_atomic
from profiles.errors import FormatError
from profiles.schema import Evaluation, Link, Rate

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64


def problem(nodes: Nodes, tasks: int, *, steps: int = 40, every: int | None = None) -> Problem:
    """Tasks on nodes, evaluated every so many steps."""
    sizes = {"param_bytes": 1 << 14, "boundary_bytes": 1 << 10}
    made = [synthetic.task(f"t{n}", layers=4, steps=steps, batch=4, **sizes) for n in range(tasks)]
    if every:
        own = Evaluation(every=every, batches=2)
        made = [structs.replace(task, evaluation=own) for task in made]
    asked = synthetic.problem(*made, usable_bytes=64 << 20, devices=nodes.total)
    net = Link("net", Rate(10**9, 20), Rate(10**9, 20))
    device = structs.replace(asked.device, links=(*asked.device.links, net))
    return on_nodes(asked.alike(device=device), nodes)


def built(asked: Problem) -> Plan:
    """Its plan, proven."""
    return build(asked, profile_sha256=HASH)


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_tasks_keep_to_their_node(policy: Policy) -> None:
    """Three tasks on two nodes of two devices, of which no work can be shared out evenly."""
    asked = replace(problem(Nodes(2, 2), 5), layout=Layout(((1,),)) if policy == "gantry" else None)
    plan = build(asked, profile_sha256=HASH, policy=policy)
    nodes: dict[str, set[int]] = {}
    for segment in plan.segments:
        nodes.setdefault(segment.program, set()).update(nodes_of(plan, segment))
    assert sorted(map(len, nodes.values())) == [1] * 5
    assert set.union(*nodes.values()) == {0, 1}


def test_a_pipeline_over_two_nodes_has_its_states_there() -> None:
    plan = built(replace(problem(Nodes(2, 1), 1, steps=4), layout=Layout(((1, 1),))))
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 1)}
    assert run_harm(plan) is None


@pytest.mark.parametrize("layout", [Layout(((2, 2),)), Layout(((4,),))])
def test_what_trains_on_several_nodes_is_evaluated_there(layout: Layout) -> None:
    """Each pass where it trains, with the parameters of the node that has the shard's state."""
    plan = built(replace(problem(Nodes(2, 2), 1, every=10), layout=layout))
    programs = {program.name: program for program in plan.programs}
    assert {programs[one.program].evaluates for one in plan.segments} == {True, False}
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 0, 1, 1)}
    assert plans.violations(plan) == []


def test_replicas_on_several_nodes_get_what_their_home_wrote() -> None:
    """Their segments begin with the parameters of the ones before, over the network."""
    asked = problem(Nodes(2, 2), 1, steps=4)
    asked = replace(asked, layout=Layout(((4,),)), segment_steps=2)
    plan = built(asked)
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 0, 1, 1)}
    enter = [op.id.split(".")[2][0] for op in plan.programs[0].enter]
    assert enter.count("X") == 2 * len(plan.tasks[0].shards)
    assert plans.violations(plan) == []
    assert run_harm(plan) is None


def test_every_node_has_memory_for_its_own_tasks() -> None:
    """Four tasks on two nodes, either of which has room for two."""
    asked = replace(problem(Nodes(2, 1), 4), layout=Layout(((1,),)))
    most = max(store_bytes(built(asked)))
    plan = built(replace(asked, host_bytes=most))
    assert plan.host.bytes > most >= max(store_bytes(plan))
    with pytest.raises(Infeasible, match="smallest --host-memory that would do"):
        built(replace(asked, host_bytes=most // 3))


ROOT = Path(__file__).parents[2]


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "planner/README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert capsys.readouterr().out.startswith("plan by gantry, seed 0: makespan ")


def test_every_name_of_the_face_is_there_and_documented() -> None:
    for name in (name for name in vars(face) if not name.startswith("_")):
        assert getattr(planner, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        _ = planner.nothing


def test_the_command_makes_the_plan_that_python_makes(tmp_path: Path) -> None:
    """With every sort of wish, to the byte, also what the plan says of its inputs."""
    tasks = [synthetic.task(name, layers=2, steps=3, batch=4) for name in "ab"]
    profile = tmp_path / "p.json"
    write_atomic(profile, pretty(synthetic.profile(*tasks, usable_bytes=32 << 20)))
    flags = ("--devices", "2", "--h2d", "2GB/s", "--objective", "completion", "--priority", "b=3")
    flags += ("--start", "a=1s", "--deadline", "b=1h", "--segment-steps", "2")
    succeeded(planner_cli("build", str(profile), "-o", str(tmp_path / "plan.json"), *flags))
    asked = Options(
        devices=2,
        h2d=2 * 10**9,
        objective="completion",
        priority={"b": 3},
        start={"a": 10**6},
        deadline={"b": 3600 * 10**6},
        segment_steps=2,
    )
    plan = build(read_problem(str(profile), asked))
    assert plan == load(str(tmp_path / "plan.json"))
    assert plan.provenance["deadline b"] == "3600000000 us"
    assert set(plan.inputs) == {"profile"}


def test_wishes_that_do_not_go_together_are_refused() -> None:
    sample = str(ROOT / "profiles/sample.json")
    with pytest.raises(FormatError, match="--objective completion"):
        read_problem(sample, Options(priority={"a": 2}))
    with pytest.raises(FormatError, match="--devices says 2 numbers but there is 1 profile"):
        read_problem(sample, Options(devices=(1, 2)))
