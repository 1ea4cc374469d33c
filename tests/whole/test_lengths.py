"""Samples of every length from a profile to the bits of a plain loop: one process that is
interrupted and planned anew, and several of which one dies."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from msgspec.structs import replace
from support import small_texts
from support.agents import IN_TURN
from support.cli import executor_cli, planner_cli, succeeded
from support.forked import ended, started, torchrun
from support.retime import foretold
from support.same import same
from support.small_texts import BATCH, STEPS, data, groups, samples_of
from support.texted import Parts, Trained, joined, trained

import plans
from plans import runlog
from plans.samples import open_table, table_path
from plans.schema import Plan
from plans.timing import duration_us, part, runs

pytestmark = pytest.mark.usefixtures("quick", "untimed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x.json, its plan for one device, and one for four in two segments."""
    folder = tmp_path_factory.mktemp("lengths")
    small_texts.profiled(folder)
    for name, asked in (("one", ()), ("four", ("--devices", "4", "--layout", "2x2"))):
        call = ("build", folder / "x.json", *asked, "-o", folder / f"{name}.json")
        succeeded(planner_cli(*call))
    plans.save(folder / "four.json", halved(plans.load(folder / "four.json")))
    return folder


def halved(plan: Plan) -> Plan:
    """The plan with its segment in two."""
    (program,), (segment,) = plan.programs, plan.segments
    segments, start = [], 0
    for first, rounds in ((0, STEPS // 2), (STEPS // 2, STEPS - STEPS // 2)):
        own = part(runs(segment), first, rounds)
        end = start + duration_us(program, rounds, own)
        made = replace(segment, rounds=rounds, start_us=start, end_us=end)
        segments.append(replace(made, kinds=own if program.kinds else ()))
        start = end
    made = foretold(replace(plan, segments=tuple(segments)))
    plans.prove(made)
    return made


@pytest.mark.usefixtures("heard")
def test_a_run_that_is_planned_anew_has_the_bits_of_a_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the midst of a segment of several kinds, it goes on with another plan and
    another table; losses and parameters are those of a loop in the microbatches of both."""
    monkeypatch.chdir(folder)
    assert len(plans.load("one.json").segments[0].kinds) > 2
    monkeypatch.setenv("ENDS", f"{int(signal.SIGINT)} 0 4")
    assert executor_cli("run", "one.json", "-o", "one").code == 130
    call = ("build", "x.json", "--from", "one", "--packing", "fixed", "-o", "rest.json")
    succeeded(planner_cli(*call))
    (rest,) = plans.load("rest.json").tasks
    assert 0 < rest.done < STEPS
    assert rest.lengths
    assert rest.lengths.token_draws
    succeeded(executor_cli("run", "rest.json", "-o", "one"))
    plain = looped([("one.json", rest.done), ("rest.json", STEPS)])
    logs = [runlog.load(log).steps for log in runlog.files("one")]
    found = {line.step: line.loss for log in logs for line in log}
    assert [found[step] for step in range(STEPS)] == plain.losses
    assert same(dict(torch.load("one/t.pt")["model"]), plain.params)


def looped(parts: Sequence[tuple[str, int]]) -> Trained:
    """A loop through the microbatches of these plans, each up to a step."""
    (task,), rows = small_texts.tasks(), list[list[int]]()
    for name, end in parts:
        table = open_table(table_path(name, "t"), BATCH).tolist()
        rows += table[len(rows) - plans.load(name).tasks[0].done :][: end - len(rows)]

    def microbatches(step: int) -> Parts:
        own = groups(rows[step], samples_of(step))
        return (part for each in own for part in joined(data(each)))

    return trained(task, microbatches, samples_of)


def test_processes_of_which_one_dies_have_the_bits_of_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second segment; torchrun starts them again, and they go on from what was kept."""
    monkeypatch.chdir(folder)
    succeeded(executor_cli("run", "four.json", "-o", "alone"))
    call = ("run", "four.json", "-o", "many")
    run = torchrun(2, IN_TURN, json.dumps(call), restarts=1)
    both = started(run, Path("said"), ENDS=f"{int(signal.SIGKILL)} 1 {STEPS - 2}")
    assert ended(both) == 0, Path("said").read_text()
    alone, many = (runlog.load(name) for name in ("alone", "many"))
    assert len(many.restarts) == 1
    assert [(s.step, s.loss) for s in many.steps] == [(s.step, s.loss) for s in alone.steps]
    assert same(*(torch.load(f"{name}/t.pt") for name in ("alone", "many")))
