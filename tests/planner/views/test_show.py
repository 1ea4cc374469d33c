"""All that `show` and `compare` print of small plans, word by word; and `show` as a command."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support import handmade, noded, sketched, synthetic, timetables
from support.cli import planner_cli, refused, succeeded
from support.kinded import kinded
from support.stored import as_stored

import plans
from planner import Infeasible, Problem, build
from planner.views import describe_alternatives, layout_words, stages, summary
from planner.views.compare import compare
from planner.views.compare_table import table
from planner.views.devices import gang, streamed
from planner.views.focus import focus
from planner.views.layout import Stage, layout
from planner.views.show import describe
from planner.views.stalls import LARGE_GAP_PPM, diagnosis, stalls
from plans.prediction import Alternative
from plans.schema import Plan
from plans.timing import round_compute_us
from profiles.errors import FormatError

pytestmark = pytest.mark.usefixtures("quick")

SAMPLE = Path(plans.__file__).with_name("sample.json")


def _tried(layout: str, order: str, period: int, bound: int, why_not: str = "") -> Alternative:
    said = {"period_us": period, "bound_us": bound, "peak_bytes": 3 << 20, "why_not": why_not}
    return Alternative(task="a", devices=2, layout=layout, order=order, microbatch=2, **said)


def tried() -> Plan:
    """A plan that was simulated in three ways, of which the longest has the least bound."""
    plan = handmade.pipeline()
    alternatives = (
        _tried("1x2", "gpipe", 0, 900, "its bound is longer than 2x1 takes"),
        _tried("2x1", "gpipe", 800, 600, "takes longer"),
        _tried("2x1", "1f1b", 700, plan.programs[0].period_us * 3 // 4),
        _tried("1x2", "breadth", 750, 700, "takes longer"),
    )
    solver = replace(plan.solver, alternatives=alternatives, looked_at={"a": 31})
    return replace(plan, solver=solver)


def turns(count: int) -> Plan:
    """A plan of many segments."""
    plan = timetables.plan()
    return replace(plan, segments=plan.segments * count)


def part(text: str, head: str) -> str:
    return next(one for one in text.split("\n\n") if one.startswith(head))


def compared(percent: int, *, emulated: bool = False) -> str:
    plan = timetables.plan(emulated=emulated)
    log = timetables.log(plan, percent=percent)
    return table(compare(plan, replace(log, steps=log.steps[::-1]), timetables.PLAN_SHA256))


KINDS = kinded("resident", [[512, 512], [256], [512]], ((0, 2), (1, 3), (0, 1)))
TEXTS = {
    "tasks": lambda: describe(timetables.plan(emulated=True), rounds=False),
    "tiny": lambda: describe(timetables.tiny()),
    "long rounds": lambda: describe(timetables.plan(shards=7)).partition("\nround of d")[2],
    "many streams": lambda: describe(sketched.plan(32, 32))[-500:],
    "turns": lambda: part(describe(turns(34)), "segments"),
    "pipeline": lambda: describe(tried()),
    "replicas": lambda: describe(sketched.plan(depth=2, replicas=[3, 1], split=True)),
    "many devices": lambda: describe(sketched.plan(2, 16, replicas=16), rounds=False),
    "nodes": lambda: part(describe(noded.turns()), "devices"),
    "kinds of rounds": lambda: describe(KINDS),
    "alternatives": lambda: describe_alternatives(tried()),
    "slower": lambda: compared(110),
    "faster": lambda: compared(80, emulated=True),
}


@pytest.mark.parametrize("name", TEXTS)
def test_words(name: str) -> None:
    """Every table with its rows in order, its numbers and their units."""
    as_stored(name, TEXTS[name]())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--alternatives --task nobody", "the plan has no task 'nobody'; it has gpt-1e-4, "),
        ("--task gpt-1e-4", "--task says of which task --alternatives tells; give"),
        ("--round gpt-1e-4", "give --gantt too"),
        ("--copies", "--copies says what --gantt draws; give --gantt too"),
        ("--gantt new.png --round gpt-1e-4:50", "gpt-1e-4 has the rounds 0 to 49"),
    ],
)
def test_questions_without_an_answer_are_usage_errors(
    options: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, and no picture."""
    monkeypatch.chdir(tmp_path)
    refused(planner_cli("show", SAMPLE, *options.split()), 2, text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mib", "told"),
    [
        (24, "are more than the 24.0 MiB of a device"),
        (64, "could; streaming costs next to nothing: compute hides all copies but 5.6 ms of a "),
    ],
)
def test_shards_that_do_not_stay_have_a_reason(mib: int, told: str) -> None:
    """The device is too small for all of them, or it is not, and moving them costs little."""
    plan = plans.load(SAMPLE)
    devices = tuple(replace(one, budget_bytes=mib << 20) for one in plan.devices)
    found = part(describe(replace(plan, devices=devices)), "what keeps shards from staying")
    assert "gpt-1e-4, gpt-3e-4 and 2 more: 38.4 MiB of parameters, " in found
    assert told in found
    assert streamed(handmade.resident()) == []


