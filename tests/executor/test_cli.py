"""`python -m executor run` from the outside: output, files, and exit codes."""

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from support import handmade
from support.fit import fit, known_as
from support.forked import server
from support.plain import train

import plans
from executor import cli
from executor.cli import main
from executor.records import Options, exporting
from executor.replay import Limits
from executor.workload import load
from plans import runlog
from plans.schema import Plan

WORK = """
import time
from support.chains import chain
from torch import nn

class Sleeper(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)

    def forward(self, x):
        open("asleep", "w").close()
        time.sleep(SLEEP)
        return super().forward(x)

def tasks():
    return [chain("a", 6, 4, 4, make=MAKE)]
"""


def workload(folder: Path, sleep: float = 0) -> str:
    """A workload file of one task; with `sleep`, its layers take that many seconds."""
    make = "Sleeper" if sleep else "lambda: nn.Linear(16, 16)"
    text = WORK.replace("SLEEP", str(sleep)).replace("MAKE", make)
    (folder / "work.py").write_text(text)
    return "work.py:tasks"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan in `plan.json` of the current directory, whose workload is beside it."""
    monkeypatch.chdir(tmp_path)
    ref = workload(tmp_path)
    return store(fit(handmade.streamed(), load(ref)[0]), ref)


def store(made: Plan, ref: str) -> Plan:
    made = known_as(made, ref)
    plans.save("plan.json", made)
    return made


def test_a_run(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """A sound plan runs, says how it went and leaves its folder in runs/."""
    assert main(["run", "plan.json"]) == 0
    captured = capsys.readouterr()
    assert "first loss" in captured.out
    assert "saved: runs/plan/ a.pt, log.jsonl" in captured.out
    log = runlog.load("runs/plan")
    assert log.header.plan_sha256 == plans.sha256(Path("plan.json").read_bytes())
    assert captured.err == ""


def test_json_and_checkpoint(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """The result as JSON, and a checkpoint that an ordinary model and loop can load."""
    assert main(["run", "plan.json", "--json", "-o", "x"]) == 0
    result = json.loads(capsys.readouterr().out)
    task = load("work.py:tasks")[0][0]
    plain = train(task, plan.tasks[0].microbatches)
    assert result["tasks"][0]["last_loss"] == plain.losses[-1]
    assert result["folder"] == "x"
    checkpoint = torch.load("x/a.pt")
    model = task.model()
    model.load_state_dict(checkpoint["model"])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain.params[name])
        assert torch.equal(checkpoint["optimizer"][name]["exp_avg"], plain.state[name]["exp_avg"])
    assert checkpoint["step"] == task.steps
    assert Path("x/a.pt").stat().st_size < 2 * plan.host.bytes
    assert {path.name for path in Path("x").iterdir()} == {"plan.json", "log.jsonl", "a.pt"}
    assert Path("x/plan.json").read_bytes() == Path("plan.json").read_bytes()


def test_saved_models(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder for each task; a place that cannot be is one line, before anything is trained; what
    fails at the end is told, and the command again writes only that."""
    Path("file").touch()
    assert main(["run", "plan.json", "--save", "file"]) == 2
    said = "error: file: cannot be made: File exists; give another path\n"
    assert capsys.readouterr().err == said
    assert not Path("runs").exists()
    with mock.patch.object(exporting, "_put", side_effect=OSError(5, "Input/output error")):
        assert main(["run", "plan.json", "--save", "exports"]) == 1
    captured = capsys.readouterr()
    said = "exports/a: cannot be written: OSError: [Errno 5] Input/output error"
    assert captured.err == f"error: {said}\n"
    assert f"not written: {said}" in captured.out
    assert main(["run", "plan.json", "--save", "exports"]) == 0
    assert capsys.readouterr().err.endswith("exports/a: written\n")
    saved = torch.load("runs/plan/a.pt")["model"]
    read = load_file("exports/a/model.safetensors")
    assert saved.keys() == read.keys()
    assert all(torch.equal(saved[name], read[name]) for name in read)


