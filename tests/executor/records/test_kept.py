"""What runs leave behind is not lost to the next run: checkpoints, logs, and whose they are."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support import handmade
from support.chains import tasks_for
from support.fit import fit, later

from executor import outputs, run
from executor.driver import Options
from executor.errors import InterruptedRun, LogError, RunError, UsageError
from executor.records import checkpoint
from executor.records.logfile import LogFile
from executor.workload.task import Task
from plans import runlog
from plans.schema import Plan


def two() -> tuple[Plan, list[Task]]:
    """Tasks a and b of four steps each, one after the other, in one segment each."""
    tasks = tasks_for(handmade.relay())
    return fit(handmade.relay(), tasks), tasks


def cut(plan: Plan) -> Plan:
    """The plan with two segments for each task, of two rounds each."""
    halves = [structs.replace(segment, rounds=2) for segment in plan.segments for _ in range(2)]
    return structs.replace(plan, segments=tuple(halves))


@contextmanager
def untouched(*folders: Path) -> Iterator[None]:
    """Every file there stays as it is, and none is added."""
    before = [(p, p.read_bytes()) for folder in folders for p in sorted(folder.iterdir())]
    yield
    assert [(p, p.read_bytes()) for f in folders for p in sorted(f.iterdir())] == before


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("resume", [False, True])
def test_later_checkpoints_are_not_trained_again(resume: bool, tmp_path: Path) -> None:
    """A plan from the beginning is refused where there are some, and says what to type."""
    plan, tasks = two()
    kept, log = tmp_path / "kept", tmp_path / "x.jsonl"
    run(later(plan, 0, 2), tasks, Options(checkpoints=kept, log=log))
    again = Options(checkpoints=kept, log=log, resume=kept if resume else None)
    with untouched(kept), pytest.raises(UsageError) as caught:
        run(plan, tasks, again)
    text = str(caught.value)
    for task in "ab":
        assert f"{task} at step 2, where the plan begins at step 0" in text
    assert f"planner build PROFILE --from {log} -o rest.json" in text
    assert f"run rest.json --resume {kept} --checkpoints {kept}; or give --overwrite" in text


@pytest.mark.parametrize("done", [0, 1])
def test_a_plan_goes_on_from_the_latest_checkpoints(done: int, tmp_path: Path) -> None:
    """Or is refused, also where it would not write there."""
    plan, tasks = two()
    run(later(plan, 0, 1), tasks, Options(checkpoints=tmp_path))
    run(later(plan, 1, 2), tasks, Options(checkpoints=tmp_path, resume=tmp_path))
    said = f"a at step 3, where the plan begins at step {done}"
    with untouched(tmp_path), pytest.raises(UsageError, match=said):
        run(later(plan, done, 3), tasks, Options(resume=tmp_path))


def test_overwriting_begins_anew(tmp_path: Path) -> None:
    """With the bits of a run that finds nothing there; what was later is gone at last."""
    plan, tasks = two()
    run(plan, tasks, Options(checkpoints=tmp_path))
    first = later(plan, 0, 2)
    result = run(first, tasks, Options(checkpoints=tmp_path, overwrite=True))
    assert result.losses == run(first, tasks).losses
    assert names(tmp_path) == {"a-2.pt", "b-2.pt"}


def test_overwriting_waits_for_something_newer(tmp_path: Path) -> None:
    """A run that fails before has lost nothing."""
    plan, tasks = two()
    run(plan, tasks, Options(checkpoints=tmp_path))
    failing = [replace(task, data=lambda step: 1 / 0) for task in tasks]
    with untouched(tmp_path), pytest.raises(RunError, match="ZeroDivisionError"):
        run(plan, failing, Options(checkpoints=tmp_path, overwrite=True))


def test_a_run_removes_only_what_it_wrote(tmp_path: Path) -> None:
    """Not what it began with, and nothing of other tasks."""
    plan, tasks = two()
    run(later(plan, 0, 1), tasks, Options(checkpoints=tmp_path))
    for other in ("c-7.pt", "a-b-9.pt", "a.pt", "note.txt", "c-7.pt.part"):
        (tmp_path / other).write_bytes(b"mine")
    before = names(tmp_path)
    rest = cut(later(plan, 1, 4))
    run(rest, tasks, Options(checkpoints=tmp_path, resume=tmp_path))
    assert names(tmp_path) == before | {"a-5.pt", "b-5.pt"}


def test_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    """They are of no use; one that is to be gone on from is, and takes its place."""
    plan, tasks = two()
    run(later(plan, 0, 1), tasks, Options(checkpoints=tmp_path))
    (tmp_path / "a-7.pt.part").write_bytes(b"half")
    (tmp_path / "b-1.pt").rename(tmp_path / "b-1.pt.part")
    rest = later(plan, 1, 3)
    result = run(rest, tasks, Options(checkpoints=tmp_path, resume=tmp_path))
    assert result.losses == run(rest, tasks, Options(resume=tmp_path, overwrite=True)).losses
    assert names(tmp_path) == {"a-1.pt", "b-1.pt.part", "a-4.pt", "b-4.pt"}


def test_the_log_knows_of_a_checkpoint_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So none is later than its log, whenever a run is killed, and that it names can be read."""
    plan, tasks = two()
    kept, log = tmp_path / "kept", tmp_path / "x.jsonl"

    def killed(part: Path, target: Path) -> Path:
        raise RunError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("executor.records.checkpoint.put", killed)
        with pytest.raises(RunError, match="killed"):
            run(later(plan, 0, 1), tasks, Options(checkpoints=kept, log=log))
    assert [(c.task, c.step) for c in runlog.load(log).checkpoints] == [("a", 1)]
    assert names(kept) == {"a-1.pt.part"}
    only_a = [structs.replace(t, done=int(t.name == "a"), steps=3) for t in plan.tasks]
    rest = structs.replace(later(plan, 1, 3), tasks=tuple(only_a))
    result = run(rest, tasks, Options(resume=kept))
    assert len(result.losses["a"]) == 3


