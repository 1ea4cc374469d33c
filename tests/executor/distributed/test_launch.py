"""Plans that several processes replay, of one node or of two that are this machine, against one
process; what interrupts them; stores that take memory only for what their node uses; worlds of
another shape than the plan."""

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from support import small_tasks
from support.agents import Ended, on_nodes
from support.cli import executor_cli, planner_cli, refused, succeeded
from support.forked import children, ended, started, torchrun
from support.noded import on_nodes as placed
from support.noded import relaid
from support.steady import steady

import plans
import profiles
from executor import driver
from executor.cutting import planned
from executor.devices import HostMemory, default_source
from executor.distributed import divisible
from executor.distributed.stores import SharedMemory
from executor.distributed.stores.memory import PAGE
from executor.distributed.world import World, world
from executor.errors import UsageError
from executor.numerics import same
from executor.profiling.profiler import Options, profile
from executor.records import checkpoint
from executor.shards import HostStore, Saved, Shared, host_room
from executor.workload import load
from plans import runlog
from plans.ops import parse_stream
from plans.order import kept_bytes, spans
from plans.part import Part
from plans.schema import Plan
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("quick", "untimed")

LINK = Emulation(10**9, 10**9, 5)
NODES = (0, 0, 1, 1)

Case = tuple[Plan, Plan]  # for one process and for several
TWO_NODES = ("there", "pipeline", "tasks", "begun", "rest")
ONE_NODE = ("replicas", "spilling")


def profiled(folder: Path, workload: str) -> Path:
    """A profile on a device with room for all."""
    options = Options(device_bytes=1 << 20, emulation=LINK, devices=1, samples=1)
    measured = steady(profile(f"{small_tasks.__file__}:{workload}", options))
    profiles.save(folder / f"{workload}.json", measured)
    return folder / f"{workload}.json"


def built(source: Path, *asked: str, devices: str = "4") -> Plan:
    """A plan for so many devices."""
    target = source.with_name("built.json")
    succeeded(planner_cli("build", source, "--devices", devices, *asked, "-o", target))
    return plans.load(target)


