"""What a user can get wrong ends in one clear line and the documented exit code.

Nothing is written then, and what was there before is still there. Every test works in a folder
that holds a workload, its profile, its plan and the log of a run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import cli
from support.cli import (
    Answer,
    executor_cli,
    nothing_written,
    planner_cli,
    profile,
    smallest_budget,
    succeeded,
)

import plans
from planner import read_problem
from profiles.errors import FormatError

pytestmark = [pytest.mark.usefixtures("alone", "untimed"), pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[2]

WORK = """
import sys
from functools import partial
import torch
from executor.workload import Task
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW

def model():
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)))

def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 4, 32, generator=generator).unbind()

def task(**changed):
    given = dict(name="a", model=model, data=data, loss=mse_loss, steps=4)
    return [Task(**given | dict(optimizer=partial(AdamW, fused=True)) | changed)]

tasks = task
one, number = partial(task), 3
def raises(): raise ValueError("first line\\nsecond line")
def leaves(): sys.exit(0)
def none(): return None
def fewer_steps(): return task(steps=-3)
def half_steps(): return task(steps=1.5)
def endless(): return task(steps=10**30)
def seedless(): return task(seed="x")
def far_seed(): return task(seed=10**30)
def negative_batch(): return task(data=lambda step: torch.zeros(2, -4, 32).unbind())
def empty_batch(): return task(data=lambda step: torch.zeros(2, 0, 32).unbind())
def uneven_batch(): return task(data=lambda step: (torch.zeros(4, 32), torch.zeros(3, 32)))
def other_width(): return task(data=lambda step: torch.zeros(2, 4, 31).unbind())
def leaving_data(): return task(data=lambda step: sys.exit(0))
def no_data(): return task(data=None)
def no_model(): return task(model=lambda: None)
def no_layers(): return task(model=nn.Sequential)
def lazy(): return task(model=lambda: nn.Sequential(nn.LazyLinear(32)))
def no_optimizer(): return task(optimizer=None)
def bad_rate(): return task(optimizer=partial(AdamW, lr=-1))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with work.py, profile.json, plan.json and the run's folder x, made once."""
    folder = tmp_path_factory.mktemp("made")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Path("work.py").write_text(WORK)
        profile("work.py:tasks", "profile.json")
        succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *LITTLE))
        succeeded(executor_cli("run", "plan.json", "-o", "x"))
    finally:
        os.chdir(before)
    return folder


LITTLE = ("--device-memory", "40KiB")
REMEDY = re.compile(
    r"(;|,|, or|, so|, and) (?!not )(add|ask|build|call|choose|free|give|import|leave|lower|make|"
    r"name|plan|profile|raise|return|run|say|see|start|use|write|it must)\b|must be |would do: \d+"
)


def refused(answer: Answer, code: int, text: str) -> None:
    """As `cli.refused`, and the line says what to do about it."""
    cli.refused(answer, code, text)
    assert REMEDY.search(next(line for line in answer.err.splitlines() if "error: " in line))


@pytest.fixture(autouse=True)
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of that folder is the current directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def edited(path: str, *keys: str | int, value: object) -> bytes:
    """The JSON file with one value replaced, or added."""
    document = json.loads(Path(path).read_text())
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(document).encode()


Broken = Callable[[str], bytes]


def at(*keys: str | int, value: object) -> Broken:
    return lambda good: edited(good, *keys, value=value)


# What can be wrong with a profile or a plan alike, as a function of the good file's path.
ANY_FILE: dict[str, tuple[Broken, str]] = {
    "empty": (lambda _: b"", "truncated"),
    "cut": (lambda good: Path(good).read_bytes()[:500], "truncated"),
    "binary": (lambda _: bytes(range(256)), "malformed"),
    "latin-1": (lambda _: '{"format": "é"}'.encode("latin-1"), "utf-8"),
    "a list": (lambda _: b"[]", "Expected `object`, got `array`"),
    "two documents": (lambda good: Path(good).read_bytes() * 2, "trailing characters"),
    "deep": (lambda _: b'{"a":' * 100_000, "nested too deeply"),
    "unknown field": (at("x", value=1), "unknown field `x`"),
    "no format": (at("format", value=None), "format is None"),
    "new version": (at("version", value=2), "version 2 is not supported"),
    "wrong type": (at("tasks", value={}), "at `$.tasks`"),
    "no tasks": (at("tasks", value=[]), "at `$.tasks`"),
    "no steps": (at("tasks", 0, "steps", value=-1), "$.tasks[0].steps"),
}

