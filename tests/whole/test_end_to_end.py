"""The README's commands through the whole path: profile, build, check, run, compare."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.plain import train
from support.same import assert_saved

import plans
from executor import cli as executor
from executor.workloads import bytes_lm
from planner.cli import parser as planner

pytestmark = pytest.mark.usefixtures("alone", "untimed")


def test_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Profile, build, check, show, run and compare, as typed, on the tiny workload, which ends with
    the bits of plain loops."""
    root = Path(plans.__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    ref = f"{root}/executor/workloads/bytes_lm.py:tiny"
    sizes = ["--device-memory", "260KiB", "--h2d", "1GB/s", "--d2h", "1GB/s", "--samples", "1"]
    assert executor.main(["profile", ref, "--device", "cpu", *sizes, "-o", "p.json"]) == 0
    assert planner.main(["build", "p.json", "--devices", "2", "-o", "plan.json", "--json"]) == 0
    built = json.loads(capsys.readouterr().out.split("p.json\n", 1)[-1])
    assert planner.main(["check", "plan.json"]) == 0
    shown = ["--gantt", "plan.png", "--trace", "trace.json"]
    assert planner.main(["show", "plan.json", *shown]) == 0
    assert executor.main(["run", "plan.json", "-o", "x"]) == 0
    capsys.readouterr()
    drawn = ["--gantt", "both.png", "--trace", "both.json", "--write-corrections", "c.json"]
    assert planner.main(["compare", "plan.json", "x", "--json", *drawn]) == 0
    compared = json.loads(capsys.readouterr().out)
    again = ["--corrections", "c.json", "--devices", "2", "-o", "again.json"]
    assert planner.main(["build", "p.json", *again]) == 0
    assert {
        "makespan_us", "lower_bound_us", "lower_bound_name", "gap", "exposed_copy_us",
        "peak_bytes", "host_bytes", "build_seconds",
    } <= built.keys()  # fmt: skip
    assert {
        "predicted_us", "actual_us", "makespan_error", "median_op_error", "tasks", "peak_bytes"
    } <= compared.keys()  # fmt: skip
    assert compared["predicted_us"] == built["makespan_us"]
    for name in ("plan.png", "trace.json", "both.png", "both.json", "x/tiny-1.pt"):
        assert (tmp_path / name).stat().st_size > 0
    for task, planned in zip(bytes_lm.tiny(), plans.load("plan.json").tasks, strict=True):
        assert_saved(f"x/{task.name}.pt", train(task, planned.microbatches))
