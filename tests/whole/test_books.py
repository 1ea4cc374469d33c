"""Plan books from the command line: a run goes on when devices are lost or come back."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.booked import NOW, expect_plain, make_book
from support.cli import executor_cli, planner_cli, refused, succeeded
from support.forked import ended, started, torchrun

import plans
from executor.books import following
from executor.errors import InterruptedRun
from executor.replay import NOTICE
from plans import runlog
from profiles.units import show_us

pytestmark = pytest.mark.usefixtures("alone", "untimed", "here")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with x.book."""
    folder = tmp_path_factory.mktemp("book")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_book("x.book")
    return folder


@pytest.fixture
def book(made_once: Path) -> None:
    """x.book, with plans for one to three devices, and its profile."""
    shutil.copytree(made_once, Path(), dirs_exist_ok=True)


def test_devices_come_and_go_and_the_bits_stay(book: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of devices changes, once from nine to three, which is no change: three are no faster
    than two. Nothing is trained again."""
    Path(NOW).write_text("one\ntwo\n")
    monkeypatch.setenv("EVENTS", "6:1 12:9 15:3 18:1")
    answer = succeeded(executor_cli("run", "x.book", "--devices-file", NOW, "-o", "x"))
    assert re.search(r"1 device\(s\) instead of 2: .* to go, .* before: tasks end th", answer.err)
    expect_plain("x")
    headers = [runlog.load(log).header for log in runlog.files("x")]
    assert [len(header.devices) for header in headers] == [2, 1, 2, 1]
    succeeded(planner_cli("compare", "x/plan.json", "x"))
    starts = runlog.starts_us("x")
    assert len(starts) == 3
    assert all(0 < us < 60e6 for us in starts)
    told = succeeded(planner_cli("show", "x.book", "--start", "x")).out
    assert f"a start of {show_us(round(sum(starts) / 3))} (as 3 in x took on average)" in told


def test_a_device_that_comes_is_left_where_a_start_takes_longer_than_it_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the plan all is over in a millisecond."""
    make_book("quick.book", us=1)
    Path(NOW).write_text("one\n")
    monkeypatch.setenv("EVENTS", "6:2")
    run = ("run", "quick.book", "--devices-file", NOW, "-o", "x")
    answer = succeeded(executor_cli(*run))
    assert len(re.findall(r"2 device\(s\) .* a start takes .*: it stays on 1", answer.err)) == 1
    expect_plain("x")
    assert len(list(runlog.files("x"))) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_devices_that_are_back_before_rounds_have_ended_train_on(book: None, whole: bool) -> None:
    """By the plan that they had; a signal that ends the rounds before their time ends the run, and
    so does one that comes without a change."""
    known, counts = plans.book_from(Path("x.book").read_bytes(), "x.book"), list[int]()

    def train(devices: int, changed: Callable[[int], str]) -> int:
        counts.append(devices)
        if len(counts) == 1:
            Path(NOW).write_text("one\n")
            assert changed(10**9)
            Path(NOW).write_text("one\ntwo\n")
        raise InterruptedRun("rounds have ended", NOTICE, 0.0, whole=whole)

    Path(NOW).write_text("one\ntwo\n")
    with pytest.raises(InterruptedRun):
        following(Path(NOW), known, train)
    assert counts == ([2, 2] if whole else [2])


def test_processes_that_no_plan_is_for_stay_idle(book: None) -> None:
    """Three come, and two are the fastest: the third one waits, and ends as they do."""
    agent = started(torchrun(3, "-m", "executor", "run", "x.book", "-o", "x"), Path("said"))
    assert ended(agent, 60) == 0, Path("said").read_text()
    expect_plain("x")
    assert len(runlog.load("x").header.devices) == 2


def test_a_run_that_is_killed_goes_on_with_fewer_devices(
    book: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are killed; the same command goes on in one, from the states that were kept."""
    run = ["-m", "executor", "run", "x.book", "-o", "x"]
    agent = started(torchrun(2, *run), Path("said"), EVENTS="14:SIGKILL:0 14:SIGKILL:1")
    assert ended(agent, 60)
    answer = succeeded(executor_cli(*run[2:], "--devices-file", one_device()))
    assert "x: goes on on 1 device(s), 2 before with a after step" in answer.err
    expect_plain("x")


def one_device() -> str:
    Path(NOW).write_text("one\n")
    return NOW


def test_what_does_not_fit_a_book_is_refused(book: None) -> None:
    """Each in one line, before anything is written."""
    refused(planner_cli("show", "x.book", "--gantt", "x.png"), 2, "--gantt is about one plan")
    succeeded(planner_cli("check", "x.book"))
    shown = succeeded(planner_cli("show", "x.book")).out
    assert "3 device(s): 1 idle; 2 device(s) are no slower" in shown
    made = plans.book_from(Path("x.book").read_bytes(), "x.book")
    plans.save("one.json", made.plans[0])
    run = ("run", "one.json", "--devices-file", one_device())
    refused(executor_cli(*run), 2, "one.json: is one plan; --devices-file chooses one from a plan")
    Path(NOW).write_text("\n")
    refused(executor_cli("run", "x.book", "--devices-file", NOW), 2, "now.txt: names no device")
    run = ("run", "x.book", "--devices-file", "none.txt")
    refused(executor_cli(*run), 2, "none.txt: cannot be read")
    plans.save("y.book", plans.Book(plans=made.plans[1:]))
    run = ("run", "y.book", "--devices-file", one_device())
    refused(executor_cli(*run), 2, "y.book: has plans for 2 device(s), 3 device(s), and here are 1")
    refused(planner_cli("book", "profile.json", "-o", "z.book"), 2, "give --devices 2..4")
    sizes = ("--devices", 2, "--nodes", "1x2", "--time-limit", 5, "--jobs", 1)
    refused(planner_cli("book", "profile.json", "-o", "z.book", *sizes), 1, "each size once")
    sizes = ("--devices", "1..2", "--device-memory", 1)
    refused(planner_cli("book", "profile.json", "-o", "z.book", *sizes), 3, "2 device(s): ")
    Path("trace.json").write_text('[[0, "add", "a"], [9000, "add", "b"], [60000, "remove", "a"]]')
    survive = ("survive", "x.book", "--trace", "trace.json")
    refused(planner_cli(*survive, "--plot", "s.txt"), 2, "s.txt: the name of a picture ends in")
    told = succeeded(planner_cli(*survive, "--start", "1s", "--plot", "s.png")).out
    assert Path("s.png").stat().st_size > 10_000
    assert "1 to 2 devices, 2 changes of plan" in told
    assert "a start: 1.00 s (as given)" in told
    refused(planner_cli("show", "one.json", "--start", 1), 2, "--start is about a book")
    refused(planner_cli(*survive, "--start", "none"), 2, "none: cannot be read")


def test_a_book_is_not_written_over_under_torchrun(
    book: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that joins starts all processes anew: they would lose what is trained."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    run = ("run", "x.book", "-o", "x", "--overwrite")
    refused(executor_cli(*run), 2, "--overwrite would write over the run whenever a machine joins")
