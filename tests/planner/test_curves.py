"""Losses and metrics of a run by step, as others read them."""

import csv
import math
import sys
from pathlib import Path

import pytest
from support.cli import planner_cli, refused, succeeded

from plans import runlog
from plans.runlog import EvaluationRecord, Header, StepRecord

START = "2026-01-02T03:04:05+00:00"
HEAD = Header(plan_sha256="0" * 64, started=START, devices=("d",), microbatch={"a": 1, "b": 1})
EARLIER = [
    *(StepRecord("a", step, 4.0 - step, 100 * step) for step in range(3)),
    StepRecord("b", 0, None, 150_000),
]
LATER = [
    StepRecord("a", 2, 2.5, 400_000),
    StepRecord("a", 3, 2.25, 500_000),
    EvaluationRecord("a", 4, 3.5, 1_500_000, {"accuracy": 0.75}),
]

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def run(here: None) -> None:
    """The folder of a run that went on by another plan."""
    Path("x").mkdir()
    Path("x/log.1.jsonl").write_bytes(runlog.encode([HEAD, *EARLIER]))
    Path("x", runlog.LOG).write_bytes(runlog.encode([HEAD, *LATER]))


def test_a_table_has_a_line_for_each_step() -> None:
    """Of all logs of the run, what was done last; with evaluations where they are."""
    succeeded(planner_cli("export", "x", "--format", "csv", "-o", "out"))
    with open("out/a.csv") as file:
        head, *rows = csv.reader(file)
    assert head == ["step", "time", "loss", "val_loss", "accuracy"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[2:] for row in rows[1:]] == [
        ["3.0", "", ""],
        ["2.5", "", ""],
        ["2.25", "3.5", "0.75"],
    ]
    assert float(rows[3][1]) == pytest.approx(1767323045 + 1.5)
    assert Path("out/b.csv").read_text().splitlines()[1:] == ["1,1767323045.15,"]


def test_tensorboard_reads_a_task_as_a_run() -> None:
    """Exported again, it finds everything once."""
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    for _ in range(2):
        succeeded(planner_cli("export", "x", "--format", "tensorboard", "-o", "out"))
    assert [path.name for path in Path("out").iterdir()] in (["a", "b"], ["b", "a"])
    (file,) = Path("out/a").iterdir()
    found = {
        (event.step, value.tag): value.tensor.float_val[0] if value.HasField("tensor") else None
        for event in loading.EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    losses = {(1, "loss"): 4.0, (2, "loss"): 3.0, (3, "loss"): 2.5, (4, "loss"): 2.25}
    assert found == losses | {(4, "val_loss"): 3.5, (4, "accuracy"): 0.75}
    (file,) = Path("out/b").iterdir()
    values = [v for event in loading.EventFileLoader(str(file)).Load() for v in event.summary.value]
    assert [math.isnan(value.tensor.float_val[0]) for value in values] == [True]


def test_without_tensorboard_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    told = "tensorboard is not installed; pip install tensorboard, or write --format csv"
    refused(planner_cli("export", "x", "--format", "tensorboard", "-o", "out"), 2, told)
    assert not Path("out").exists()


def test_what_is_no_run_has_no_curves() -> None:
    Path("plan.json").write_text("{}\n")
    told = "plan.json: line 1: this is not a run log"
    refused(planner_cli("export", "plan.json", "--format", "csv", "-o", "out"), 2, told)