def test_json_of_a_plan_is_what_build_prints() -> None:
    found = json.loads(succeeded(planner_cli("show", SAMPLE, "--json")).out)
    assert found["makespan_us"] >= found["lower_bound_us"] > 0


def test_alternatives_are_words_or_json(tmp_path: Path) -> None:
    """Of all tasks or of the one that was asked for, the way in the plan first."""
    plan, path = tried(), tmp_path / "plan.json"
    plans.save(path, plan)
    for options in ((), ("--task", "a")):
        told = succeeded(planner_cli("show", path, "--alternatives", *options)).out
        assert describe_alternatives(plan) in told
    found = json.loads(succeeded(planner_cli("show", path, "--alternatives", "--json")).out)
    assert [one["period_us"] for one in found] == [700, 750, 800, 0]
    assert found[0]["why_not"] == ""


def test_a_plan_without_alternatives_says_so() -> None:
    plan = timetables.tiny()
    assert describe_alternatives(plan).startswith("no task was looked at on several devices")
    name = plan.tasks[0].name
    assert describe_alternatives(plan, name).startswith(f"task {name} was not looked at")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({}, "layout 4x1: s0 on 0; s1 on 1; s2 on 2; s3 on 3"),
        ({"depth": 2, "replicas": 2}, "layout 2x2: s0 on 0, 1; s1 on 2, 3"),
        ({"depth": 2, "chunks": 2}, "layout 2x1: s0, s2 on 0; s1, s3 on 1"),
        (
            {"depth": 2, "replicas": [3, 1], "split": True},
            "layout 3,1: s0 on 0, 1, 2 (3, 3, 2 microbatches); s1 on 3",
        ),
    ],
)
def test_a_layout_has_its_stages_replicas_and_shares(shape: dict[str, Any], words: str) -> None:
    """Microbatches are told where they are shared out unevenly."""
    (program,) = sketched.plan(**shape).programs
    assert layout_words(program, "a", range(4)) == words


def test_rounds_that_evaluate_count_their_forwards() -> None:
    (program,) = sketched.plan(2, replicas=[2, 1]).programs
    forwards = tuple(op for op in program.round if ".F" in op.id)
    told = replace(program, round=forwards, evaluates=True)
    assert [stage.microbatches for stage in stages(told, "a")] == [(4, 4), (8,)]


def test_rounds_that_evaluate_have_no_bound_of_those_that_train() -> None:
    """They are shorter, and would lie below it."""
    plan = tried()
    (program,) = plan.programs
    assert "of this layout at least" in gang(plan, program)[0]
    assert "of this layout at least" not in gang(plan, replace(program, evaluates=True))[0]


def test_shards_with_other_shares_on_the_same_devices_are_one_stage_of_a_layout() -> None:
    """The same replicas; one takes more microbatches of the second shard."""
    found = [Stage((0, 1), (0,), (4, 4)), Stage((0, 1), (1,), (3, 5)), Stage((2, 3), (2,), (4, 4))]
    assert layout(found) == "2x2"


