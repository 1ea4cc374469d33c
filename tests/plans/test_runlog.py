"""The run log on disk."""

from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from support import timetables

from plans import runlog
from profiles.errors import FormatError


def _write(path: Path, log: runlog.RunLog) -> Path:
    ends = [log.end] if log.end else []
    path.write_bytes(runlog.encode([log.header, *log.ops, *log.steps, *ends]))
    return path


def test_log_survives_the_file(tmp_path: Path) -> None:
    """What was written is what is read, line kind by line kind."""
    log = timetables.log(timetables.plan())
    assert runlog.load(_write(tmp_path / "run.jsonl", log)) == log


def test_one_flat_json_object_per_line(tmp_path: Path) -> None:
    """An op's line has plain numbers under plain keys, so any tool can join it to the plan."""
    log = timetables.log(timetables.tiny(), percent=100)
    line = _write(tmp_path / "run.jsonl", log).read_bytes().splitlines()[1]
    expected = {"type": "op", "segment": 0, "op": "a.s0.P0", "round": 0}
    assert msgspec.json.decode(line) == expected | {"start_us": 0, "end_us": 40, "metered": False}


def test_killed_run_has_no_end(tmp_path: Path) -> None:
    """A log that stops after its ops is one of a run that was killed, and still readable."""
    log = msgspec.structs.replace(timetables.log(timetables.tiny()), end=None)
    assert runlog.load(_write(tmp_path / "run.jsonl", log)).end is None


def test_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    """NaN cannot be written in JSON; a step without a loss comes back as None."""
    log = timetables.log(timetables.tiny())
    steps = (runlog.StepRecord("a", 0, None, 5),)
    path = _write(tmp_path / "run.jsonl", msgspec.structs.replace(log, steps=steps))
    assert b'"loss":null' in path.read_bytes()
    assert runlog.load(path).steps == steps


def test_broken_line_is_named_by_its_number(tmp_path: Path) -> None:
    """An unknown field is refused with file and line."""
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
