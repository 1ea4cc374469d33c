"""Rules end a task where a segment of it ends; the others never notice."""

from pathlib import Path

import pytest
from msgspec import structs
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from support.plain import train

from executor import run
from executor.cli import main
from executor.driver import Options
from executor.records import above
from plans import runlog
from plans.schema import Plan


def split(plan: Plan) -> Plan:
    """The plan's one segment as two, the first of one round."""
    (segment,) = plan.segments
    first = structs.replace(segment, rounds=1)
    rest = structs.replace(segment, rounds=segment.rounds - 1)
    return structs.replace(plan, segments=(first, rest))


@pytest.mark.parametrize(
    ("step", "loss", "stops"),
    [
        (200, 3.6, True),
        (199, 3.6, False),
        (300, 3.5, False),
        (300, float("nan"), True),
        (300, None, False),
    ],
)
def test_what_the_rule_says(step: int, loss: float | None, stops: bool) -> None:
    """Value and step count; no number is above everything."""
    assert above("3.5@200")("a", step, loss, None) == stops * "loss above 3.5 at step 200"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "'' is no loss"),
        ("3.5", "'' is no number of steps"),
        ("x@3", "'x' is no loss"),
        ("nan@1", "'nan' is no loss"),
        ("1@-2", "'-2' is no number of steps"),
    ],
)
def test_what_is_no_rule(text: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows what one looks like, and what is wrong."""
    with pytest.raises(SystemExit, match="2"):
        main(["run", "plan.json", "--stop-above", text])
    assert f"{text!r} is not like 3.5@200: {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize(("rule", "steps"), [("0@1", 1), ("0@2", 4), ("99@1", 4)])
def test_a_task_ends_at_a_boundary(rule: str, steps: int, tmp_path: Path) -> None:
    """With the state and the losses of the steps that it did; the log says why."""
    tasks = tasks_for(handmade.streamed())
    plan = split(fit(handmade.streamed(), tasks))
    result = run(plan, tasks, Options(folder=tmp_path, stop=above(rule)))
    plain = train(tasks[0], plan.tasks[0].microbatches)
    assert result.losses["a"] == plain.losses[:steps]
    told = [(line.task, line.step, line.rule) for line in runlog.load(tmp_path).stops]
    assert told == ([("a", 1, "loss above 0 at step 1")] if steps == 1 else [])
    assert result.stopped.keys() == ({"a"} if steps == 1 else set())
    assert runlog.load(tmp_path).checkpoints[-1].step == steps