LAYER = ("tasks", 0, "layers", 0)
ROUND = ("programs", 0, "round", 0)
LINK = ("machine", "devices", 0, "links", 0, "both")


def _time(us: int) -> dict[str, int]:
    return {"median_us": us, "p10_us": us, "p90_us": us, "samples": 1}


PROFILES: dict[str, tuple[Broken, str]] = {
    "negative bytes": (at(*LAYER, "param_bytes", value=-1), "param_bytes"),
    "text": (at(*LAYER, "param_bytes", value="1"), "param_bytes"),
    "very huge bytes": (at(*LAYER, "param_bytes", value=10**100), "layers[0].param_bytes`"),
    "huge time": (at(*LAYER, "update_host", value=_time(1 << 62)), "[0].update_host.median_us`"),
    "huge latency": (at(*LINK, value={"bytes_per_s": 1, "latency_us": 1 << 62}), "latency_us"),
    "not a number": (
        lambda good: Path(good).read_bytes().replace(b'"median_us":', b'"median_us":NaN,"x":', 1),
        "malformed",
    ),
    "two of a name": (
        lambda good: at("tasks", value=json.loads(Path(good).read_text())["tasks"] * 2)(good),
        "name 'a' is used twice",
    ),
    "name of two lines": (at("tasks", 0, "name", value="a\n"), "'a\\n'"),
    "wrong batch": (at("tasks", 0, "batch", value=7), "does not divide"),
    "plan": (lambda _: Path("plan.json").read_bytes(), "not a profile file (format is 'plan')"),
}


PLANS: dict[str, tuple[Broken, str]] = {
    "negative bytes": (at("host", "budget_bytes", value=-1), "$.host.budget_bytes"),
    "a role": (at(*ROUND, "reads", value={"who": "a"}), "'who'"),
    "an op name": (at(*ROUND, "id", value="a"), "programs[0].round[0].id"),
    "digits": (at(*ROUND, "id", value=f"a.s{'9' * 5000}.F0"), "length <= 512 - at `$.programs[0]"),
    "profile": (lambda _: Path("profile.json").read_bytes(), "not a plan file"),
    "a log": (lambda _: Path("x/log.jsonl").read_bytes(), "not a plan file"),
}


@pytest.mark.parametrize(
    ("good", "case"),
    [
        *(("profile.json", case) for case in [*ANY_FILE, *PROFILES]),
        *(("plan.json", case) for case in PLANS),
    ],
)
def test_a_bad_file(good: str, case: str) -> None:
    """A profile or plan that is none, or breaks its schema, is refused with its name and the
    place."""
    make, text = (ANY_FILE | (PROFILES if good == "profile.json" else PLANS))[case]
    Path("bad.json").write_bytes(make(good))
    with pytest.raises(FormatError, match=r"bad\.json") as caught:
        read_problem("bad.json") if good == "profile.json" else plans.load("bad.json")
    assert text.lower() in str(caught.value).lower()
    assert REMEDY.search(str(caught.value))


