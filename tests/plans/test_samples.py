"""Files beside plans: tables of samples and run logs; and the part of a plan that a process has."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs
from support import handmade, timetables
from support.kinded import kinded, with_kind
from support.noded import NODED

from plans import runlog, timing
from plans import trace as module
from plans.order import held
from plans.part import Part
from plans.samples import open_order, open_table, table_path, write
from plans.schema import Plan
from plans.trace import happened, trace
from profiles.codec import file_sha256
from profiles.errors import FormatError


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Little-endian, row after row, whether rows come alone or in blocks."""
    path = tmp_path / "x.samples"
    digest = write(path, [np.array([0, 1, 258]), np.array([[3, 2, 1], [65535, 0, 9]])])
    assert path.read_bytes()[:6] == bytes([0, 0, 1, 0, 2, 1])
    assert open_table(path, 3).tolist() == [[0, 1, 258], [3, 2, 1], [65535, 0, 9]]
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest() == file_sha256(path)


def test_a_table_that_ends_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.samples"
    write(path, [np.array([7])])

    def broken() -> Iterator[np.ndarray]:
        yield np.array([8])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(path, broken())
    assert open_table(path, 1).tolist() == [[7]]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("entry", [-1, 1 << 16])
def test_what_does_not_fit_is_refused(tmp_path: Path, entry: int) -> None:
    """A number is never cut down to 16 bits."""
    with pytest.raises(ValueError, match="not below 65536"):
        write(tmp_path / "x.samples", [np.array([entry])])


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"", "0 bytes"), (b"abc", "3 bytes"), (b"abcd", "rows of 3")],
)
def test_a_file_that_is_no_such_table_is_an_error(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "x.samples"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=words):
        open_table(path, 3)


def test_a_table_lies_beside_its_plan() -> None:
    assert table_path("plans/long.json", "gpt-a") == Path("plans/long.gpt-a.samples")


def test_a_table_begins_with_the_order_of_its_samples(tmp_path: Path) -> None:
    """If they have one; and is no table of samples without."""
    path, order = tmp_path / "x.samples", np.array([70_000, 0, 1], np.uint32)
    write(path, [np.array([[3, 2], [1, 0]])], order)
    assert open_order(path, 3).tolist() == [70_000, 0, 1]
    assert open_table(path, 2, 3).tolist() == [[3, 2], [1, 0]]
    assert open_order(path, 0) is None
    for batch, ordered in ((3, 3), (2, 5), (2, 9)):
        with pytest.raises(FormatError, match=f"rows of {batch}"):
            open_table(path, batch, ordered)


def _write(path: Path, log: runlog.RunLog) -> Path:
    ends = [log.end] if log.end else []
    path.write_bytes(runlog.encode([log.header, *log.ops, *log.steps, *ends]))
    return path


def test_log_survives_the_file(tmp_path: Path) -> None:
    """What was written is what is read, line kind by line kind."""
    log = timetables.log(timetables.plan())
    assert runlog.load(_write(tmp_path / "run.jsonl", log)) == log


def test_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    """NaN cannot be written in JSON; a step without a loss comes back as None."""
    log = timetables.log(timetables.tiny())
    steps = (runlog.StepRecord("a", 0, None, 5),)
    path = _write(tmp_path / "run.jsonl", msgspec.structs.replace(log, steps=steps))
    assert b'"loss":null' in path.read_bytes()
    assert runlog.load(path).steps == steps


