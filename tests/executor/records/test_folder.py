"""A run's folder: what lies there, who may write there, and that a run goes on there wherever it
was killed."""

import re
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import UNSET, structs
from support import handmade
from support.chains import WIDTH, adapted, chain, tasks_for
from support.disked import ready
from support.fit import fit, later
from support.pauses import press
from support.plain import train
from support.same import assert_same, step_in

from executor import outputs, run
from executor.driver import Options
from executor.errors import InterruptedRun, LogError, MismatchError, RunError, UsageError
from executor.records import checkpoint, earlier, folder
from executor.records.logfile import LogFile, PartLog
from executor.shards import HostTask
from executor.workload.task import Task
from plans import runlog, schema
from plans.order import kept_bytes
from plans.runlog import Line, OpRecord, RunLog
from plans.schema import Plan
from profiles.codec import align

WHOLE = {"plan.json", "log.jsonl", "a.pt", "b.pt"}


def two() -> tuple[Plan, list[Task]]:
    """Tasks a and b of four steps each, one after the other."""
    tasks = tasks_for(handmade.relay())
    return fit(handmade.relay(), tasks), tasks


def halves() -> tuple[Plan, list[Task]]:
    """The same in two segments each."""
    plan, tasks = two()
    halves = [structs.replace(segment, rounds=2) for segment in plan.segments for _ in range(2)]
    return structs.replace(plan, segments=tuple(halves)), tasks