UNSOUND: dict[str, Broken] = {
    "no such device": at("segments", 0, "devices", value=[7]),
    "no such program": at("segments", 0, "program", value="x"),
    "rounds": at("segments", 0, "rounds", value=10**9),
    "makespan": at("prediction", "makespan_us", value=10**15),
    "budget": at("devices", 0, "budget_bytes", value=1),
    "huge buffer": at("programs", 0, "buffers", 0, "bytes", value=10**15),
    "before the start": at(*ROUND, "start_us", value=-(10**30)),
    "op of two lines": at(*ROUND, "id", value="a.s0.F0\n"),
    "far stream": at(*ROUND, "stream", value=f"{'9' * 5000}.h2d"),
    "circle": at(*ROUND, "after", value=["a.s0.U0"]),
    "microbatches": at("tasks", 0, "microbatches", value=10**9),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_plan(case: str) -> None:
    """One that breaks the checker's rules."""
    Path("bad.json").write_bytes(UNSOUND[case]("plan.json"))
    with pytest.raises((plans.InvalidPlan, FormatError), match=r"the plan breaks|at `") as caught:
        plans.prove(plans.load("bad.json"))
    assert REMEDY.search(str(caught.value))


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (ANY_FILE["cut"][0], 2, "truncated"),
        (PLANS["profile"][0], 2, "not a plan file"),
        (UNSOUND["makespan"], 1, "the plan breaks"),
    ],
)
def test_a_bad_file_as_commands_meet_it(make: Broken, code: int, text: str) -> None:
    """Neither the check nor a picture, a comparison, a run or a build."""
    Path("bad.json").write_bytes(make("plan.json"))
    with nothing_written():
        answers = [
            planner_cli("check", "bad.json"),
            planner_cli("show", "bad.json", "--gantt", "new.png"),
            planner_cli("compare", "bad.json", "x", "--trace", "new.json"),
            executor_cli("run", "bad.json", "-o", "new"),
        ]
    for answer in answers:
        refused(answer, code, text)
    Path("bad.json").write_bytes(PROFILES["wrong batch"][0]("profile.json"))
    with nothing_written():
        refused(planner_cli("build", "bad.json", "-o", "plan.json"), 2, "bad.json: ")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"", "line 2: "),
        (b'{"type":"strange"}', "line 2: Invalid value 'strange'"),
        (b'{"type":"step","task":"a","step":0,"loss":NaN,"at_us":0}', "line 2: "),
        (b'{"type":"op","segment":0,"op":"a.s0.F0","round":0,"start_us":-1,"end_us":1}', "line 2"),
        (b'{"type":"op","segment":9,"op":"a.s0.F0","round":0,"start_us":0,"end_us":1}', "segment"),
        (b'{"type":"op","segment":0,"op":"b.s0.F0","round":0,"start_us":0,"end_us":1}', "b.s0.F0"),
        (b'{"type":"op","segment":0,"op":"a.s0.F0","round":99,"start_us":0,"end_us":1}', "99"),
    ],
)
def test_a_log_with_a_bad_line(line: bytes, text: str) -> None:
    """A line that is no record, or of an op that the plan does not have, is named."""
    header, *rest = Path("x/log.jsonl").read_bytes().splitlines()
    Path("bad.jsonl").write_bytes(b"\n".join([header, line, *rest]))
    with nothing_written():
        answer = planner_cli("compare", "plan.json", "bad.jsonl", "--trace", "new.json")
    refused(answer, 2, text)


@pytest.mark.parametrize("file", ["profile.json", "work.py", "missing"])
def test_a_log_that_is_none(file: str) -> None:
    """Another file, a missing one or a folder in place of a log is refused by its name."""
    with nothing_written():
        answer = planner_cli("compare", "plan.json", file, "--gantt", "new.png")
    refused(answer, 2, f"{file}: ")
    assert ("this is not a run log" in answer.err) == Path(file).is_file()