def test_broken_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.jsonl", timetables.log(timetables.tiny()))
    rows = path.read_bytes().splitlines()
    rows[2] = rows[2].replace(b'"round":', b'"lap":')
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(FormatError, match=r"run\.jsonl: line 3: .*lap"):
        runlog.load(path)


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    """What a killed run was just writing is no error; the run has no end."""
    path = _write(tmp_path / "run.jsonl", timetables.log(timetables.tiny()))
    whole = runlog.load(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert runlog.load(path) == structs.replace(whole, end=None)


@pytest.mark.parametrize("drop", [0, None])
def test_log_must_begin_with_a_header(tmp_path: Path, drop: int | None) -> None:
    """Without its first line, or empty, a file is no run log."""
    path = _write(tmp_path / "run.jsonl", timetables.log(timetables.tiny()))
    rows = [] if drop is None else path.read_bytes().splitlines()[1:]
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(FormatError, match="line 1: this is not a run log"):
        runlog.load(path)


def test_the_logs_of_a_folder(tmp_path: Path) -> None:
    """Oldest first, by their numbers; the latest is the run's."""
    names = [*(f"log.{number}.jsonl" for number in range(1, 11)), "log.jsonl"]
    for name in reversed(names):
        (tmp_path / name).touch()
    _write(tmp_path / "log.jsonl", log := timetables.log(timetables.tiny()))
    assert [path.name for path in runlog.files(tmp_path)] == names
    assert runlog.load(tmp_path) == log


def each_alone(plan: Plan) -> list[Part]:
    """The parts of processes that have one device each."""
    ranks = range(len(plan.devices))
    return [Part(plan, ranks, me) for me in ranks]


def test_a_process_has_nothing_of_what_others_train() -> None:
    """Its segments and tasks are those of its devices; process 0, which leads, has all tasks."""
    plan = handmade.crowd()
    for part in each_alone(plan):
        own = [segment for segment in plan.segments if part.me in segment.devices]
        assert [segment for segment in plan.segments if part.runs(segment)] == own
        trained = {name for segment in own for name in plan.trained(segment)}
        names = {task.name for task in part.tasks}
        assert names == ({task.name for task in plan.tasks} if part.me == 0 else trained)


@pytest.mark.parametrize("name", NODED)
def test_the_first_process_of_a_node_has_all_that_its_store_holds(name: str) -> None:
    """It writes there what tasks begin with, and sends and receives what is moved."""
    plan = NODED[name]()
    for part in each_alone(plan):
        kept = held(plan)[part.node]
        assert {(task, number) for task, own in part.held.items() for number in own} == kept
        first = part.node_devices[0] == part.me
        assert first == (part.firsts[part.node] == part.me)
        assert not first or part.held.keys() <= {task.name for task in part.tasks}


def test_a_slab_is_that_of_the_largest_program_on_the_device() -> None:
    plan = handmade.crowd()
    most = {number: 0 for number in range(len(plan.devices))}
    for segment in plan.segments:
        memory = plan.program(segment.program).memory
        for number, one in zip(segment.devices, memory, strict=True):
            most[number] = max(most[number], one.slab_bytes)
    assert Part.whole(plan).slabs == most


replace = msgspec.structs.replace


def _events(data: bytes, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(data)["traceEvents"] if event["ph"] == phase]


@pytest.mark.parametrize(
    "plan",
    [timetables.plan(), handmade.fleet(), handmade.pipeline(), handmade.parallel()],
    ids=["tasks", "fleet", "pipeline", "parallel"],
)
def test_every_op_is_a_slice_at_its_planned_time(plan: Plan) -> None:
    """The slices of the planned processes are the plan's timeline, no more and no less."""
    slices = sorted((e["name"], e["ts"], e["dur"]) for e in _events(trace(plan), "X"))
    planned = sorted((p.op.id, p.start_us, p.end_us - p.start_us) for p in timing.timeline(plan))
    assert slices == planned


def test_slices_of_a_track_do_not_overlap_even_when_the_log_does() -> None:
    """Perfetto refuses overlapping slices on a thread, so a log's overlap is cut off."""
    plan = timetables.plan()
    log = timetables.log(plan)
    late = tuple(replace(op, end_us=op.end_us + 50) for op in log.ops)
    tracks = defaultdict(list)
    for event in _events(trace(plan, replace(log, ops=late)), "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 2 * 2 * 4  # planned and actual, two devices, four streams
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_plan_and_run_are_separate_named_processes() -> None:
    """Each device is one process as planned and one as it ran, and says when it is emulated."""
    plan = timetables.plan(emulated=True)
    names = [
        e["args"]["name"]
        for e in _events(trace(plan, timetables.log(plan)), "M")
        if e["name"] == "process_name"
    ]
    assert names == [
        "planned device 0, emulated",
        "actual device 0, emulated",
        "planned device 1, emulated",
        "actual device 1, emulated",
    ]


def test_arrows_follow_the_edges_between_streams() -> None:
    """The four ops of the tiny plan are on four streams, so its three edges are three arrows."""
    data = trace(timetables.tiny())
    starts = {e["id"]: e["ts"] for e in _events(data, "s")}
    ends = {e["id"]: e["ts"] for e in _events(data, "f")}
    assert sorted(ends.values()) == [40, 140, 170]
    assert all(starts[number] == ends[number] - 1 for number in ends)


def test_long_plans_show_their_first_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a plan beyond the limit holds the first rounds and says how many."""
    monkeypatch.setattr(module, "MOST_OPS", 300)
    plan = timetables.plan(rounds=200)
    body = json.loads(trace(plan))
    shown = body["otherData"]["rounds_shown"]
    sizes = {program.name: len(program.round) for program in plan.programs}
    assert shown == [100 // sizes[segment.program] for segment in plan.segments]
    assert body["otherData"]["rounds"] == [200, 200, 200]
    rounds = [e["args"]["round"] for e in body["traceEvents"] if e["ph"] == "X"]
    assert max(rounds) == max(shown) - 1


def test_ops_of_a_log_are_those_of_their_rounds_kind() -> None:
    """What they were to take follows from the kind of the round that the log names."""
    plan = kinded("resident", [[512, 512], [256]], ((1, 1), (0, 2)))
    slow = plan.programs[0].kinds[0].ops[0]
    longer = replace(slow, end_us=slow.end_us + 7)
    plan = with_kind(plan, 1, (longer, *plan.programs[0].kinds[0].ops[1:]))
    found = happened(plan, timetables.log(plan))
    told = {(p.round, p.predicted_us) for p in found if p.op.id == slow.id}
    us = slow.end_us - slow.start_us
    assert told == {(0, us + 7), (1, us), (2, us)}
