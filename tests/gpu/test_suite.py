"""The suite itself, tried on a processor: it must work where no one can mend it."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from support.cli import executor_cli, planner_cli
from support.forked import ended, started
from support.searches import QUICK, searching
from support.steady import timeless

from tests.gpu import correctness, models, plain, report, suite, tools, worker
from tests.gpu.cases import CASES, Case, budgets, chosen, workload
from tests.gpu.remote import Worker
from tests.gpu.shapes import SIZES, Settings, fitting_layers, shapes
from tests.gpu.tools import ROOT, Bench, Done, Skip, Trouble

TINY = Settings(batch=4, seq=16, steps=3, tiny=1)


def bench_in(folder: Path, **changes: Any) -> Bench:
    """A bench on the processor with an empty folder."""
    for name in tools.FOLDERS:
        (folder / name).mkdir()
    values = {"device": "cpu", "tiny": True, "device_bytes": 1 << 30, "host_bytes": 1 << 34}
    return Bench(**{"out": folder, "precision": "fp32", **values, **changes})


class Here:
    """A worker that is this process."""

    def __init__(self, bench: Bench) -> None:
        """It needs nothing of the bench."""

    def ask(self, case: str, bench: Bench) -> dict[str, Any]:
        """Whatever else is printed goes to stderr."""
        with redirect_stdout(sys.stderr):
            return worker.answer(case, bench)

    def rest(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suite's commands need not load torch: those of the packages are calls, as is the worker,
    and others are forked."""
    calls = {"planner": planner_cli, "executor": executor_cli}

    def python(
        bench: Bench, arguments: Sequence[object], settings: Mapping[str, str], log: str
    ) -> Done:
        said = bench.file("logs", f"{log}.txt")
        call = calls.get(str(arguments[1]))
        if call is None:
            code = ended(started(arguments, said, ROOT, **settings))
            return Done(code, said.read_text(), said.read_text())
        with mock.patch.dict(os.environ, settings):
            answer = call(*arguments[2:])
        said.write_text(answer.out + answer.err)
        return Done(*answer)

    monkeypatch.setattr(tools, "python", python)
    monkeypatch.setattr(suite, "Worker", Here)
    with searching(QUICK), timeless():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
def test_the_cheapest_cases_end_in_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Profile, plan, run, plain loop, comparison and a peer, through the commands."""
    cases = "correctness-fp32,spill-1b3-16,prediction-1b3-16,peers-fsdp2-1b3-16"
    code = suite.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--only", cases])
    told = capsys.readouterr()
    assert code == 0, told
    head, *lines = told.out.splitlines()
    assert head.split() == ["case", "status", "s", "what"]
    assert [line.split()[:2] for line in lines] == [[case, "ok"] for case in cases.split(",")]
    found = json.loads((tmp_path / "suite.json").read_text())
    assert found["machine"]["versions"]["torch"] == torch.__version__
    same, spilled, predicted, peer = (case["figures"] for case in found["cases"])
    assert same["bitwise"] is True
    assert spilled["tax_best"] > 0
    assert predicted["peak_share"] <= 1
    assert peer["faster"] > 0
    for path in ("profiles/1b3.json", "plans/1b3-16.json", "runs/1b3-16/log.jsonl", "suite.txt"):
        assert (tmp_path / path).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
def test_a_pipeline_in_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a processor as on two GPUs."""
    cases = "processes-1f1b"
    code = suite.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--only", cases])
    told = capsys.readouterr()
    assert code == 0, told
    assert "processes-1f1b  ok" in told.out
    assert "same bits as one process" in told.out


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_the_whole_suite_holds_on_a_gpu(tmp_path: Path) -> None:
    """Nothing fails, whatever does not fit into the time."""
    assert suite.main(["--out", str(tmp_path)]) == 0