@pytest.mark.parametrize(
    ("field", "value", "size", "text"),
    [
        ("in_bytes", 256, 4, "512 bytes, the plan says 256; profile and build again"),
        ("rng_draws", 7, 2, "0 now and 7 in the plan, so its microbatches cannot be reproduced; "),
    ],
)
def test_a_wrong_fact_of_the_model(field: str, value: int, size: int, text: str) -> None:
    """What the plan quotes of the model ends the first op that knows better, by the op's name."""
    few = ("--microbatch", str(size))
    succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *LITTLE, *few))
    plan = json.loads(Path("plan.json").read_text())
    for shard in plan["tasks"][0]["shards"]:
        if shard[field] or field == "rng_draws":
            shard[field] = value
    Path("wrong.json").write_text(json.dumps(plan))
    answer = executor_cli("run", "wrong.json", "-o", "new")
    refused(answer, 1, text)
    assert "a.s0." in answer.err
    assert "in round 0" in answer.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "raises() raised ValueError: first line second line"),
        ("leaves", "sys.exit(0)"),
        ("number", "has no function 'number'"),
        ("none", "returned NoneType"),
        ("fewer_steps", "task a: steps is -3"),
        ("half_steps", "task a: steps is 1.5"),
        ("endless", "it must be a whole number from 1 to "),
        ("seedless", "task a: seed is 'x'"),
        ("far_seed", "it must be a whole number of at most 64 bits"),
        ("negative_batch", "task a: data(0): RuntimeError"),
        ("empty_batch", "batch first and not empty"),
        ("uneven_batch", "returned 4 inputs but 3 targets"),
        ("other_width", "task a: layer 0 (Linear): "),
        ("leaving_data", "sys.exit(0)"),
        ("no_data", "task a: data is None; it must be a function"),
        ("no_model", "model() returned NoneType"),
        ("no_layers", "has no layers"),
        ("lazy", "parameter 0.weight has no shape"),
        ("no_optimizer", "task a: optimizer: TypeError"),
        ("bad_rate", "Invalid learning rate"),
    ],
)
def test_a_bad_workload(name: str, text: str) -> None:
    """Whatever a workload does wrong is told in one line when it is profiled."""
    arguments = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1)
    with nothing_written():
        answer = executor_cli("profile", f"work.py:{name}", *arguments, "-o", "profile.json")
    refused(answer, 2, text)


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_the_smallest_budget(policy: str) -> None:
    """Too little device memory is infeasible; the budget that is named does, one byte less not."""
    options = ("-o", "new.json", "--policy", policy)
    need = smallest_budget("profile.json", "--policy", policy)
    with nothing_written():
        answer = planner_cli("build", "profile.json", *options, "--device-memory", need - 1)
    refused(answer, 3, f"smallest --device-memory that would do: {need}")
    succeeded(planner_cli("build", "profile.json", *options, "--device-memory", need))
    Path("profile.json").unlink()  # a plan holds all that a run needs
    succeeded(executor_cli("run", "new.json", "-o", "new"))


def test_too_little_time() -> None:
    """No plan within the time limit is an answer of its own."""
    with nothing_written():
        answer = planner_cli("build", "profile.json", "-o", "new.json", "--time-limit", "1e-9")
    refused(answer, 4, "raise --time-limit")


OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "build profile.json -o new.json": {
        "--devices": ("0", "²", "9" * 5000, "1000000000"),
        "--device-memory": ("-1", "1e3", "nan", "9" * 400, "2000TiB"),
        "--time-limit": ("0", "nan", "inf", "soon"),
        "--seed": ("-1", "1.5", "2147483648"),
    },
    "profile work.py:tasks --device-memory 1MiB -o profile.json": {
        "--devices": ("0", "1000000"),
        "--samples": ("0", "1000000"),
        "--latency-us": ("-1", "1.5", "100000000"),
        "--h2d": ("1B/s", "0GB/s", "5", "fast"),
        "--d2h": ("1KB/s",),
        "--host-memory": ("0",),
        "--device": ("tpu",),
    },
    "run plan.json -o new": {"--stall-seconds": ("0", "nan", "inf", "x")},
}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [(call, o, value) for call, own in OPTIONS.items() for o in own for value in own[o]],
    ids=lambda word: word[:16],
)
def test_a_bad_option(command: str, option: str, value: str) -> None:
    """An impossible value is refused with the option's name, before anything is done."""
    call = planner_cli if command.startswith("build") else executor_cli
    with nothing_written():
        answer = call(*command.split(), option, value)
    refused(answer, 2, f"error: argument {option}: " if call is planner_cli else option)
    assert "_" not in answer.err.splitlines()[-1]


def writers(output: str) -> list[Answer]:
    """The answers of every command that writes a file, told to write `output`."""
    arguments = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1)
    return [
        executor_cli("profile", "work.py:tasks", *arguments, "-o", output),
        planner_cli("build", "profile.json", "-o", output),
        planner_cli("show", "plan.json", "--trace", output),
        planner_cli("compare", "plan.json", "x", "--trace", output),
        planner_cli("show", "plan.json", "--gantt", output),
    ]


@pytest.mark.parametrize("output", ["work.py/x.png", "f.png", "x" * 300])
def test_an_output_that_cannot_be(output: str) -> None:
    """A file as folder, a folder as file and too long a name are refused before any work."""
    Path("f.png").mkdir()
    with nothing_written():
        answers = writers(output)
    for answer in answers:
        refused(answer, 2, "cannot be written: ")
        assert answer.err.count("\n") == 1