def together() -> tuple[Plan, list[Task]]:
    """Tasks a and b in one program, in two segments."""
    plan = handmade.shared()
    (segment,) = plan.segments
    tasks = tasks_for(plan)
    plan = structs.replace(plan, segments=(structs.replace(segment, rounds=2),) * 2)
    return fit(plan, tasks), tasks


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Every file there stays as it is, and none is added."""
    before = [(path, path.read_bytes()) for path in sorted(folder.iterdir())]
    yield
    assert [(path, path.read_bytes()) for path in sorted(folder.iterdir())] == before


def assert_once(log: RunLog, whole: RunLog) -> None:
    """The log has each op and each step once, as that of a run that never stopped."""
    ops = [Counter((op.segment, op.op, op.round) for op in one.ops) for one in (log, whole)]
    assert ops[0] == ops[1]
    steps = [sorted((s.task, s.step, s.loss) for s in one.steps) for one in (log, whole)]
    assert steps[0] == steps[1]
    assert log.end.status == "ok"


def test_what_a_run_leaves(tmp_path: Path) -> None:
    """The plan, the log, and the latest state of each task, all of which the log names."""
    plan, tasks = halves()
    run(plan, tasks, Options(folder=tmp_path / "x", plan_file=b"as it was given"))
    assert names(tmp_path / "x") == WHOLE
    assert (tmp_path / "x" / "plan.json").read_bytes() == b"as it was given"
    assert [step_in(tmp_path / "x", task) for task in "ab"] == [4, 4]
    kept = [(line.task, line.step) for line in runlog.load(tmp_path / "x").checkpoints]
    assert kept == [("a", 2), ("a", 4), ("b", 2), ("b", 4)]


class Moments:
    """Copies of a run's folder as a killed run would leave it: `logged`, when the log knows of a
    state whose file has not its name yet; `kept`, when it has; `half`, in the middle of its file;
    `line`, in the middle of a line of the log."""

    def __init__(self, folder: Path, copies: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._copies = folder, copies
        self._number, self._writes = count(), count()
        put, sink, write = checkpoint.put, checkpoint._Sink.write, LogFile.write

        def putting(part: Path, target: Path) -> Path:
            self._copy("logged")
            put(part, target)
            self._copy("kept")
            return target

        def sinking(file: checkpoint._Sink, data: Any) -> int:
            if next(self._writes) % 50 == 49:
                self._copy("half")
            return sink(file, data)

        def writing(log: LogFile, lines: list[Line], *, sync: bool = False) -> None:
            write(log, lines, sync=sync)
            for name in ("log.jsonl", "log.jsonl.part"):
                if lines and (copy := self._copy("line") / name).exists():
                    copy.write_bytes(copy.read_bytes()[:-20])

        patch.setattr(checkpoint, "put", putting)
        patch.setattr(checkpoint._Sink, "write", sinking)
        patch.setattr(LogFile, "write", writing)

    def _copy(self, kind: str) -> Path:
        copy = self._copies / f"{kind}-.{next(self._number)}"
        return Path(shutil.copytree(self.folder, copy))

    def found(self, kind: str) -> list[Path]:
        return sorted(self._copies.glob(f"{kind}-*"), key=lambda path: int(path.suffix[1:]))

    @classmethod
    def of(cls, made: tuple[Plan, list[Task]], folder: Path) -> "Moments":
        """Those of a run that ended."""
        with pytest.MonkeyPatch.context() as patch:
            moments = cls(folder / "whole", folder, patch)
            run(*made, Options(folder=moments.folder))
        return moments


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    return Moments.of(halves(), tmp_path_factory.mktemp("moments"))


@pytest.mark.parametrize("kind", ["logged", "kept", "half", "line"])
def test_a_killed_run_goes_on(kind: str, moments: Moments, tmp_path: Path) -> None:
    """With the bits of the plain loop and each op and step once in its log; what is half written
    is gone."""
    plan, tasks = halves()
    killed = moments.found(kind)
    for number, found in enumerate(killed[:: 1 + len(killed) // 2]):
        copy = shutil.copytree(found, tmp_path / str(number))
        assert_same(plan, tasks, run(plan, tasks, Options(folder=copy)))
        assert_once(runlog.load(copy), runlog.load(moments.folder))
        assert names(copy) - {".lock"} == WHOLE


@pytest.mark.parametrize("kind", ["logged", "kept", "half", "line"])
def test_tasks_of_one_program_go_on_from_one_point(kind: str, tmp_path: Path) -> None:
    """Wherever between the writes of their files the run was killed."""
    plan, tasks = together()
    moments = Moments.of((plan, tasks), tmp_path / "of")
    for copy in moments.found(kind):
        assert_same(plan, tasks, run(plan, tasks, Options(folder=copy)))
        assert_once(runlog.load(copy), runlog.load(moments.folder))
        assert names(copy) - {".lock"} == WHOLE


def test_tasks_that_are_evaluated_in_one_program_are_so_again(tmp_path: Path) -> None:
    """Where a run was killed that knew the loss of one of them; its line does not stand."""
    plan, _ = together()
    (made,), (first, _) = plan.programs, plan.segments
    judge = structs.replace(made, name="judge", evaluates=True)
    judged = structs.replace(first, program="judge", rounds=3)
    tasks = (structs.replace(task, evaluation=schema.Evaluation(2, 3)) for task in plan.tasks)
    plan = structs.replace(
        plan,
        tasks=tuple(tasks),
        programs=(made, judge),
        segments=(first, judged, first, judged),
    )
    header = runlog.Header(plan_sha256="0" * 64, started="", devices=(), microbatch={})
    known = runlog.EvaluationRecord("a", 2, 0.5, 9)
    kept = runlog.CheckpointRecord("b", 2, 8, {"a": 2})
    (tmp_path / runlog.LOG).write_bytes(runlog.encode([header, kept, known]))
    found = earlier.find(tmp_path, plan, "0" * 64)
    assert found
    assert [segment.rounds for segment in found.rest.segments] == [0, 3, 2, 3]
    assert known not in found.standing()


def test_tasks_of_one_program_are_kept_elsewhere_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one of them cannot be, and the run goes on from where both were before."""
    plan, tasks = together()
    keep = checkpoint.write_part

    def failing(target: Path, task: HostTask, step: int) -> Path:
        if target == tmp_path / "x" / "a.pt" and step == 4:
            raise RunError(f"{target}: cannot be written")
        return keep(target, task, step)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_part", failing)
        with pytest.raises(
            RunError, match=r"task b after step 4 is kept as (.*); task a after"
        ) as e:
            run(plan, tasks, Options(folder=tmp_path / "x"))
    for name in "ab":
        (other,) = re.findall(rf"task {name} after step 4 is kept as (\S*) instead", str(e.value))
        assert checkpoint.is_of(Path(other), 4)
        shutil.rmtree(Path(other).parent)
    assert [step_in(tmp_path / "x", name) for name in "ab"] == [2, 2]
    assert names(tmp_path / "x") == WHOLE
    assert_same(plan, tasks, run(plan, tasks, Options(folder=tmp_path / "x")))


