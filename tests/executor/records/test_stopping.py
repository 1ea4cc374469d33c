"""Rules end a task where a segment of it ends; the others never notice."""

from pathlib import Path

import pytest
from msgspec import structs
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from support.plain import train

from executor import run
from executor.driver import Options
from executor.errors import UsageError
from executor.records.stopping import check, parse, stopped_by
from plans import runlog
from plans.schema import Plan


def split(plan: Plan) -> Plan:
    """The plan's one segment as two, the first of one round."""
    (segment,) = plan.segments
    first = structs.replace(segment, rounds=1)
    rest = structs.replace(segment, rounds=segment.rounds - 1)
    return structs.replace(plan, segments=(first, rest))


@pytest.mark.parametrize(
    ("rule", "task", "step", "loss", "stops"),
    [
        ("loss>3.5@200", "a", 200, 3.6, True),
        ("loss>3.5@200", "a", 199, 3.6, False),
        ("loss>3.5@200", "a", 300, 3.5, False),
        ("loss>3.5@200", "a", 200, float("nan"), True),
        ("b:loss>3.5@200", "a", 200, 3.6, False),
        ("a:loss<1e-3@0", "a", 1, 0.0, True),
        ("loss<1e-3@0", "a", 1, float("nan"), False),
    ],
)
def test_what_a_rule_says(rule: str, task: str, step: int, loss: float, stops: bool) -> None:
    """Task, side, value and step all count; no number is above everything."""
    assert (stopped_by([parse(rule)], task, step, loss) is not None) == stops


@pytest.mark.parametrize(
    "text", ["", "loss>3.5", "loss=3@1", "loss>x@3", "acc>1@2", "loss>1@-2", "loss>nan@1"]
)
def test_what_is_no_rule(text: str) -> None:
    """The error shows what one looks like."""
    with pytest.raises(UsageError, match=r"a rule is loss>3.5@200"):
        parse(text)


def test_a_rule_about_a_task_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="--stop c:loss>1@2: the plan has no such task, only a, b"):
        check([parse("loss>1@2"), parse("c:loss>1@2")], ["a", "b"])


@pytest.mark.parametrize(("rule", "steps"), [("loss>0@1", 1), ("loss>0@2", 4), ("loss<0@1", 4)])
def test_a_task_ends_at_a_boundary(rule: str, steps: int, tmp_path: Path) -> None:
    """With the state and the losses of the steps that it did; the log says why."""
    tasks = tasks_for(handmade.streamed())
    plan = split(fit(handmade.streamed(), tasks))
    result = run(plan, tasks, Options(folder=tmp_path, stop=(parse(rule),)))
    plain = train(tasks[0], plan.tasks[0].microbatches)
    assert result.losses["a"] == plain.losses[:steps]
    told = [(line.task, line.step, line.rule) for line in runlog.load(tmp_path).stops]
    assert told == ([("a", 1, rule)] if steps == 1 else [])
    assert result.stopped.keys() == ({"a"} if steps == 1 else set())
    assert runlog.load(tmp_path).checkpoints[-1].step == steps
