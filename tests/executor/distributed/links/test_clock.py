"""The clock of a run in processes of other machines."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support import small_tasks
from support.agents import on_nodes
from support.cli import planner_cli, succeeded
from support.noded import on_nodes as placed
from support.steady import steady

import plans
import profiles
from executor.profiling.profiler import Options, profile
from plans import runlog
from plans.ops import parse_stream
from profiles.schema import Emulation

pytestmark = pytest.mark.usefixtures("quick", "untimed")

LATE_US = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two devices, and its log when their processes have clocks far apart."""
    folder = tmp_path_factory.mktemp("clocks")
    options = Options(device_bytes=1 << 20, emulation=Emulation(10**9, 10**9, 5), samples=1)
    measured = steady(profile(f"{small_tasks.__file__}:dropout", options))
    profiles.save(folder / "profile.json", measured)
    call = ("build", folder / "profile.json", "--devices", "2", "--layout", "2x1")
    succeeded(planner_cli(*call, "-o", folder / "plan.json"))
    plans.save(folder / "plan.json", placed(plans.load(folder / "plan.json"), (0, 1)))
    command = ["run", "plan.json", "-o", "x"]
    for one in on_nodes(folder, [command], nodes=2, processes=1, APART="1"):
        assert one.code == 0, one.output
    return folder


def test_what_crosses_is_read_after_it_was_sent(folder: Path) -> None:
    """In both directions, by the times in the log; and all that happened did so within the run."""
    plan, log = plans.load(folder / "plan.json"), runlog.load(folder / "x")
    assert log.end
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


def test_ops_say_which_process_ran_them(folder: Path) -> None:
    """Each device has one here, and a send is an op of its sender."""
    plan, log = plans.load(folder / "plan.json"), runlog.load(folder / "x")
    program = plan.programs[0]
    streams = {op.id: op.stream for op in (*program.enter, *program.round, *program.leave)}
    assert {op.rank for op in log.ops} == {0, 1}
    assert all(op.rank == parse_stream(streams[op.op]).device for op in log.ops)


def test_reports_read_such_a_log(folder: Path) -> None:
    """Comparison, picture and trace."""
    call = "compare", folder / "plan.json", folder / "x"
    files = folder / "run.png", folder / "run.json"
    succeeded(planner_cli(*call, "--gantt", files[0], "--trace", files[1]))
    assert all(file.stat().st_size > 1000 for file in files)