def test_a_state_that_has_not_its_name_yet_outlives_another_failure(
    moments: Moments, tmp_path: Path
) -> None:
    """The log knows of it, and the file with the name is older."""
    plan, tasks = halves()
    copy = shutil.copytree(moments.found("logged")[1], tmp_path / "x")
    failing = [replace(task, data=lambda step: 1 / 0) for task in tasks]
    for _ in range(2):
        with pytest.raises(RunError, match="ZeroDivisionError"):
            run(plan, failing, Options(folder=copy))
    assert step_in(copy) == 4
    assert_same(plan, tasks, run(plan, tasks, Options(folder=copy)))


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("on", "step"), [("a", 1), ("b", 2)])
def test_an_interrupted_run_goes_on_in_the_middle_of_segments(
    on: str, step: int, tmp_path: Path
) -> None:
    """Times go on where they were; the log says why the run had ended."""
    tasks = tasks_for(handmade.gang())
    plan = fit(handmade.gang(), tasks)
    run(plan, tasks, Options(folder=tmp_path / "whole"))
    options = Options(folder=tmp_path / "x")
    with pytest.raises(InterruptedRun, match="the same command goes on from the states that are"):
        run(plan, [press(on, step, task) for task in tasks], options)
    latest = max(op.end_us for op in runlog.load(tmp_path / "x").ops)
    assert_same(plan, tasks, run(plan, tasks, options))
    again = runlog.load(tmp_path / "x")
    assert_once(again, runlog.load(tmp_path / "whole"))
    (restart,) = again.restarts
    assert restart.error.startswith("interrupted by SIGINT")
    assert latest <= restart.at_us < latest + 10**6
    assert restart.start_us > 0


def test_a_whole_run_that_is_run_again_trains_nothing(tmp_path: Path) -> None:
    """And says the same of it."""
    plan, tasks = halves()
    first = run(plan, tasks, Options(folder=tmp_path))
    never = [replace(task, data=lambda step: 1 / 0) for task in tasks]
    assert run(plan, never, Options(folder=tmp_path)).losses == first.losses