def test_a_read_only_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output in a folder that nothing may be written to is refused before any work."""
    Path("locked").mkdir(mode=0o500)
    if os.geteuid() == 0:  # who may write everywhere
        monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    with nothing_written():
        answers = writers("locked/x.png")
    for answer in answers:
        refused(answer, 2, "no permission to write in ")


def test_a_pipe_is_no_output() -> None:
    """A pipe or device is not replaced by a file."""
    os.mkfifo("pipe.png")
    for answer in writers("pipe.png"):
        refused(answer, 2, "it is a device or pipe")
    assert Path("pipe.png").is_fifo()


def test_an_output_that_is_an_input() -> None:
    """No command overwrites what it reads."""
    commands: list[tuple[Callable[..., Answer], str]] = [
        (planner_cli, "build profile.json -o profile.json"),
        (planner_cli, "build profile.json --from x -o x/log.jsonl"),
        (planner_cli, "show plan.json --trace ./plan.json"),
        (planner_cli, "compare plan.json x --trace x/log.jsonl"),
        (executor_cli, "profile work.py:tasks --device-memory 1MiB -o work.py"),
    ]
    with nothing_written():
        answers = [command(*words.split()) for command, words in commands]
    for answer in answers:
        refused(answer, 2, "this command reads it")


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be completed leaves the old one, and no part of the new one."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with nothing_written():
        refused(planner_cli("build", "profile.json", "-o", "plan.json"), 2, "No space left")
        refused(planner_cli("show", "plan.json", "--trace", "new.json"), 2, "No space left")


@pytest.mark.parametrize("name", ["y", "x.png.part"])
def test_a_picture_of_an_unknown_kind(name: str) -> None:
    """The name of a picture says its kind, one of three."""
    for call in (("show", "plan.json"), ("compare", "plan.json", "x")):
        with nothing_written():
            answer = planner_cli(*call, "--gantt", name)
        refused(answer, 2, "the name of a picture ends in .png, .svg, .pdf")


@pytest.mark.parametrize("output", ["work.py/x", "plan.json", "y" * 300, "/proc/x"])
def test_a_bad_folder_to_run_in(output: str) -> None:
    """A folder that cannot be made is refused before the run."""
    with nothing_written():
        answer = executor_cli("run", "plan.json", "-o", output)
    refused(answer, 2, "cannot be made")


def shell(command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A bash command line in which $planner, $executor and $plans are commands."""
    programs = {name: f"{sys.executable} -m {name}" for name in ("planner", "executor", "plans")}
    environment = os.environ | programs | {"PYTHONPATH": str(ROOT)}
    whole = f"set -o pipefail; {command}"
    return subprocess.run(
        ["bash", "-c", whole], env=environment, capture_output=True, text=True, timeout=60, **more
    )


@pytest.mark.parametrize(
    "command", ["$planner show plan.json --trace new.json", "$executor run plan.json -o new"]
)
def test_a_reader_that_went_away(command: str) -> None:
    """A broken pipe, as behind `| head`, is no failure: the work is done all the same."""
    done = shell(f"{command} | true")
    assert done.returncode == 0
    assert "rror" not in done.stderr
    assert list(Path().glob("new*"))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is full")
def test_an_output_that_takes_nothing() -> None:
    """Results that nobody can receive are an error of one line, with its exit code."""
    done = shell("$planner show plan.json > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: output: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("planner", "the following arguments are required: COMMAND; see python -m planner"),
        ("planner build x.json", "-o/--output; see python -m planner build --help"),
        ("planner show x.json --all", "unrecognized arguments: --all; see"),
        ("plans x", "argument format: invalid choice: 'x'"),
    ],
)
def test_wrong_usage_is_one_line(command: str, text: str) -> None:
    """What is wrong, and where the usage is told."""
    program, *arguments = command.split()
    if program == "planner":
        answer = planner_cli(*arguments)
    else:
        done = shell(f"${command}")
        answer = Answer(done.returncode, done.stdout, done.stderr)
    refused(answer, 2, text)