@pytest.mark.parametrize("where", ["_Sink.write", "get_unsafe_globals_in_checkpoint"])
def test_signals_leave_no_half_of_a_checkpoint(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them while it is written or read back; the run says that it was interrupted."""
    plan, tasks = two()
    real, calls = attrgetter(where)(checkpoint), count(1)

    def pressed(*arguments: Any) -> Any:
        if next(calls) == (1 if where.startswith("get") else 5):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(f"executor.records.checkpoint.{where}", pressed)
    with pytest.raises(InterruptedRun, match=r"^interrupted"):
        run(plan, tasks, Options(checkpoints=tmp_path))
    assert names(tmp_path) == set()


def test_a_log_knows_of_all_checkpoints_that_its_run_went_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a run that was killed as soon as the log was begun."""
    plan, tasks = two()
    run(later(plan, 0, 1), tasks, Options(checkpoints=tmp_path / "kept"))
    real, written = LogFile.write, []

    def killed(self: LogFile, lines: list[runlog.Line], *, sync: bool = False) -> None:
        if written:
            raise LogError("killed")
        written.append(lines)
        real(self, lines, sync=sync)

    monkeypatch.setattr(LogFile, "write", killed)
    log = tmp_path / "x.jsonl"
    with pytest.raises(RunError, match="killed"):
        run(later(plan, 1, 1), tasks, Options(resume=tmp_path / "kept", log=log))
    known = runlog.load(f"{log}.part").checkpoints
    assert [(c.task, c.step) for c in known] == [("a", 1), ("b", 1)]


def test_two_runs_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor a log; the second one is refused and changes nothing."""
    plan, tasks = two()
    kept, log = tmp_path / "kept", tmp_path / "x.jsonl"
    run(plan, tasks, Options(checkpoints=kept, log=log))
    for lock, options, remedy in (
        (kept / ".lock", Options(checkpoints=kept, overwrite=True), "--checkpoints of its own"),
        (tmp_path / "x.jsonl.lock", Options(log=log), "a log of its own, -o runs/y.jsonl"),
    ):
        with outputs.locked(lock, ""), untouched(kept):
            said = rf"\.lock: another run uses it; give each run {remedy}"
            with pytest.raises(UsageError, match=said):
                run(plan, tasks, options)
    assert names(tmp_path) == {"kept", "x.jsonl"}
    assert capsys.readouterr().err == ""


HOLD = """
import sys, time
from pathlib import Path
from executor import outputs
with outputs.locked(Path(sys.argv[1]), ""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    """The system gives its locks back."""
    path = tmp_path / ".lock"
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    with process, process.stdout:
        process.stdout.readline()
        with pytest.raises(UsageError, match="another run uses it"), outputs.locked(path, ""):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with outputs.locked(path, ""):
            assert path.exists()
    assert not path.exists()


def test_a_lock_that_was_let_go_of_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the file before its name was taken away locks the file of that name instead."""
    path = tmp_path / ".lock"
    real, opened = os.open, []

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


def test_the_log_of_a_killed_run_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As often as that is needed, and said; so is one by which a run can go on."""
    plan, tasks = two()
    log, part = tmp_path / "x.jsonl", tmp_path / "x.jsonl.part"
    for number in (1, 2):
        part.write_text(f"killed {number}")
        run(plan, tasks, Options(log=log))
        aside = tmp_path / f"x.{number}.jsonl.part"
        assert aside.read_text() == f"killed {number}"
        assert f"warning: {part} is of a run that was killed; it is {aside} now" in (
            capsys.readouterr().err
        )
    run(plan, tasks, Options(log=log, checkpoints=tmp_path / "kept"))
    assert names(tmp_path) == {"x.1.jsonl.part", "x.2.jsonl.part", "x.jsonl", "kept"}
    run(plan, tasks, Options(log=log))
    assert len(runlog.load(tmp_path / "x.3.jsonl").checkpoints) == 2
    assert "names checkpoints to go on from; it is" in capsys.readouterr().err
    part.write_text("killed")
    run(plan, tasks, Options(log=log, overwrite=True))
    assert not part.exists()
    assert names(tmp_path) - {"x.3.jsonl"} == {
        "x.1.jsonl.part",
        "x.2.jsonl.part",
        "x.jsonl",
        "kept",
    }
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_begun(tmp_path: Path) -> None:
    """Is said before anything is trained."""
    plan, tasks = two()
    (tmp_path / "x.jsonl.part").mkdir()
    with pytest.raises(UsageError, match=r"x\.jsonl: cannot be written: Is a directory"):
        run(plan, tasks, Options(log=tmp_path / "x.jsonl"))


def test_a_refused_run_leaves_logs_alone(tmp_path: Path) -> None:
    """Whatever it is refused for."""
    plan, tasks = two()
    kept, log = tmp_path / "kept", tmp_path / "x.jsonl"
    run(later(plan, 0, 1), tasks, Options(checkpoints=kept, log=log))
    (tmp_path / "x.jsonl.part").write_text("killed")
    kept.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "b-1.pt").write_bytes(b"odd")
    logs = names(tmp_path)
    options = Options(log=log, checkpoints=tmp_path / "new", resume=tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is no checkpoint"):
        run(later(plan, 1, 1), tasks, options)
    assert names(tmp_path) == logs | {"new"}
    assert names(tmp_path / "new") == set()
    assert (tmp_path / "x.jsonl.part").read_text() == "killed"