def test_two_runs_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one is refused and changes nothing."""
    plan, tasks = two()
    run(later(plan, 0, 1), tasks, Options(folder=tmp_path))
    for overwrite in (False, True):
        with outputs.locked(tmp_path / ".lock", ""), untouched(tmp_path):
            said = r"\.lock: another run uses it; give each run a folder of its own, -o runs/y"
            with pytest.raises(UsageError, match=said):
                run(later(plan, 1, 3), tasks, Options(folder=tmp_path, overwrite=overwrite))
    assert capsys.readouterr().err == ""


def test_a_lock_that_was_let_go_of_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the file before its name was taken away locks the file of that name instead."""
    path = tmp_path / ".lock"
    real, opened = outputs.os.open, []

    def late(name: Path, flags: int, mode: int) -> int:
        opened.append(real(name, flags, mode))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(outputs.os, "open", late)
    with outputs.locked(path, ""):
        assert len(opened) == 2
        monkeypatch.undo()
        with pytest.raises(UsageError, match="another run uses it"), outputs.locked(path, ""):
            pass


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And used all the same."""

    def refuse(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(outputs.fcntl, "flock", refuse)
    with outputs.locked(tmp_path / ".lock", ""):
        pass
    said = f"warning: {tmp_path}/.lock: cannot be locked: No locks available; "
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("gone", ["a.pt", "log.jsonl"])
def test_another_plan_is_refused_unless_it_may_write_over(gone: str, tmp_path: Path) -> None:
    """By log or by state; then it begins anew, and nothing is left of the run that was there."""
    plan, tasks = two()
    run(plan, tasks, Options(folder=tmp_path))
    (tmp_path / "note.txt").write_text("mine")
    (tmp_path / gone).unlink()
    other = later(plan, 0, 2)
    with untouched(tmp_path), pytest.raises(UsageError) as caught:
        run(other, tasks, Options(folder=tmp_path))
    held = "task a of another run" if gone != "a.pt" else "task b of another run"
    assert f"{tmp_path}: holds {held}; give another folder" in str(caught.value)
    assert "--overwrite to write over it, or plan what that run has left: " in str(caught.value)
    assert f"build PROFILE --from {tmp_path} -o rest.json" in str(caught.value)
    result = run(other, tasks, Options(folder=tmp_path, overwrite=True))
    assert result.losses == run(other, tasks).losses
    assert names(tmp_path) == WHOLE | {"note.txt"}
    assert [step_in(tmp_path, task) for task in "ab"] == [2, 2]
    assert runlog.load(tmp_path).restarts == ()


def test_the_run_of_other_tasks_is_refused(tmp_path: Path) -> None:
    """Though no state is in the way."""
    plan, tasks = halves()
    run(plan, tasks, Options(folder=tmp_path))
    made = handmade.solo(handmade.resident_part("c"))
    other = tasks_for(made)
    with untouched(tmp_path), pytest.raises(UsageError, match="holds the run of another plan; "):
        run(fit(made, other), other, Options(folder=tmp_path))


def test_overwriting_waits_until_the_run_can_train(tmp_path: Path) -> None:
    """One that is refused before has lost nothing."""
    plan, tasks = halves()
    run(plan, tasks, Options(folder=tmp_path))
    others = [chain(task.name, 2, 4, 4) for task in tasks]
    with untouched(tmp_path), pytest.raises(MismatchError, match="layers"):
        run(plan, others, Options(folder=tmp_path, overwrite=True))


def test_a_plan_of_the_rest_goes_on(tmp_path: Path) -> None:
    """As often as it is built anew; older logs have numbers, and of a log that is begun the first
    lines say from where."""
    plan, tasks = two()
    whole = run(plan, tasks)
    parts = [
        run(later(plan, done, steps), tasks, Options(folder=tmp_path))
        for done, steps in ((0, 1), (1, 2), (3, 1))
    ]
    assert_same(plan, tasks, parts[-1], earlier=parts[:-1])
    assert parts[-1].losses["b"] == whole.losses["b"][3:]
    assert names(tmp_path) == WHOLE | {"log.1.jsonl", "log.2.jsonl"}
    logs = [runlog.load(path) for path in runlog.files(tmp_path)]
    assert [len(log.steps) for log in logs] == [2, 4, 2]
    assert [(line.task, line.step) for line in logs[1].checkpoints[:2]] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("done", [1, 3])
def test_a_plan_that_does_not_begin_with_the_states_changes_nothing(
    done: int, tmp_path: Path
) -> None:
    """One that begins before or behind them is refused, and the run that is there can go on."""
    plan, tasks = two()
    run(later(plan, 0, 2), tasks, Options(folder=tmp_path))
    said = f"is of step 2, the plan goes on after {done}; give the folder of the run that the plan"
    with untouched(tmp_path), pytest.raises(MismatchError, match=said):
        run(later(plan, done, 1), tasks, Options(folder=tmp_path))


def test_what_others_have_left_stays(tmp_path: Path) -> None:
    """But for parts of the run's own files."""
    plan, tasks = halves()
    own, others = {"a.pt.part", "log.jsonl.part"}, {"c.pt", "a-b.pt", "note.txt", "c.pt.part"}
    for name in own | others:
        (tmp_path / name).write_bytes(b"odd")
    run(plan, tasks, Options(folder=tmp_path))
    assert names(tmp_path) == WHOLE | others


