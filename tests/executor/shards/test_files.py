"""Tasks that wait on the disk train the bits that they train without one, and lose nothing."""

import errno
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from msgspec import structs
from support.chains import WIDTH
from support.disked import DISKED, counted, plain, ready, with_moves
from support.fit import known_as
from support.pauses import pausing
from support.plain import train
from support.retime import retimed
from support.same import assert_same
from torch import nn
from torch.nn import functional as F

import plans
from executor import run
from executor.cli import main
from executor.devices.hostmem import HostMemory
from executor.driver import Options, Result
from executor.errors import RunError, UsageError
from executor.profiling import links as link_profiler
from executor.records.stopping import parse
from executor.replay import Limits
from executor.shards import files
from executor.shards.files import StateFile, opened
from executor.workload import Task
from planner.views import compare, table
from plans import runlog, timing
from plans.schema import Plan
from plans.trace import trace

# Flats of several chunks, so that copies can fail or stop in between.
CHUNK = 4096


@pytest.fixture(autouse=True)
def _chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", CHUNK)
    monkeypatch.setattr(files, "SYNC", 2 * CHUNK)


def others_same(plan: Plan, tasks: list[Task], result: Result, *but: str) -> None:
    """All tasks but some trained the bits of the plain loop."""
    kept = structs.replace(plan, tasks=tuple(t for t in plan.tasks if t.name not in but))
    assert_same(kept, [task for task in tasks if task.name not in but], result)