def part(plan: Plan, done: int, steps: int) -> Plan:
    """The plan for these steps of its task."""
    return replace(plan, tasks=(replace(plan.tasks[0], done=done, steps=steps),))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("built")
    dropout, three = profiled(folder, "dropout"), profiled(folder, "three")
    little = ("--layout", "1x1", "--device-memory", "110KiB")
    one = built(dropout, *little)
    there = relaid(one, [("t", (device,), 1) for device in (2, 3, 3, 2)])
    begun = relaid(part(one, 0, 2), [("t", (0,), 2)])
    rest = relaid(part(one, 2, 2), [("t", (3,), 1), ("t", (2,), 1)])
    asked = ("--layout", "2x1", "--order", "1f1b")
    pipeline = relaid(built(dropout, *asked), [("t", (1, 2), 4)])
    many, homes = built(three, *little), {"a": 0, "bb": 2, "ccc": 3}
    runs = [(s.program, (homes[many.trained(s)[0]],), s.rounds) for s in many.segments]
    tasks = relaid(many, runs)
    layout = ("--layout", "2x1", "--order", "gpipe", "--device-memory", "110KiB")
    spilling = built(profiled(folder, "pairs"), *layout, devices="2")
    replicas = built(profiled(folder, "scaled"), "--layout", "1x2", devices="2")
    return {
        "replicas": (replicas, replicas),
        "spilling": (spilling, spilling),
        "there": (there, placed(there, NODES)),
        "pipeline": (pipeline, placed(pipeline, NODES)),
        "tasks": (tasks, placed(tasks, NODES)),
        "begun": (begun, placed(begun, NODES)),
        "rest": (rest, placed(rest, NODES)),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cases: dict[str, Case]) -> Path:
    """The plans, and what one process makes of those for one node."""
    folder = tmp_path_factory.mktemp("nodes")
    for name, plans_of in cases.items():
        for many, plan in zip(("one", "two"), plans_of, strict=True):
            plans.prove(plan)
            plans.save(folder / f"{name}-{many}.json", plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in cases:
            if name == "rest":
                for many in ("one", "two"):
                    shutil.copytree("begun/one", f"rest/{many}")
            succeeded(executor_cli(*command(name, "one")))
    return folder


def command(name: str, many: str) -> list[str]:
    """The command that replays a case."""
    return ["run", f"{name}-{many}.json", "-o", f"{name}/{many}"]


@pytest.fixture(scope="module")
def codes(folder: Path) -> tuple[list[Ended], Ended]:
    """All cases in two processes of each of two nodes, and last a plan for one node; those of one
    node in two processes."""
    calls = [[command(name, "two") for name in names] for names in (TWO_NODES, ONE_NODE)]
    other = ["run", "there-one.json", "-o", "other"]
    two = on_nodes(folder, [*calls[0], other], nodes=2, processes=2)
    (one,) = on_nodes(folder, calls[1], nodes=1, processes=2)
    return two, one


@pytest.mark.parametrize("name", [*TWO_NODES, *ONE_NODE])
def test_several_processes_have_the_bits_of_one(
    folder: Path, codes: tuple[list[Ended], Ended], name: str
) -> None:
    """Losses, ops, all that files hold which process 0 has written, and the most memory used."""
    assert codes[0][0].codes[:-1] == [0] * len(TWO_NODES), codes[0][0].output
    assert codes[1].codes == [0] * len(ONE_NODE), codes[1].output
    one, two = (runlog.load(folder / name / many) for many in ("one", "two"))
    for kind in ("steps", "evaluations"):
        losses = [{(s.task, s.step): s.loss for s in getattr(log, kind)} for log in (one, two)]
        assert losses[0] == losses[1]
    ops = [sorted((op.segment, op.op, op.round) for op in log.ops) for log in (one, two)]
    assert ops[0] == ops[1]
    assert two.end.peak_bytes == one.end.peak_bytes
    files = list((folder / name / "one").glob("*.pt"))
    assert files
    for file in files:
        assert same(torch.load(file), torch.load(folder / name / "two" / file.name))


def test_a_plan_for_one_node_is_refused_on_two(codes: tuple[list[Ended], Ended]) -> None:
    """In one line, of process 0; exit code 2 everywhere."""
    nodes = codes[0]
    assert [one.codes[-1] for one in nodes] == [2, 2]
    assert [one.code for one in nodes] == [1, 1]  # torchrun's own
    told = [line for one in nodes for line in one.output.splitlines() if "error:" in line]
    assert told == [
        "error: the plan is for 1 node(s), and this run is on 2; start torchrun --nnodes 1 "
        "--nproc-per-node N -m executor run PLAN on one, or build for --nodes"
    ]


def test_a_plan_for_two_nodes_is_refused_on_one(folder: Path) -> None:
    """Whether there are several processes or one."""
    answer = executor_cli("run", folder / "there-two.json", "-o", folder / "none")
    refused(answer, 2, "is for 2 node(s), and this run is on 1; start torchrun --nnodes 2")
    assert not (folder / "none").exists()
    with pytest.raises(UsageError, match="for 2 node"):
        World(0, 2).ranks(plans.load(folder / "there-two.json"))


def test_processes_have_the_devices_of_their_node(cases: dict[str, Case]) -> None:
    """In the order of the plan, wherever the plan has them."""
    plan = cases["there"][1]
    assert World(1, 2, nodes=2).ranks(plan) == [0, 0, 1, 1]
    assert World(1, 4, nodes=2).ranks(plan) == [0, 1, 2, 3]
    mixed = [replace(d, node=node) for d, node in zip(plan.devices, (1, 0, 1, 0), strict=True)]
    assert World(1, 4, nodes=2).ranks(replace(plan, devices=tuple(mixed))) == [2, 0, 3, 1]
    with pytest.raises(UsageError, match="node 0's 2 devices equally"):
        World(1, 6, nodes=2).ranks(plan)


def test_nodes_have_equally_many_processes() -> None:
    """Said by every process that sees it."""
    given = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "RANK": "3"}
    assert world(given | {"LOCAL_WORLD_SIZE": "2"}) == World(3, 4, 2)
    with pytest.raises(UsageError, match="node 1 has 3 of 4 processes on 2 nodes"):
        world(given | {"LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1"})


Apart = tuple[Plan, runlog.RunLog]
LATE_US = 1000


@pytest.fixture(scope="module")
def apart(folder: Path) -> Apart:
    """A plan of a device on each node, and its log when their clocks are far apart."""
    plan = placed(plans.load(folder / "spilling-one.json"), (0, 1))
    plans.save(folder / "apart.json", plan)
    command = ["run", "apart.json", "-o", "apart"]
    for one in on_nodes(folder, [command], nodes=2, processes=1, APART="1"):
        assert one.code == 0, one.output
    return plan, runlog.load(folder / "apart")


def test_what_crosses_is_read_after_it_was_sent(apart: Apart) -> None:
    """In both directions, by the times in the log; and all that happened did so within the run."""
    plan, log = apart
    assert 0 < max(op.end_us for op in log.ops) <= log.end.actual_us + LATE_US
    assert min(op.end_us for op in log.ops) > 0
    starts = {(op.op, op.round): op.start_us for op in log.ops}
    readers = {
        (before, op.id, op.stream)
        for op in plan.programs[0].round
        for before in op.after
        if before.partition(".")[2].partition(".")[2].startswith("X")
    }
    assert {parse_stream(stream).device for _, _, stream in readers} == {0, 1}
    for send, reader, _ in readers:
        for number in range(plan.tasks[0].steps):
            assert starts[reader, number] > starts[send, number] - LATE_US


def test_ops_say_which_process_ran_them(apart: Apart) -> None:
    """Each device has one here, and a send is an op of its sender."""
    plan, log = apart
    program = plan.programs[0]
    streams = {op.id: op.stream for op in (*program.enter, *program.round, *program.leave)}
    assert {op.rank for op in log.ops} == {0, 1}
    assert all(op.rank == parse_stream(streams[op.op]).device for op in log.ops)