def test_a_run_that_was_killed_before_its_log_began_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though tasks that begin on the disk are there."""
    plan, tasks = ready("in-turn")

    def killed(*_: object) -> None:
        raise LogError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "__init__", killed)
        with pytest.raises(LogError, match="killed"):
            run(plan, tasks, Options(folder=tmp_path))
    assert step_in(tmp_path, "b") == 0
    assert_same(plan, tasks, run(plan, tasks, Options(folder=tmp_path)))


def test_a_folder_is_read_with_what_other_processes_have_written(tmp_path: Path) -> None:
    """Their whole lines, those once that a killed run had put into the log already."""
    plan, tasks = two()
    run(plan, tasks, Options(folder=tmp_path))
    log = runlog.load(tmp_path)
    header, lines = runlog.read(tmp_path)
    first, second, *others = (line for line in lines if isinstance(line, OpRecord))
    rest = [line for line in lines if not isinstance(line, OpRecord)]
    own = runlog.encode([header, first, second, *rest])
    (tmp_path / runlog.LOG).write_bytes(own)
    runlog.part_of(tmp_path, 1).write_bytes(runlog.encode([second, others[0]]))
    runlog.part_of(tmp_path, 2).write_bytes(runlog.encode(others[1:]) + b'{"type":"op","seg')
    assert runlog.load(tmp_path) == log


def test_what_other_processes_write_comes_into_the_log(tmp_path: Path) -> None:
    """At the end of a run, before its last line; what they have left of another one goes."""
    plan, tasks = halves()
    left, own = PartLog(tmp_path, 1), PartLog(tmp_path, 2)
    left.note([OpRecord(7, "a.s0.F0", 0, 1, 2, rank=1)])
    left.close()

    def stop(*_: object) -> str:
        if not own._file:
            assert not runlog.part_of(tmp_path, 1).exists()
            own.note([OpRecord(0, "a.s0.F0", 0, 1, 2, rank=2)])
            own.close()
        return ""

    run(plan, tasks, Options(folder=tmp_path, stop=stop))
    assert names(tmp_path) == WHOLE
    found = runlog.load(tmp_path)
    assert {op.rank for op in found.ops} == {UNSET, 2}
    assert (tmp_path / runlog.LOG).read_bytes().splitlines()[-1].startswith(b'{"type":"end"')


@pytest.mark.parametrize("file", ["a.pt", "log.jsonl"])
def test_a_folder_in_which_a_file_cannot_be_is_refused(file: str, tmp_path: Path) -> None:
    """Before anything is trained, and nothing is left of the attempt."""
    plan, tasks = halves()
    (tmp_path / file).mkdir()
    with pytest.raises(UsageError, match=rf"{file}: cannot be written: it is a folder"):
        run(plan, tasks, Options(folder=tmp_path))
    assert names(tmp_path) == {file}


def test_every_name_is_tried(tmp_path: Path) -> None:
    """A file system may allow shorter names than tasks have; nothing is left of the attempt."""
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        outputs.try_folder(tmp_path, {"a.pt": 1, f"{'b' * 252}.pt": 1})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("made", ["once", "halves", "together"])
def test_room_is_looked_for_before_training(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk is refused, with both numbers, that has too little for all tasks and for the files of
    a program beside those that they replace."""
    plan, tasks = {"once": two, "halves": halves, "together": together}[made]()
    sizes = [kept_bytes(task) for task in plan.tasks]
    need = sum(sizes) + {"once": 0, "halves": max(sizes), "together": sum(sizes)}[made]
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: need - 1)
    told = "" if made == "once" else ", new ones beside old ones"
    said = rf"about .* KiB \({need} bytes\){told}, it has .* \({need - 1} bytes\) free; free the di"
    with pytest.raises(UsageError, match=said):
        run(plan, tasks, Options(folder=tmp_path))
    assert names(tmp_path) == set()
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: need)
    run(plan, tasks, Options(folder=tmp_path))