@pytest.mark.parametrize("name", DISKED)
@pytest.mark.parametrize("most_us", [0, 2000])
def test_tasks_that_wait_on_the_disk_train_the_same_bits(
    name: str, most_us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the plain loop and as the same plan without a disk; nothing is left in the folder."""
    plan, tasks = ready(name)
    plans.prove(plan)
    plans.prove(plain(plan))
    pausing(monkeypatch, 1, most_us)
    result = run(plan, tasks, Options(disk=tmp_path))
    assert_same(plan, tasks, result)
    assert result.losses == run(plain(plan), tasks).losses
    assert list(tmp_path.iterdir()) == []
    assert result.host_bytes < sum(b.bytes for b in plan.host.buffers)


def test_every_move_is_in_the_log(tmp_path: Path) -> None:
    """In the order of the queue, none together with another or with its segment; compare, report
    and trace show them."""
    plan, tasks = ready("two-rooms")
    log = tmp_path / "run.jsonl"
    result = run(plan, tasks, Options(disk=tmp_path, log=log, plan_sha256="0" * 64))
    assert plan.disk
    told = runlog.load(log)
    moves = [record for record in told.ops if ".disk." in record.op]
    assert [record.op for record in moves] == [move.id for move in plan.disk.moves]
    for one, other in pairwise(moves):
        assert one.end_us <= other.start_us
    ops = [record for record in told.ops if ".disk." not in record.op]
    for move in moves:
        own = [op for op in ops if op.segment == move.segment]
        if ".S" in move.op:
            assert max(op.end_us for op in own) <= move.start_us
        else:
            assert move.end_us <= min(op.start_us for op in own)
    known = {(p.segment, p.op.id, p.round) for p in timing.timeline(plan)}
    assert {(op.segment, op.op, op.round) for op in told.ops} == known
    found = compare(plan, told, "0" * 64)
    assert found.missing.count == 0
    assert {"disk S", "disk P"} <= found.kinds.keys()
    assert "disk S" in table(found)
    assert b"actual disk" in trace(plan, told)
    traffic = result.traffic
    assert traffic
    assert (traffic.writes, traffic.reads) == (6, 6)
    sizes = {task.name: plans.order.kept_bytes(task) for task in plan.tasks}
    assert traffic.written_bytes == sum(sizes[m.op[0]] for m in moves if ".S" in m.op)


def part(plan: Plan, until: int) -> Plan:
    """The plan's first segments, with the moves that belong to them."""
    segments = plan.segments[:until]
    rounds: dict[str, int] = {}
    for segment in segments:
        rounds[segment.program] = rounds.get(segment.program, 0) + segment.rounds
    tasks = tuple(structs.replace(t, steps=rounds[t.name]) for t in plan.tasks)
    assert plan.disk
    moves = [m for m in plan.disk.moves if m.segment < until]
    made = retimed(structs.replace(plan, tasks=tasks, segments=segments))
    return with_moves(made, counted(moves))


def rest(plan: Plan, since: int) -> Plan:
    """A plan for the steps after `part`, which begins with all tasks on the disk but one."""
    assert plan.disk
    done = {t.name: t.steps for t in part(plan, since).tasks}
    tasks = tuple(
        structs.replace(t, done=done[t.name], steps=t.steps - done[t.name]) for t in plan.tasks
    )
    first, *moves = [
        structs.replace(m, segment=m.segment - since) for m in plan.disk.moves if m.segment >= since
    ]
    assert first.id == f"{plan.segments[since].program}.disk.P1"
    left = retimed(structs.replace(plan, tasks=tasks, segments=plan.segments[since:]))
    return with_moves(left, counted(moves))


def test_a_run_with_a_disk_goes_on_from_checkpoints(tmp_path: Path) -> None:
    """Bit for bit, tasks being on the disk where the first run ended and the second begins."""
    plan, tasks = ready("in-turn")
    kept, away = tmp_path / "kept", tmp_path / "disk"
    kept.mkdir()
    first, second = part(plan, 6), rest(plan, 6)
    plans.prove(first)
    plans.prove(second)
    run(first, tasks, Options(disk=away, checkpoints=kept))
    result = run(second, tasks, Options(disk=away, resume=kept))
    for task, planned in zip(tasks, plan.tasks, strict=True):
        whole = train(task, planned.microbatches)
        for name, parameter in result.model(task.name).named_parameters():
            assert torch.equal(parameter, whole.params[name]), name


def test_a_killed_run_leaves_files_that_the_next_one_takes(tmp_path: Path) -> None:
    """Even when they are of another size."""
    plan, tasks = ready("beside")
    (tmp_path / "b.state").write_bytes(b"x" * 100_000)
    assert_same(plan, tasks, run(plan, tasks, Options(disk=tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_must_be_given(tmp_path: Path) -> None:
    """One that can be written to; a plan without moves needs none and touches none."""
    plan, tasks = ready("beside")
    with pytest.raises(UsageError, match="idle tasks wait on the disk; say where, --disk DIR"):
        run(plan, tasks)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: cannot be made: File exists"):
        run(plan, tasks, Options(disk=tmp_path / "file"))
    assert_same(plan, tasks, run(plain(plan), tasks, Options(disk=tmp_path / "none")))
    assert not (tmp_path / "none").exists()


def test_two_runs_need_two_folders(tmp_path: Path) -> None:
    """A file that a run uses is not taken from it."""
    said = r"a\.state: another run uses it; give each run a --disk"
    with opened(tmp_path, {"a": 100}) as mine:
        with pytest.raises(UsageError, match=said), opened(tmp_path, {"a": 100}):
            pass
        mine["a"].write([torch.arange(100, dtype=torch.uint8)])


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file of this process may be larger than some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_small_files")
def test_room_is_taken_before_anything_begins(tmp_path: Path) -> None:
    """A file that cannot have its size ends the run with both numbers, and none is left."""
    plan, tasks = ready("beside")
    assert plan.disk
    need = plan.disk.bytes
    said = rf"that wait on the disk need .* \({need} bytes\), it has .* free \(File too large\); "
    with pytest.raises(RunError, match=said):
        run(plan, tasks, Options(disk=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is built, even where the file system does not promise room."""
    plan, tasks = ready("beside")
    built: list[Task] = []
    monkeypatch.setattr("executor.shards.store.build", lambda task, source: built.append(task))
    monkeypatch.setattr(files, "free_bytes", lambda folder: 5000)
    with pytest.raises(RunError, match=r"has 4.9 KiB \(5000 bytes\) free \(No space left on"):
        run(plan, tasks, Options(disk=tmp_path))
    assert built == []
    assert list(tmp_path.iterdir()) == []


def test_file_systems_that_promise_no_room_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files get their size."""

    def refuse(file: int, begin: int, count: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(files.os, "posix_fallocate", refuse)
    plan, tasks = ready("beside")
    assert_same(plan, tasks, run(plan, tasks, Options(disk=tmp_path)))


Call = Callable[..., int]


def failing(monkeypatch: pytest.MonkeyPatch, what: str, calls: int, code: int | None) -> None:
    """The disk's call number `calls` fails, or does half of what it should."""
    real: Call = getattr(os, what)
    count = 0

    def odd(file: int, data: object, at: int) -> int:
        nonlocal count
        count += 1
        if count == calls and code is not None:
            raise OSError(code, os.strerror(code))
        if count == calls and isinstance(data, list):
            return real(file, [data[0][: len(data[0]) // 2]], at)
        if count == calls:
            assert isinstance(data, memoryview)
            return real(file, data[: len(data) // 2], at)
        return real(file, data, at)

    monkeypatch.setattr(files.os, what, odd)


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (
            "pwrite",
            errno.ENOSPC,
            r"a\.disk\.S0 on disk in round 0: .*a\.state: 0 of \d+ bytes are written, then No "
            r"space left on device; repair or free the disk, or give another --disk",
        ),
        (
            "preadv",
            errno.EIO,
            r"b\.disk\.P0 on disk in round 0: .*b\.state: 0 of \d+ bytes are read, then "
            "Input/output error; repair or free the disk",
        ),
        (
            "preadv",
            None,
            r"b\.disk\.P0 .*b\.state: \d+ of \d+ bytes are read, then no more",
        ),
        ("pwrite", None, r"a\.disk\.S0 .*a\.state: \d+ of \d+ bytes are written, then no more"),
    ],
)
@pytest.mark.parametrize("keep_going", [False, True])
def test_a_failed_move_ends_the_run_or_drops_its_task(
    what: str,
    code: int | None,
    said: str,
    keep_going: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its name, both numbers and the remedy; with --keep-going the others are trained."""
    plan, tasks = ready("two-rooms")
    begun = _writes_before(plan, tasks, tmp_path) if what == "pwrite" else 0
    failing(monkeypatch, what, begun + 1, code)
    options = Options(disk=tmp_path, keep_going=keep_going, log=tmp_path / "run.jsonl")
    if not keep_going:
        with pytest.raises(RunError, match=said):
            run(plan, tasks, options)
        assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
        return
    result = run(plan, tasks, options)
    (drop,) = result.dropped.values()
    assert drop.task == ("a" if what == "pwrite" else "b")
    assert drop.op == ("a.disk.S0" if what == "pwrite" else "b.disk.P0")
    others_same(plan, tasks, result, drop.task)
    moves = {op.op for op in runlog.load(tmp_path / "run.jsonl").ops if ".disk." in op.op}
    assert plan.disk
    assert moves == {m.id for m in plan.disk.moves if not m.id.startswith(drop.task)}


def _writes_before(plan: Plan, tasks: list[Task], folder: Path) -> int:
    """Chunks that are written before a run begins: of the tasks that wait on the disk then."""
    assert plan.disk
    first: dict[str, str] = {}
    for move in plan.disk.moves:
        first.setdefault(move.id[0], move.id.split(".")[2][0])
    sizes = [
        size
        for task in plan.tasks
        if first.get(task.name) == "P"
        for shard in task.shards
        for size in (shard.param_bytes, shard.state_bytes)
    ]
    return sum(-(-size // CHUNK) for size in sizes)


def test_a_stopped_task_waits_on_the_disk_to_the_end(tmp_path: Path) -> None:
    """Its state whole; its later moves are left out, and the others never notice."""
    plan, tasks = ready("in-turn")
    rule, log = "a:loss>0@3", tmp_path / "run.jsonl"
    result = run(plan, tasks, Options(disk=tmp_path, stop=(parse(rule),), log=log))
    assert result.stopped["a"].step == 3
    others_same(plan, tasks, result, "a")
    short = replace(tasks[0], steps=3)
    expected = train(short, plan.tasks[0].microbatches)
    for name, parameter in result.model("a").named_parameters():
        assert torch.equal(parameter, expected.params[name])
    moves = [op.op for op in runlog.load(log).ops if op.op.startswith("a.disk")]
    assert moves == ["a.disk.S0", "a.disk.P0", "a.disk.S1"]


class Failing(nn.Linear):
    """Fails in its sixth forward."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Failing.calls += 1
        if Failing.calls > 5:
            raise RuntimeError("cold")
        return F.linear(x, self.weight, self.bias)


def test_a_dropped_task_leaves_its_place_to_others(tmp_path: Path) -> None:
    """None of its moves is made any more, and those behind them in the queue are."""
    plan, tasks = ready("two-rooms")
    Failing.calls = 0
    broken = _with_layer(plan, tasks, "a")
    options = Options(disk=tmp_path, keep_going=True)
    result = run(plan, broken, options)
    assert result.dropped.keys() == {"a"}
    others_same(plan, broken, result, "a")
    assert all(parameter.numel() == 0 for parameter in result.model("a").parameters())


def _with_layer(plan: Plan, tasks: list[Task], name: str) -> list[Task]:
    """The tasks, of which one has a failing layer around the linear one of its last block."""

    def model(task: Task) -> nn.Module:
        assert callable(task.model)
        made = task.model()
        last = made[len(made) - 1]
        odd = Failing()
        odd.load_state_dict(last[0].state_dict())
        last[0] = odd
        return made

    return [
        replace(task, model=partial(model, task)) if task.name == name else task for task in tasks
    ]


@pytest.mark.timeout(60)
def test_a_move_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --keep-going too: it would hold up everybody."""
    plan, tasks = ready("in-turn")
    release = threading.Event()

    def hang(file: int, data: object, at: int) -> int:
        release.wait(600)
        raise OSError(errno.EIO, "late")

    monkeypatch.setattr(files.os, "preadv", hang)
    said = r"no op ended for .* s, the limit is 0\.3: b\.disk\.P0 reads .* on disk; raise --stall"
    soon = Options(disk=tmp_path, stall_seconds=0.3, keep_going=True, limits=Limits(goodbye_s=0.1))
    try:
        with pytest.raises(RunError, match=said):
            run(plan, tasks, soon)
    finally:
        release.set()


def test_models_take_turns_after_the_run(tmp_path: Path) -> None:
    """One whose place another took is of no use, and not of wrong use, until it is asked for."""
    plan, tasks = ready("beside")
    result = run(plan, tasks, Options(disk=tmp_path))
    c, b = result.model("c"), result.model("b")
    kept = result.optimizer_state("b")
    assert all(parameter.numel() == 0 for parameter in c.parameters())
    again = result.model("c")
    assert again is c
    assert all(parameter.numel() == 0 for parameter in b.parameters())
    expected = train(tasks[1], plan.tasks[1].microbatches)
    for name, state in expected.state.items():
        assert torch.equal(kept[name]["exp_avg"], state["exp_avg"])
    assert_same(plan, tasks, result)


WORK = """
from support.chains import chain

def tasks():
    return [chain(name, layers, 4, steps, seed=seed) for seed, (name, layers, steps) in
            enumerate(TASKS)]
"""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saves every task wherever it ended, and says what went to the disk."""
    monkeypatch.chdir(tmp_path)
    plan, tasks = ready("beside")
    listed = [(t.name, t.shards[-1].end_layer, t.steps) for t in plan.tasks]
    Path("work.py").write_text(WORK.replace("TASKS", repr(listed)))
    plans.save("plan.json", known_as(plan, "work.py:tasks"))
    assert main(["run", "plan.json"]) == 2
    assert "--disk DIR" in capsys.readouterr().err
    assert main(["run", "plan.json", "--disk", "away", "--save", "saved"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("disk: "))
    assert " written in " in line
    assert "(1 moves)" in line
    for task, planned in zip(tasks, plan.tasks, strict=True):
        saved = torch.load(f"saved/{task.name}.pt")
        for name, value in train(task, planned.microbatches).params.items():
            assert torch.equal(saved["model"][name], value)
    assert main(["run", "plan.json", "--disk", "away", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["disk"]
    assert (told["writes"], told["reads"]) == (1, 1)
    assert list(Path("away").iterdir()) == []


def test_the_profiler_measures_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rates and the room, and leaves nothing behind; a full disk is said so."""
    monkeypatch.setattr(link_profiler, "FILE_BYTES", 1 << 20)
    found = link_profiler.disk_rates(tmp_path, HostMemory())
    assert found.usable_bytes <= files.free_bytes(tmp_path)
    assert min(found.read.bytes_per_s, found.write.bytes_per_s) > 1 << 20
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(files, "free_bytes", lambda folder: 1)
    with pytest.raises(RunError, match=r"it has 1 B \(1 bytes\) free"):
        link_profiler.disk_rates(tmp_path, HostMemory())


def test_a_file_keeps_every_byte(tmp_path: Path) -> None:
    """Several values, over chunks that no value fills, also after the file's name is gone."""
    sizes = (CHUNK - 1, 3 * CHUNK + 5, 1)
    generator = torch.Generator().manual_seed(1)
    values = [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator) for n in sizes]
    file = StateFile(tmp_path / "a.state", sum(sizes))
    file.reserve()
    file.write(values)
    file.path.unlink()
    again = [torch.zeros_like(value) for value in values]
    file.read(again)
    assert all(map(torch.equal, values, again))
    assert not list(tmp_path.iterdir())
