"""Evaluations are in the plan, give the bits of a plain loop, and leave training alone.

`tasks` and its like are workloads of their own.
"""

import json
import math
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from itertools import chain as chained
from pathlib import Path
from typing import Any

import pytest
import torch
from support import chains
from support.chains import WIDTH, chain
from support.cli import executor_cli, planner_cli, profile, refused, smallest_budget, succeeded
from support.plain import train
from support.same import assert_saved
from torch import Tensor, nn
from torch.nn import functional as F

import plans
from executor import run
from executor.driver import Options
from executor.errors import InterruptedRun, MismatchError
from executor.workload import mean_of
from executor.workload.task import Evaluation, Task
from plans import runlog
from profiles.schema import Precision

pytestmark = pytest.mark.usefixtures("quick", "here")

EVERY = 2
BATCHES = 3


rows = partial(chains.rows, 4)


def held_out(number: int) -> tuple[Tensor, Tensor]:
    assert 0 <= number < BATCHES
    return rows(1000 + number)


def interrupting(number: int) -> tuple[Tensor, Tensor]:
    """SIGTERM, and time to hear of it."""
    if number == 1:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.5)
    return held_out(number)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))


def near(outputs: Tensor, targets: Tensor) -> Tensor:
    """For each sample, whether half of its values are not far off."""
    return ((outputs - targets).abs() < 1).float().mean(1) > 0.5


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().sum(1)


METRICS = {"near": near, "error": error}


def tasks(steps: int = 5) -> list[Task]:
    judged = Evaluation(EVERY, held_out, BATCHES, metrics=METRICS)
    return [
        chain("judged", 3, 4, steps, make=normed, seed=1, evaluate=judged),
        chain("plain", 3, 4, steps, make=normed, seed=2),
    ]


def long() -> list[Task]:
    return tasks(9)


class Noisy(nn.Module):
    """Draws in whatever mode it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Counting(nn.Module):
    """Counts its calls in whatever mode it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Looped(nn.Module):
    """Does something else in eval mode behind its list of modules."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)) for _ in range(3))
        self.blocks = nn.ModuleList(blocks)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        for block in self.blocks:
            x = x + block(x)
        return x if self.training else x * 2


class Returning(Looped):
    """Returns its loss, and what a metric wants to see."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        outputs = super().forward(x)
        return {"loss": F.mse_loss(outputs, y), "outputs": outputs}