def test_a_run_that_has_ended_tells_its_peaks_again(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the log has them: no op runs when the same command only writes what was trained."""
    assert main(["run", "plan.json", "--json"]) == 0
    peaks = json.loads(capsys.readouterr().out)["peak_bytes"]
    assert main(["run", "plan.json", "--save", "exports", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_bytes"] == peaks
    assert all(peaks)


def test_a_changed_workload(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    """One that trains something else is refused before anything is trained, unless trusted; a
    comment changes nothing."""
    text = Path("work.py").read_text()
    Path("work.py").write_text(f"# a comment\n{text}")
    assert main(["run", "plan.json"]) == 0
    changed = text.replace("Linear(16, 16)", "Linear(16, 8 + 8)")
    assert changed != text
    Path("work.py").write_text(changed)
    capsys.readouterr()
    assert main(["run", "plan.json", "-o", "other"]) == 2
    err = capsys.readouterr().err
    assert f"{plan.tasks[0].workload.sha256[:12]}… in the plan); profile and build again" in err
    assert "as the plan was made for: its model, or code that it calls, changed (sha256 " in err
    assert "--trust-workload" in err
    assert not list(Path("other").iterdir())
    assert main(["run", "plan.json", "-o", "other", "--trust-workload"]) == 0
    assert "it is trusted" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "p", "--stall-seconds", "0"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that says where more is, and exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    command = "python -m executor run" if arguments else "python -m executor"
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith(f"; see {command} --help\n")
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[..., BaseProcess]]:
    """Starts processes that have loaded torch before."""
    processes: list[BaseProcess] = []

    def start(*arguments: str) -> BaseProcess:
        process = server().Process(target=_command, args=(Path.cwd(), arguments))
        processes.append(process)
        process.start()
        return process

    yield start
    for process in processes:
        process.kill()


def _command(folder: Path, arguments: tuple[str, ...]) -> None:
    """`python -m executor` in this process, its stderr in `err`."""
    os.chdir(folder)
    os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT), 2)
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[1:] = arguments
    soon = partial(Options, limits=Limits(goodbye_s=0.1))  # to layers that sleep on
    cli.Options = soon
    runpy.run_module("executor", run_name="__main__")


@pytest.fixture
def asleep(
    plan: Plan, started: Callable[..., BaseProcess], tmp_path: Path
) -> Callable[..., BaseProcess]:
    """Starts a run in another process, and returns once it is in a layer that sleeps a minute."""

    def start(*options: str) -> BaseProcess:
        store(plan, workload(tmp_path, sleep=60))
        process = started("run", "plan.json", *options)
        while not (tmp_path / "asleep").exists() and process.is_alive():
            time.sleep(0.05)
        return process

    return start


def said(process: BaseProcess) -> str:
    """The stderr of a process that ends before its layer wakes up."""
    process.join(30)
    assert process.exitcode is not None
    return Path("err").read_text()


def test_a_stuck_layer_does_not_hold_the_process(asleep: Callable[..., BaseProcess]) -> None:
    """The process ends with code 1 although a thread of it still sleeps."""
    process = asleep("--stall-seconds", "1")
    err = said(process)
    assert process.exitcode == 1
    assert "a.s0.F0 runs on 0.compute" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_the_process(
    kind: signal.Signals, asleep: Callable[..., BaseProcess]
) -> None:
    """With the code of the signal, and the log says where it was; the first one lets rounds end."""
    process = asleep()
    assert process.pid is not None
    os.kill(process.pid, kind)
    time.sleep(0.5)
    assert process.is_alive()
    os.kill(process.pid, kind)
    err = said(process)
    assert process.exitcode == 128 + kind
    assert err.startswith(f"{kind.name}: tasks end their rounds and are kept in runs/plan; ")
    assert "error: interrupted in a.s0.F0 runs on 0.compute" in err
    end = runlog.load("runs/plan").end
    assert end.status == "interrupted"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--device cpu emulates devices; say their size"),
        (("--device", "cuda", "--h2d", "1GB/s"), "--h2d is for emulated devices"),
        (("--device", "cuda", "--p2p", "1GB/s"), "--p2p is for emulated devices"),
        (("--device-memory", "1MiB", "--p2p", "1KB/s"), "--p2p is 1000; it must be from 100000"),
        (("--device", "cuda"), "sees 0 here; see nvidia-smi"),
        (("--device", "cuda", "--slow-compute", "2"), "--slow-compute is for emulated devices"),
        (
            ("--device-memory", "1MiB", "--slow-compute", "0"),
            "--slow-compute is 0; it must be from 1",
        ),
        (
            ("--device-memory", "1MiB", "--slow-compute", "1001"),
            "is 1001; it must be from 1 to 1000",
        ),
    ],
)
def test_a_device_that_cannot_be_profiled(
    options: tuple[str, ...], sentence: str, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of one kind of device are refused for the other, and so is a missing GPU."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    ref = plan.tasks[0].workload.ref
    assert main(["profile", ref, *options, "-o", "p.json"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_profile_is_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several that torchrun has started would all measure, and write one file."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["profile", "work.py:tasks", "--device-memory", "1MiB", "-o", "p.json"]) == 2
    assert "profile measures in one process; start it without torchrun" in capsys.readouterr().err