def test_json_has_layout_stages_and_bubble() -> None:
    plan = sketched.plan(depth=2, replicas=[3, 1])
    told = summary(plan)["layouts"]["a"]
    assert told["a"]["layout"] == "3,1"
    assert told["a"]["stages"][0] == {
        "devices": (0, 1, 2),
        "shards": (0,),
        "microbatches": (3, 3, 2),
    }
    busy = sum(round_compute_us(plan.programs[0])) / (4 * plan.programs[0].period_us)
    assert told["bubble"] == pytest.approx(1 - busy)
    assert sum(stage.microbatches[0] for stage in stages(plan.programs[0], "a")) == 11


def test_close_ups_are_chosen_by_step_or_steady() -> None:
    """The middle of the longest segment unless a step is asked for."""
    plan = timetables.plan(rounds=9)
    assert focus(plan) == focus(plan, "a") == focus(plan, "b", 4)
    last = focus(plan, "c", 8)
    assert last
    assert (last.segment, last.round) == (2, 8)
    with pytest.raises(FormatError, match="--round c:9: c has the rounds 0 to 8"):
        focus(plan, "c", 9)


def test_an_unknown_task_is_refused_with_those_there_are() -> None:
    with pytest.raises(FormatError, match="no task 'e'; it has a, b, c, d"):
        focus(timetables.plan(), "e")


def test_a_step_is_found_in_the_segment_that_trains_it() -> None:
    plan = timetables.plan(rounds=6)
    plan = timetables.assemble(plan.tasks[:2], plan.programs[:1], [("ab", (0,), 6)] * 2)
    found = [focus(plan, "b", step) for step in (5, 6)]
    assert [one and one[:2] for one in found] == [(0, 5), (1, 0)]


def built(seed: int, mib: int, rate: int, slowness: int) -> Plan | None:
    task = synthetic.task("a", layers=4, seed=seed, batch=2, host_slowness=slowness)
    made = synthetic.profile(task, usable_bytes=mib << 20, bytes_per_s=rate)
    asked = Problem.of(made, devices=1, device_bytes=None, host_bytes=None)
    try:
        return build(asked, profile_sha256="0" * 64)
    except Infeasible:
        return None


@pytest.mark.parametrize(
    "plan",
    [
        handmade.pipeline(),
        handmade.parallel(),
        sketched.plan(),
        sketched.plan(chunks=2, split=True),
        sketched.plan(2, replicas=[3, 1], host=True),
    ],
)
def test_every_wait_of_every_device_is_blamed_once(plan: Plan) -> None:
    """Of several devices each by itself; what other devices compute is a reason too."""
    (program,) = plan.programs
    resources = set()
    for device in range(program.devices):
        ops = [op for op in program.round if op.stream == f"{device}.compute"]
        idle = program.period_us - sum(op.end_us - op.start_us for op in ops)
        found = stalls(program, device)
        assert sum(stall.us for stall in found) == idle
        resources |= {stall.resource for stall in found}
        names = {op.id for op in program.round} | {""}
        assert {stall.most for stall in found} <= names
    assert "others" in resources


def test_a_pipeline_waits_for_its_other_stages_and_for_sends() -> None:
    """Backward waits longest for the last stage's first; and for a send, which is named."""
    plan = sketched.plan()
    told = [line for line in diagnosis(plan) if "in backward" in line]
    assert " for what other devices compute, most for a.s" in told[0]
    sends = [line for line in told if "copies between devices" in line]
    assert sends
    assert ", most for a.dx" in sends[0]
    (program,) = plan.programs
    waits = sum(one.us for d in range(4) for one in stalls(program, d) if one.resource == "p2p")
    assert 0 < waits < 4 * program.period_us - 4 * (8 * 3_000 + 1_500)


def test_a_slow_link_is_named() -> None:
    """Where copies take far longer than compute, the plan says so, and how to look for better."""
    plan = built(0, 6, 10**8, 1)
    assert plan
    assert plan.prediction.gap_ppm >= LARGE_GAP_PPM
    *_, last = lines = diagnosis(plan)
    assert any("for copies to the" in line for line in lines)
    assert last.startswith("  python -m planner sweep")