def test_a_run_that_goes_on_needs_room_beside_the_files_that_are_there() -> None:
    """As much as the largest that one of its segments replaces."""
    plan, _ = two()
    assert folder._beside(plan, {"a.pt": 3, "b.pt": 5}) == 0
    assert folder._beside(later(plan, 2, 2), {"a.pt": 3, "b.pt": 5}) == 5


def test_no_room_is_asked_for_what_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file holds what is trained: weights, biases and their state, padded to 256 bytes."""
    tasks = tasks_for(handmade.streamed(), make=adapted)
    plan = fit(handmade.streamed(), tasks)
    layer = 3 * (align(WIDTH * WIDTH * 4) + align(WIDTH * 4)) + 2 * 256  # and two counts of steps
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: 6 * layer)
    run(plan, tasks, Options(folder=tmp_path))


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file of this process may be larger than some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_limit_of_file_sizes_is_known_before_training(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan, tasks = halves()
    request.getfixturevalue("_small_files")
    with pytest.raises(UsageError, match="no file may have more than 5000; raise the limit"):
        run(plan, tasks, Options(folder=tmp_path))


def full(monkeypatch: pytest.MonkeyPatch, within: Path) -> None:
    """From the second state of task a on there is no room for it in this folder."""
    real, states = checkpoint._Sink.write, set[int]()

    def write(self: checkpoint._Sink, data: Any) -> int:
        path = Path(str(self.name))
        states.add(id(self))
        if path.name.startswith("a.") and path.is_relative_to(within) and len(states) > 1:
            self.error = OSError(28, "No space left on device")
            raise self.error
        return real(self, data)

    monkeypatch.setattr(checkpoint._Sink, "write", write)


def test_a_state_that_cannot_be_written_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And named; the folder has the state before, and the run goes on from there."""
    plan, tasks = halves()
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "x"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with monkeypatch.context() as patch:
        full(patch, folder)
        with pytest.raises(RunError) as caught:
            run(plan, tasks, Options(folder=folder))
    (kept,) = elsewhere.glob("*/a.pt")
    text = str(caught.value)
    assert text.startswith(f"{folder}/a.pt: cannot be written: No space left on device; it takes ")
    assert text.endswith(f"; task a after step 4 is kept as {kept} instead")
    plain = train(tasks[0], plan.tasks[0].microbatches)
    for name, value in torch.load(kept)["model"].items():
        assert torch.equal(value, plain.params[name]), name
    assert names(folder) == {"plan.json", "log.jsonl", "a.pt"}
    assert step_in(folder) == 2
    assert_same(plan, tasks, run(plan, tasks, Options(folder=folder)))


def test_a_state_that_cannot_be_written_anywhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, tasks = halves()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    full(monkeypatch, tmp_path)
    with pytest.raises(RunError, match=r"; task a after step 4 is not kept$"):
        run(plan, tasks, Options(folder=tmp_path / "x"))


@pytest.mark.parametrize("where", ["write", "expect_safe"])
def test_signals_leave_no_half_of_a_state(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them while it is written or looked at; the run says that it was interrupted."""
    plan, tasks = halves()
    holder = checkpoint._Sink if where == "write" else checkpoint
    real: Callable[..., Any] = getattr(holder, where)
    calls = count(1)

    def pressed(*arguments: Any) -> Any:
        if next(calls) == (5 if where == "write" else 1):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(holder, where, pressed)
    with pytest.raises(InterruptedRun, match=r"^interrupted"):
        run(plan, tasks, Options(folder=tmp_path))
    assert names(tmp_path) == {"plan.json", "log.jsonl"}
