"""A model that was trained is somewhere when the run is over; what can be known before, is."""

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import handmade
from support.cli import executor_cli, refused, succeeded
from support.fit import fit, known_as
from support.parts import streamed_part
from support.plain import train

import plans
from executor import outputs
from executor.errors import UsageError
from executor.records import checkpoint
from executor.records.logfile import LogFile
from executor.workload import load

WORK = """
from support.chains import chain
def tasks(): return [chain(name, 4, 4, 4, seed=seed) for seed, name in enumerate(NAMES)]
"""

RUN = ("run", "plan.json", "-o", "logs/x.jsonl")


def project(*names: str) -> None:
    """plan.json of tasks of these names, one after the other, in the current directory."""
    Path("work.py").write_text(WORK.replace("NAMES", repr(names)))
    parts = [streamed_part(name, shards=2) for name in names]
    programs = [handmade.program(part.task.name, 1, [part]) for part in parts]
    made = handmade.assemble(parts, programs, [(name, (0,), 4) for name in names])
    made = fit(made, load("work.py:tasks")[0])
    plans.save("plan.json", known_as(made, "work.py:tasks"))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _in_the_way(name: str) -> None:
    Path("out", name).mkdir(parents=True)


@pytest.mark.parametrize(("option", "file"), [("--save", "a.pt"), ("--checkpoints", "a-4.pt")])
@pytest.mark.parametrize(
    ("folder", "prepare", "said"),
    [
        ("n" * 300, None, "cannot be made: File name too long"),
        ("/proc", None, "cannot be written: No such file or directory"),
        ("out", _in_the_way, "cannot be written: it is a folder"),
    ],
)
def test_a_folder_is_tried_before_training(
    folder: str, prepare: Callable[[str], None] | None, said: str, option: str, file: str
) -> None:
    """One where nothing can be written is refused, and no log is begun."""
    project("a", "b")
    if prepare:
        prepare(file)
    refused(executor_cli(*RUN, option, folder), 2, said)
    assert not Path("logs").exists()


def test_every_name_is_tried() -> None:
    """A file system may allow shorter names than tasks have; nothing is left of the attempt."""
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        outputs.try_folder(Path("out"), {"a.pt": 1, f"{'b' * 252}.pt": 1})
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize("option", ["--save", "--checkpoints"])
def test_room_is_looked_for_before_training(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has too little for all tasks is refused with both numbers."""
    project("a", "b")
    need = sum(plans.order.kept_bytes(task) for task in plans.load("plan.json").tasks)
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: need - 1)
    said = f"take about {need / 1024:.1f} KiB ({need} bytes), it has "
    refused(executor_cli(*RUN, option, "out"), 2, said)
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: need)
    succeeded(executor_cli(*RUN, option, "out"))


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file of this process may be larger than some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("option", ["--save", "--checkpoints"])
def test_a_limit_of_file_sizes_is_known_before_training(
    option: str, request: pytest.FixtureRequest
) -> None:
    project("a", "b")
    request.getfixturevalue("_small_files")
    refused(executor_cli(*RUN, option, "out"), 2, "no file may have more than 5000; raise the")


def test_models_and_checkpoints_lie_apart() -> None:
    """Whatever the folder is called."""
    project("a", "b")
    Path("kept").mkdir()
    Path("link").symlink_to("kept")
    same = ("--checkpoints", "kept", "--save", "link")
    refused(executor_cli(*RUN, *same), 2, "need folders of their own")


def test_two_runs_do_not_save_in_one_folder() -> None:
    project("a", "b")
    Path("out").mkdir()
    with outputs.locked(Path("out/.lock"), ""):
        refused(executor_cli(*RUN, "--save", "out"), 2, "give each run a --save of its own")


def test_a_model_of_more_steps_is_not_written_over() -> None:
    """Unless that is asked for; one of as many is, and what is no model."""
    project("a", "b")
    Path("out").mkdir()
    Path("out/b.pt").write_text("odd")
    succeeded(executor_cli(*RUN, "--save", "out"))
    succeeded(executor_cli(*RUN, "--save", "out"))
    content = torch.load("out/b.pt")
    torch.save(content | {"step": 5}, "out/b.pt")
    run = (*RUN, "--save", "out")
    refused(executor_cli(*run), 2, "out/b.pt is of step 5, and the plan ends at step 4; give")
    assert torch.load("out/b.pt")["step"] == 5
    succeeded(executor_cli(*run, "--overwrite"))
    assert torch.load("out/b.pt")["step"] == 4


def full(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """From now on there is no room for task a in these folders."""
    real = checkpoint._Sink.write

    def write(self: checkpoint._Sink, data: Any) -> int:
        path = str(self.name)
        if Path(path).name.startswith("a.") and any(folder in path for folder in folders):
            self.error = OSError(28, "No space left on device")
            raise self.error
        return real(self, data)

    monkeypatch.setattr(checkpoint._Sink, "write", write)


def assert_trained(task: str, file: str | Path) -> None:
    """The file has what the plain loop trains."""
    (own,) = (one for one in load("work.py:tasks")[0] if one.name == task)
    plain = train(own, plans.load("plan.json").tasks[0].microbatches)
    saved = torch.load(file)
    assert saved["step"] == 4
    assert all(torch.equal(saved["model"][name], value) for name, value in plain.params.items())


def test_a_model_that_cannot_be_saved_is_among_the_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which is said, and the others are saved where they should be; the exit code is 1."""
    project("a", "b")
    full(monkeypatch, "out/")
    answer = executor_cli(*RUN, "--save", "out", "--checkpoints", "kept")
    refused(answer, 1, "out/a.pt: cannot be written: No space left on device; it takes")
    assert "a is saved as kept/a-4.pt instead" in answer.err
    assert "saved: kept/a-4.pt\nsaved: out/b.pt\nnot written: out/a.pt: " in answer.out
    assert [path.name for path in Path("out").iterdir()] == ["b.pt"]
    assert_trained("a", "kept/a-4.pt")
    assert_trained("b", "out/b.pt")


@pytest.mark.parametrize("without", [("out/",), ("out/", "logs/")])
def test_a_model_that_cannot_be_saved_goes_elsewhere(
    without: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the log, or to the system's folder for such things."""
    project("a", "b")
    full(monkeypatch, *without)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = executor_cli(*RUN, "--save", "out", "--json")
    assert answer.code == 1
    report = json.loads(answer.out)
    elsewhere, other = report["saved"]
    assert other == "out/b.pt"
    assert f"error: {report['errors'][0]}\n" == answer.err
    assert f"a is saved as {elsewhere} instead" in answer.err
    parent = Path("logs") if len(without) == 1 else tmp_path
    assert Path(elsewhere).parent.parent == parent
    assert_trained("a", elsewhere)


def test_a_model_that_cannot_be_saved_anywhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project("a", "b")
    full(monkeypatch, "/")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = executor_cli(*RUN, "--save", "out")
    refused(answer, 1, "; a is not saved")
    assert_trained("b", "out/b.pt")


def test_a_log_that_fails_last_costs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said when the models are saved."""
    project("a", "b")

    real = LogFile.close

    def close(self: LogFile) -> None:
        Path("logs/x.jsonl").mkdir()
        real(self)

    monkeypatch.setattr(LogFile, "close", close)
    answer = executor_cli(*RUN, "--save", "out")
    assert answer.code == 1
    assert answer.err.splitlines() == [
        "error: logs/x.jsonl: cannot be written: Is a directory; the log is in logs/x.jsonl.part",
    ]
    assert_trained("a", "out/a.pt")
    assert_trained("b", "out/b.pt")
