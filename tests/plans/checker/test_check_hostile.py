"""The checker on plans that are meant to hurt: it answers shortly, and soon."""

import gc
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.disked import disked
from support.edits import numbers, with_task
from support.handmade import PLANS
from support.hostile import HOSTILE, MOST_BYTES
from support.noded import NODED

import plans
from plans.checker.check import findings, violations
from plans.schema import Plan
from plans.timing import device_times, exposed_copy_us, task_spans, timeline
from profiles.errors import FormatError
from profiles.findings import MOST, Findings
from profiles.schema import Evaluation

SECONDS = 5  # of processor time, at most


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_plan_is_refused_in_few_lines(name: str) -> None:
    """At most 100 of a kind are listed; neither the answer nor the work grows beyond bounds."""
    data = msgspec.json.encode(HOSTILE[name]())
    assert len(data) <= MOST_BYTES
    with within(SECONDS):
        try:
            found = findings(plans.loads(data))
        except FormatError:
            return
    lines = found.lines()
    assert found.total > 0
    assert len(lines) < 13 * (MOST + 1)
    assert all(len(line) < 3000 for line in lines)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """The test fails once this process has computed for so long; a limit of the system would end
    the process, and with it the run of all tests. What tests before have left counts nothing: going
    through all of it for garbage takes seconds."""

    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s of processor time")

    gc.freeze()
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        gc.unfreeze()


def test_violations_of_a_kind_are_listed_up_to_100() -> None:
    """The others are counted, each line is told once, and a kind does not hide another."""
    found = Findings()
    assert found.add("ops", (f"line {n}" for n in range(250)))
    assert not found.add("times", iter(()))
    assert found.add("times", ["late", "late"], " [program 'p']")
    assert found.total == 251
    assert found.lines() == [
        *(f"line {n}" for n in range(100)),
        "late [program 'p']",
        "ops: 150 more like these",
    ]


def test_an_invalid_plan_tells_how_much_is_wrong() -> None:
    """The message names the first violations and counts all, listed or not."""
    plan = PLANS["resident"]()
    strange = tuple(f"t{n}" for n in range(500))
    program = replace(plan.programs[0], tasks=(*plan.programs[0].tasks, *strange))
    with pytest.raises(plans.InvalidPlan) as caught:
        plans.prove(replace(plan, programs=(program,)))
    assert str(caught.value).startswith("the plan breaks 500 rule(s); build it again:\n")
    assert str(caught.value).endswith("… and 480 more")
    assert len(caught.value.violations) == MOST + 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (4, "a: is never evaluated after step 4"),
        (10**7, "a: is never evaluated after step 2, 4, 6, ... 10000000 (5000000 of them)"),
        (1 << 50, "a: is never evaluated after step 2, 4, 6, ... 1125899906842624 (5629499534"),
    ],
)
def test_missing_evaluations_are_counted_not_listed(steps: int, said: str) -> None:
    """However many there are, a task has one line for those behind its last segment."""
    plan = with_task(PLANS["resident"](), steps=steps, evaluation=Evaluation(2, 1))
    if steps > 4:  # the segment trains 4
        plan = replace(plan, segments=(replace(plan.segments[0], rounds=1),))
    assert any(line.startswith(said) for line in violations(plan)), violations(plan)


SAMPLE = Path(__file__).parents[3] / "plans" / "sample.json"
EACH = 2  # numbers of a field that are tried in one plan

# Numbers that a plan alone cannot prove, and why none of them is one that it could.
UNPROVEN = {
    # Facts of the model, which the executor compares with it.
    r"tasks\.batch_bytes|tasks\.(tie_bytes|norm_bytes)|tasks\.done",
    r"tasks\.shards\.(param|grad|state|in|saved)_bytes|tasks\.shards\.rng_draws",
    # A group of layers in one shard may as well be another group of layers there.
    r"tasks\.ties",
    # An earliest start that every segment keeps.
    r"tasks\.start_us",
    # How the steps before the plan were trained.
    r"tasks\.earlier_microbatch",
    # Measured; the checker holds the reserve against them.
    r"programs\.(enter|round|leave)\.transient_bytes",
    # How long an op takes; the checker holds the times of what waits for it against that.
    r"programs\.(enter|round|leave)\.(start|end)_us",
    # Facts of the machine.
    r"devices\.threads|devices\.node|devices\.emulation\..*",
    # What no plan at all can beat: of another plan, so that nothing of this one says how much it
    # is. A smaller one is a weaker claim and true as well.
    r"prediction\.bounds\.us|prediction\.configuration_us",
    # What is decided: on another device that is free and large enough it is as sound a plan.
    r"segments\.devices",
    # How the plan was found.
    r"solver\..*",
}


@cache
def made(name: str) -> Plan:
    if name == "sample":
        return plans.load(SAMPLE)
    if name == "nodes":
        return NODED["across"]()
    return disked("beside") if name == "disk" else PLANS[name]()


@pytest.mark.parametrize("name", ["resident", "saved", "fleet", "disk", "nodes", "sample"])
def test_every_number_is_proven_or_no_ones_to_prove(name: str) -> None:
    """Any number set to 1 is refused, but for facts that the plan only quotes."""
    tree = msgspec.json.decode(msgspec.json.encode(made(name)))
    fields: dict[str, list[tuple[Any, Any]]] = {}
    for holder, key, field in numbers(tree):
        fields.setdefault(field, []).append((holder, key))
    rng, passed = random.Random(0), set()
    for field, places in fields.items():
        for holder, key in rng.sample(places, min(EACH, len(places))):
            old, holder[key] = holder[key], 2 if holder[key] == 1 else 1
            try:
                if not violations(msgspec.convert(tree, Plan)):
                    passed.add(field)
            except msgspec.ValidationError:
                pass
            holder[key] = old
    proven = [f for f in passed if not any(re.fullmatch(known, f) for known in UNPROVEN)]
    assert not proven
    assert len(passed) < len(fields) / 2


@pytest.mark.parametrize("name", ["streamed", "moved", "fleet", "pipeline", "disk"])
def test_predictions_are_those_of_all_rounds(name: str) -> None:
    """What devices and tasks do is what a list of all ops says."""
    plan, programs = made(name), {p.name: p for p in made(name).programs}
    ops = list(timeline(plan))
    exposed: dict[int, int] = {}
    for index in range(len(plan.segments)):
        own = ((o.stream, o.start_us, o.end_us) for o in ops if o.segment == index)
        for device, us in exposed_copy_us(own).items():
            exposed[device] = exposed.get(device, 0) + us
    for number, told in enumerate(device_times(plan)):
        own_us = sum(o.end_us - o.start_us for o in ops if o.stream == f"{number}.compute")
        memories = [
            m.slab_bytes + m.reserve_bytes
            for s in plan.segments
            for d, m in zip(s.devices, programs[s.program].memory, strict=True)
            if d == number
        ]
        assert told.compute_us == own_us
        assert told.exposed_copy_us == exposed.get(number, 0)
        assert told.peak_bytes == max(memories, default=0)
    for name, (start_us, end_us) in task_spans(plan).items():
        runs = [s for s in plan.segments if name in programs[s.program].tasks]
        assert start_us == min(s.start_us for s in runs)
        assert end_us == max(s.end_us for s in runs)