class Unlisted(nn.Module):
    """Only the graph of its operations in training says what its layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(F.dropout(self.one(x), 0.5, self.training))
        return y


def with_layer(layer: nn.Module) -> list[Task]:
    own = nn.Sequential(nn.Linear(WIDTH, WIDTH), layer)
    return [replace(tasks()[0], model=lambda: own)]


def noisy() -> list[Task]:
    return with_layer(Noisy())


def counting() -> list[Task]:
    return with_layer(Counting())


def looped() -> list[Task]:
    return [replace(tasks()[0], model=Looped)]


def returning() -> list[Task]:
    def named(number: int) -> dict[str, Tensor]:
        return dict(zip("xy", rows(number), strict=True))

    def seen(outputs: Any, inputs: dict[str, Tensor]) -> Tensor:
        return error(outputs["outputs"], inputs["y"])

    judged = Evaluation(EVERY, named, BATCHES, metrics={"seen": seen})
    return [replace(tasks()[0], model=Returning, loss=None, data=named, evaluate=judged)]


def unlisted() -> list[Task]:
    return [replace(tasks()[0], model=Unlisted)]


def with_metric(metric: Any) -> list[Task]:
    return [
        replace(tasks()[0], evaluate=Evaluation(EVERY, held_out, BATCHES, metrics={"m": metric}))
    ]


def texts() -> list[Task]:
    return with_metric(lambda outputs, targets: "good")


def means() -> list[Task]:
    return with_metric(lambda outputs, targets: error(outputs, targets).mean())


def failing() -> list[Task]:
    return with_metric(lambda outputs, targets: error(outputs, targets[0]).sum(7))


def none() -> list[Task]:
    return with_metric(0.5)


def never() -> list[Task]:
    return [replace(task, evaluate=Evaluation(6, held_out, 1)) for task in tasks()]


def precise() -> list[Task]:
    """With updates that wait for norms, and one that is never evaluated."""
    ways: tuple[Precision, ...] = ("fp32", "bf16-autocast", "fp16-autocast", "bf16")
    task, plain = tasks()
    return [*(replace(task, name=way, precision=way, clip=0.5) for way in ways), plain]


def too_few() -> list[Task]:
    return [replace(tasks()[0], evaluate=Evaluation(1, lambda n: [rows(0)][n], 2))]


def one_missing() -> list[Task]:
    """A profile looks at the first and the last one."""

    def data(number: int) -> tuple[Tensor, Tensor]:
        if number == 1:
            raise IndexError(number)
        return rows(number)

    return [replace(tasks()[0], evaluate=Evaluation(1, data, 3))]


def vals(log: str, task: str = "judged") -> dict[int, float | None]:
    return {r.step: r.loss for r in runlog.load(log).evaluations if r.task == task}


def metrics(log: str, task: str = "judged") -> dict[int, dict[str, float | None]]:
    return {r.step: r.metrics for r in runlog.load(log).evaluations if r.task == task}


def built(workload: str, *options: str) -> plans.Plan:
    """A plan in `plan.json` on the smallest device that will do."""
    profile(f"{__file__}:{workload}", "profile.json")
    budget = ("--device-memory", smallest_budget("profile.json"))
    succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *budget, *options))
    succeeded(planner_cli("check", "plan.json"))
    return plans.load("plan.json")


def test_evaluations_have_the_bits_of_a_plain_loop() -> None:
    """In every precision, with dropout and BatchNorm, on two devices in turn; training ends with
    the bits of a loop that never evaluates."""
    plan = built("precise", "--devices", "2", "--segment-steps", "2", "--device-memory", "64KiB")
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    for task, planned in zip(precise(), plan.tasks, strict=True):
        never = train(replace(task, evaluate=None), planned.microbatches)
        assert_saved(f"x/{task.name}.pt", never)
        plain = train(task, planned.microbatches)
        known = plain.val_losses
        assert vals("x", task.name) == known, task.name
        assert metrics("x", task.name) == plain.metrics, task.name
        assert sorted(known) == ([2, 4] if task.evaluate else [])


def test_going_on_neither_repeats_nor_loses_an_evaluation() -> None:
    """Whether or not the log of the run that ended has the one that was due where it did, and also
    when a signal came in the middle of it."""
    plan = built("long")
    judged = replace(long()[0], evaluate=Evaluation(EVERY, interrupting, BATCHES))
    with pytest.raises(InterruptedRun, match=r"^interrupted by SIGTERM; the same command goes on"):
        run(plan, [judged, long()[1]], Options(folder=Path("cut")))
    assert vals("cut") == {}

    def stop(task: str, step: int, loss: float | None, val_loss: float | None) -> str:
        return "enough" if task == "plain" or (val_loss is not None and step >= 4) else ""

    run(plan, long(), Options(folder=Path("had"), stop=stop))
    assert sorted(vals("had")) == [2, 4]
    shutil.copytree("had", "lost")
    lines = Path("had", runlog.LOG).read_bytes().splitlines(keepends=True)
    ended = [line for line in lines if b'"stop"' not in line and b'"end"' not in line]
    Path("had", runlog.LOG).write_bytes(b"".join(ended))
    without = [line for line in ended if not (b'"evaluation"' in line and b'"step":4' in line)]
    Path("lost", runlog.LOG).write_bytes(b"".join(without))
    whole = train(long()[0], plans.load("plan.json").tasks[0].microbatches).val_losses
    for folder, due in (("had", [6, 8]), ("lost", [4, 6, 8]), ("cut", [2, 4, 6, 8])):
        budget = ("--device-memory", smallest_budget("profile.json"))
        build = ("build", "profile.json", "--from", folder, "-o", "rest.json", *budget)
        succeeded(planner_cli(*build))
        succeeded(planner_cli("check", "rest.json"))
        succeeded(executor_cli("run", "rest.json", "-o", folder))
        assert vals(folder) == {step: whole[step] for step in due}


def test_a_rule_about_evaluations_frees_the_device() -> None:
    """It looks at the latest evaluation, also where a segment ends between two."""
    plan = built("long", "--segment-steps", "1")
    for most, least, last in ((0, 5, 5), (99, 2, 9)):
        rule = f"val_loss above {most} at step {least}"

        def stop(
            task: str,
            step: int,
            loss: float | None,
            val_loss: float | None,
            most: int = most,
            least: int = least,
            rule: str = rule,
        ) -> str:
            return rule if val_loss is not None and step >= least and val_loss > most else ""

        run(plan, long(), Options(folder=Path("x"), overwrite=True, stop=stop))
        log = runlog.load("x")
        stops = {stop.task: (stop.step, stop.rule) for stop in log.stops}
        assert stops == ({"judged": (last, rule)} if last < 9 else {})
        steps = {
            task: [s.step for s in log.steps if s.task == task] for task in ("judged", "plain")
        }
        assert steps == {"judged": [*range(last)], "plain": [*range(9)]}
        assert sorted(vals("x")) == [*range(EVERY, last + 1, EVERY)]
    answer = succeeded(executor_cli("run", "plan.json", "-o", "x", "--overwrite", "--json"))
    told = {task["task"]: task["val_losses"] for task in json.loads(answer.out)["tasks"]}
    known = metrics("x")
    judged = [{"step": n, "loss": v, "metrics": known[n]} for n, v in vals("x").items()]
    assert told["judged"] == judged
    assert told["plain"] == []


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ("noisy", "draws random numbers in eval mode"),
        ("counting", "buffer 1.calls changes in eval mode"),
        ("unlisted", "layers of the model were found as it trains"),
        ("too_few", "task judged: evaluation data(1): IndexError: list index out of range"),
        ("texts", "task judged: evaluation: metric m gave str; it must give a tensor of [2], a"),
        ("means", "task judged: evaluation: metric m gave a tensor of []; it must give a tensor"),
        ("failing", "task judged: evaluation: metric m: IndexError: Dimension out of range"),
        ("none", "task judged: evaluate.metrics: m is 0.5; it must be a function of outputs"),
        ("never", "evaluate.every is 6; it must be a whole number from 1 to 5, the task's steps"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(workload: str, told: str, tmp_path: Path) -> None:
    """Before anything is measured."""
    quick = ("--device-memory", "1MiB", "--samples", 1, "-o", tmp_path / "profile.json")
    refused(executor_cli("profile", f"{__file__}:{workload}", *quick), 2, told)


def test_a_model_may_do_something_else_in_eval_mode() -> None:
    """Also between its layers, where its own code runs. Another evaluation than the plan's is
    refused, and both are named."""
    plan = built("looped")
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    (task,) = looped()
    assert vals("x") == train(task, plan.tasks[0].microbatches).val_losses
    other = replace(task, evaluate=Evaluation(EVERY, held_out, 1))
    told = "evaluation: 3 batches after every 2 steps in the plan, 1"
    with pytest.raises(MismatchError, match=told):
        run(plan, [other])


def test_metrics_are_told(tmp_path: Path) -> None:
    """In the report of a run, also of one that goes on, and beside its losses where it is compared
    with its plan."""
    built("tasks")
    found = [succeeded(executor_cli("run", "plan.json", "-o", "x")).out for _ in range(2)]
    latest = metrics("x")
    told = ", ".join(f"{one['error']:.4g} after step {step}" for step, one in latest.items())
    assert all(f"error: judged {told}" in out for out in found)
    compared = succeeded(planner_cli("compare", "plan.json", "x"))
    last = f"near {latest[4]['near']:.4f}, error {latest[4]['error']:.4f}"
    assert f"judged after step 4: val_loss {vals('x')[4]:.4f}, {last}" in compared.out
    answer = succeeded(planner_cli("compare", "plan.json", "x", "--json"))
    judged = json.loads(answer.out)["tasks"]["judged"]
    assert {name: judged[name] for name in METRICS} == latest[4]


def test_a_metric_sees_all_that_a_model_returns() -> None:
    """Which returns its loss itself, and is cut into its modules."""
    plan = built("returning")
    assert len(plan.tasks[0].shards) > 1
    succeeded(executor_cli("run", "plan.json", "-o", "x"))
    (task,) = returning()
    assert metrics("x") == train(task, plan.tasks[0].microbatches).metrics


def test_a_metric_is_the_same_in_whatever_parts_it_comes() -> None:
    """The exact mean over samples, rounded once; no number where one of them is none."""
    rows = [[0.1, 0.2, 1e16], [0.3, -1e16, 0.7]]
    assert mean_of(chained.from_iterable(rows)) == mean_of([1e16, 0.7, 0.3, 0.2, -1e16, 0.1])
    assert math.isnan(mean_of([math.inf, -math.inf]))


def test_batches_that_are_missing_are_named() -> None:
    """By their number in the evaluation."""
    built("one_missing")
    answer = executor_cli("run", "plan.json", "-o", "x")
    assert answer.code == 1
    assert "task judged: evaluation data(1): IndexError" in answer.err