def test_processes_that_cannot_share_the_devices_are_refused(folder: Path) -> None:
    """With both numbers."""
    told = (
        "3 processes cannot share the plan's 2 devices equally; start torchrun with a "
        "--nproc-per-node that divides 2, or build for --devices 3"
    )
    with pytest.raises(UsageError, match=re.escape(told)):
        World(0, 3).ranks(plans.load(folder / "spilling-one.json"))


def test_gpus_of_several_processes_drop_no_task(folder: Path) -> None:
    """NCCL does not tell what a segment that was stopped has sent from what the next one sends."""
    plan = plans.load(folder / "spilling-one.json")
    gpus = tuple(replace(one, kind="cuda", emulation=None) for one in plan.devices)
    divisible(plan, World(0, 2), keep_going=True)
    divisible(replace(plan, devices=gpus), World(0, 2), keep_going=False)
    with pytest.raises(UsageError, match="--keep-going cannot drop"):
        divisible(replace(plan, devices=gpus), World(0, 2), keep_going=True)


def test_an_interrupt_ends_the_run_where_states_are_whole(folder: Path) -> None:
    """Torchrun hands it on to all; the log says so, and what is kept is the last step."""
    plan = plans.load(folder / "spilling-one.json")
    long = relaid(part(plan, 0, 100_000), [(plan.programs[0].name, (0, 1), 100_000)])
    plans.save(folder / "long.json", long)
    said = folder / "said"
    agent = started(torchrun(2, "-m", "executor", "run", "long.json", "-o", "i"), said, folder)
    log, deadline = folder / "i" / runlog.LOG, time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 5_000):
        time.sleep(0.05)
    workers = children(agent.pid)
    os.kill(agent.pid, signal.SIGINT)
    ended(agent, 60)
    assert "interrupted by SIG" in said.read_text()
    told = runlog.load(folder / "i")
    assert told.end.status == "interrupted"
    (kept,) = told.checkpoints
    assert kept.step == max(step.step for step in told.steps) + 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def taken(memory: SharedMemory) -> int:
    """Bytes of the pages that have been touched."""
    return os.stat(memory.path).st_blocks * 512


def first_part(plan: Plan, node: int) -> Part:
    """The plan as the first process of a node has it, of two."""
    return Part(plan, World(0, 2, nodes=2).ranks(plan), node)


def stored(plan: Plan, memory: SharedMemory, node: int, saved: Mapping[str, Saved]) -> HostStore:
    """The plan's store as the first process of a node has it."""
    tasks, _ = load(plan.tasks[0].workload.ref)
    shared = Shared(memory.flat, fills=True)
    source = default_source("cpu")
    return HostStore(
        first_part(plan, node), tasks, HostMemory(), source, saved, planned, None, shared
    )


@pytest.mark.parametrize("node", [0, 1])
def test_a_store_takes_memory_for_what_its_node_uses(cases: dict[str, Case], node: int) -> None:
    """A pipeline with a stage on each: the pages of the other stage are not touched."""
    plan = cases["pipeline"][1]
    memory = SharedMemory(plan.host.bytes)
    stored(plan, memory, node, {})
    own = sum(end // PAGE - start // PAGE + 1 for start, end in spans(plan)[node]) * PAGE
    assert 0 < taken(memory) <= own < plan.host.bytes
    memory.give_back(0, plan.host.bytes)
    assert taken(memory) <= PAGE


def test_a_task_that_goes_on_elsewhere_takes_no_memory(
    folder: Path, cases: dict[str, Case]
) -> None:
    """Its counters are known in process 0 as well, which hands them on."""
    plan = cases["rest"][1]
    saved = checkpoint.load(folder / "begun" / "one", plan.tasks)
    memories = [SharedMemory(plan.host.bytes) for _ in range(2)]
    stores = [stored(plan, memory, node, saved) for node, memory in enumerate(memories)]
    assert taken(memories[0]) == 0
    assert taken(memories[1]) > 0
    sizes = [host_room.store_bytes(first_part(plan, node)) for node in range(2)]
    guest = kept_bytes(plan.tasks[0])  # to be written to a file
    assert sizes == [guest, plan.host.bytes]
    known = [store.tasks["t"].carried(0) for store in stores]
    assert known[0]
    assert same(known[0]._asdict(), known[1]._asdict() if known[1] else None)


def test_devices_have_the_numbers_of_their_machine(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first GPU of a node is its number 0."""
    plan, seen = cases["there"][1], list[int]()

    def noted(*_: object, first: int, casts: bool) -> list[None]:
        seen.append(first)
        return [None]

    monkeypatch.setattr(driver, "open_devices", noted)
    for me in range(4):
        with suppress(AttributeError), driver.machine(Part(plan, range(4), me)):
            pass
    assert seen == [0, 1, 0, 1]