def test_without_a_device_the_suite_says_one_line_and_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without CUDA is no failure, and nothing is written."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert suite.main(["--out", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == suite.SKIPPED + "\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "cpu"], "goes with --tiny only"),
        (["--only", "spil"], "'spil' is neither a case nor one of the groups"),
        (["--device", "cpu", "--tiny"], "holds an earlier run"),
    ],
)
def test_wrong_usage_is_refused(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a line that says what is wrong."""
    (tmp_path / "suite.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        suite.main(["--out", str(tmp_path), *arguments])
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


def test_every_case_has_a_function_and_a_sentence() -> None:
    """What the worker does it knows by name, everything else is a function; names differ."""
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.group in report.SENTENCES
        if case.group == "correctness":
            assert case.name.partition("-")[2] in correctness.CASES
        elif case.group != "budgets":
            assert callable(case.run)
    assert {c.name for c in chosen("correctness")} == {
        f"correctness-{n}" for n in correctness.CASES
    }


def test_a_case_is_not_begun_without_enough_time(tmp_path: Path) -> None:
    """It is listed, with both numbers."""
    bench = bench_in(tmp_path, tiny=False, until=time.monotonic() + 10)
    (row,) = suite._run(chosen("spill-7b-16"), bench)
    assert row.status == "not run"
    assert row.note == "10 s were left, it takes about 184"


def test_one_failing_case_does_not_end_the_others(tmp_path: Path) -> None:
    """Neither trouble that was foreseen nor a mistake."""

    def fail(error: Exception) -> Case:
        def run(bench: Bench) -> dict[str, Any]:
            raise error

        return Case(type(error).__name__, 1, run)

    cases = [fail(Trouble("no")), fail(Skip("not here")), fail(KeyError("x"))]
    rows = list(suite._run(cases, bench_in(tmp_path)))
    assert [row.status for row in rows] == ["failed", "skipped", "failed"]
    assert [row.note for row in rows] == ["no", "not here", "KeyError: 'x'"]


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """With what it had said, and its output is kept."""
    bench = bench_in(tmp_path, until=time.monotonic() + 1.5)
    script = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(60)"
    with pytest.raises(Trouble, match="sleeper: out of time; it had said: begun"):
        tools.python(bench, ["-c", script], {}, "sleeper")
    assert "begun" in (tmp_path / "logs" / "sleeper.txt").read_text()


@pytest.mark.slow
def test_a_worker_that_fails_or_is_late_is_replaced(tmp_path: Path) -> None:
    """A mistake is that case's answer, silence is trouble, and the next case has a new process."""
    bench = bench_in(tmp_path)
    worker = Worker(bench)
    answer = worker.ask("correctness-none", replace(bench, until=time.monotonic() + 60))
    assert answer == {"status": "failed", "note": "KeyError: 'none'"}
    with pytest.raises(Trouble, match="out of time"):
        worker.ask("correctness-fp32", replace(bench, until=time.monotonic() + 0.1))
    assert worker.rest() is None


def test_without_a_solver_given_plans_are_used_and_others_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is said which plan was missing."""
    monkeypatch.setattr(tools, "has_planner", lambda: False)
    given = tmp_path / "given"
    given.mkdir()
    (given / "a.json").write_text("{}")
    (tmp_path / "out").mkdir()
    bench = bench_in(tmp_path / "out", plans=given)
    assert tools.found_plan(bench, "a") == tmp_path / "out" / "plans" / "a.json"
    with pytest.raises(Skip, match=r"no b\.json given"):
        tools.found_plan(bench, "b")


def test_large_models_have_the_asked_budgets_and_fit_the_host(tmp_path: Path) -> None:
    """128 GiB do not hold all layers of the 7B model, 64 GiB hold all of the 1.3B one."""
    bench = bench_in(tmp_path, tiny=False, host_bytes=128 << 30)
    work = workload(bench, "7b")
    assert budgets(bench, work)["7b-16"] == 16 << 30
    assert 24 <= work.number("layers") < 32
    assert fitting_layers(SIZES["1b3"], 64 << 30) == 24
    assert fitting_layers(SIZES["7b"], 1 << 30) == 1


def test_models_learn_and_begin_with_values_that_bf16_can_hold() -> None:
    """The loss begins near that of guessing and falls; masters of bf16 parameters begin equal."""
    task = models.bare("1b3", TINY)
    losses, _ = plain.train(task, plain.Way())
    assert losses[0] == pytest.approx(6.24, abs=0.15)
    assert losses[-1] < losses[0]
    torch.manual_seed(1)
    model = models.make(shapes("1b3", TINY), TINY)
    assert all(torch.equal(p, p.bfloat16().float()) for p in model.parameters())


def test_recomputing_and_offloading_train_the_same_numbers() -> None:
    """The plain loops differ in speed and memory only."""
    task = models.bare("7b", TINY)
    whole, _ = plain.train(task, plain.Way(microbatches=2))
    for keep in ("boundaries", "host"):
        assert plain.train(task, plain.Way(microbatches=2, keep=keep))[0] == whole


def test_the_plain_loop_steps_apart_what_a_plan_updates_on_the_host() -> None:
    """A step there has other last bits than on a GPU; on one processor both are the same."""
    task, sides = models.bare("7b", TINY), list[int]()
    assert not isinstance(task.model, torch.nn.Module)
    model = task.model()
    shards = [
        SimpleNamespace(update=u, first_layer=n, end_layer=n + 1)
        for n, u in enumerate(["host", "device", "host"])
    ]
    hosted = correctness._hosted(SimpleNamespace(shards=shards), model)  # type: ignore[arg-type]
    assert {name.partition(".")[0] for name in hosted} == {"0", "2"}

    def optimizer(parameters: Any) -> Any:
        sides.append(len(parameters))
        return task.optimizer(parameters)

    way = plain.Way()
    assert (
        plain.train(replace(task, optimizer=optimizer), replace(way, hosted=hosted))[0]
        == (plain.train(task, way)[0])
    )
    assert sides == [len(list(model.parameters())) - len(hosted), len(hosted)]


@pytest.mark.parametrize("precision", ["bf16", "fp16-autocast"])
def test_lower_precisions_train_nearly_the_same(precision: str) -> None:
    """Masters, autocast and loss scaling in the plain loop, clipped as well."""
    settings = Settings(batch=2, seq=16, steps=3, tiny=1, layers=1, precision=precision)
    task = models.bare("1b3", settings)
    wide, _ = plain.train(task, plain.Way(clip=0.5))
    size = shapes("1b3", settings)
    low = models.task("1b3", size, settings)
    losses, _ = plain.train(low, plain.Way(precision=precision, clip=0.5))
    assert losses == pytest.approx(wide, abs=0.05)


def test_the_fewest_microbatches_that_fit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not fit costs nothing but its attempt."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def attempt(count: int) -> dict[str, Any]:
        if count < 4:
            raise torch.OutOfMemoryError("no room")
        return {"step_us": count}

    assert plain.fewest(attempt, 12, lambda: None) == {"microbatches": 4, "step_us": 4}
    assert "error" in plain.fewest(attempt, 2, lambda: None)


def test_json_is_found_after_progress_and_a_failure_is_named() -> None:
    """The last object counts; a command that failed says its error line."""
    assert tools.last_json(Done(0, '{x}\nwarning\n{"a": 1}\n', ""), "x") == {"a": 1}
    assert tools.last_json(Done(0, 'begun\n{\n "a": 1\n}\n', ""), "x") == {"a": 1}
    with pytest.raises(Trouble, match="printed no JSON"):
        tools.last_json(Done(0, "nothing", ""), "x")
    with pytest.raises(Trouble, match="build: exit 3: error: infeasible"):
        tools.succeeded(Done(3, "", "planning\nerror: infeasible\n  more\n"), "build")


def test_the_median_step_leaves_out_the_metered_round(tmp_path: Path) -> None:
    """The first difference holds the end of the first round."""
    ends = (500, 900, 1000, 1102, 1200)
    lines = [{"type": "op", "op": "a.s0.F0"}, *({"type": "step", "at_us": us} for us in ends)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tools.step_us(tmp_path) == 100
