"""The checker against an oracle: whatever trains other numbers, races or overflows is refused.

The oracle (`support.oracle`) shares no code with the checker; it tries every pair of accesses and
runs the plan on bytes.
"""

import random
import re
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.edits import numbers
from support.handmade import BASED, CASTING, NOTED, PLANS
from support.mutations import MUTATORS, bites, mutants
from support.oracle import harm

import plans
from plans.checker.check import violations
from plans.schema import Buffer, Memory, Op, Plan, Program, Role, Segment

LIMIT = 38  # two of each mutator
SEVERAL = ("resident", "streamed", "parallel", "relay", "norms-host", "some", "swapped")
ALL = PLANS | NOTED | BASED | {name: CASTING[name] for name in map("cast-{}".format, SEVERAL)}


def names(plan: Plan) -> set[str]:
    """Everything that a violation may begin with."""
    found = {"node 0", "prediction", *(task.name for task in plan.tasks)}
    found |= {f"device {n} {device.name!r}" for n, device in enumerate(plan.devices)}
    found |= {f"segment {n}" for n in range(len(plan.segments))}
    found |= {f"{t.name}.s{n}" for t in plan.tasks for n in range(len(t.shards))}
    found |= {buffer.name for buffer in plan.host.buffers}
    for program in plan.programs:
        found |= {program.name, *(buffer.name for buffer in program.buffers)}
        for op in (*program.enter, *program.round, *program.leave):
            found.add(op.id)
    return found


@pytest.mark.parametrize("name", ALL)
def test_the_oracle_passes_sound_plans(name: str) -> None:
    """What the checker passes trains the right numbers when it is executed."""
    assert harm(ALL[name](), orders=5) is None


def subjects_known(plan: Plan, found: list[str]) -> None:
    known = names(plan)
    for line in found:
        subject = re.split(r": | round \d| in (?:enter|leave)| \('| and ", line)[0]
        assert subject in known or subject.rpartition(".")[0].rpartition(".")[0] in known, line


@pytest.mark.parametrize("name", ALL)
def test_every_harmful_mutant_is_refused(name: str) -> None:
    """Of the mutants that do harm, the checker refuses all, and says where."""
    some = mutants(ALL[name](), seed=1, limit=LIMIT)
    assert bites(some, harm, read=subjects_known).total() > LIMIT // 2


RELAXED = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)

BIG = (1 << 50) - 1
NAMES = ["", "a", "host", "a.s0.param", "a.s1.grad", "slot", "x\ny", "nowhere"]
TASKS = ["a", "b", "a\n"]
counts = st.sampled_from([0, 1, 2, 3, 64, BIG])
buffer_names = st.sampled_from(NAMES)
streams = st.sampled_from(
    [f"{d}.{kind}" for d in (0, 1, 7, BIG) for kind in ("compute", "h2d", "d2h", "p2p")]
    + ["host.0", "host.1", "host.99", "00.compute", "\u0663.h2d", "0.compute\n"]
)
items = st.sampled_from(
    ["s0", "s1", "s9", "s00", "base0", "batch", "norm", "x0", "x1", "dx1", "a0", "a1", f"s{BIG}"]
)
op_ids = st.builds(
    lambda task, item, kind, index: f"{task}.{item}.{kind}{index}",
    st.sampled_from(["a", "b", "c"]),
    items,
    st.sampled_from("FBIWUPSXRN"),
    st.sampled_from([0, 1, 2, BIG]),
)
roles = st.dictionaries(st.sampled_from(sorted(get_args(Role))), buffer_names, max_size=4)
edges = st.lists(st.one_of(op_ids, op_ids.map("{}@-1".format), st.text(max_size=3)), max_size=3)
ops = st.lists(
    st.builds(
        Op,
        op_ids,
        streams,
        st.integers(-5, 100),
        st.integers(-5, 100),
        edges.map(tuple),
        roles,
        roles,
        counts,
    ),
    max_size=8,
).map(tuple)
buffers = st.lists(
    st.builds(
        Buffer,
        buffer_names,
        st.sampled_from(["host", "0", "1", "01"]),
        counts,
        counts.map(lambda n: n + 1),
    ),
    max_size=6,
).map(tuple)
programs = st.builds(
    Program,
    st.sampled_from(["solo", "p", ""]),
    st.lists(st.builds(Memory, counts, counts), min_size=1, max_size=2).map(tuple),
    st.lists(st.sampled_from(TASKS), min_size=1, max_size=3).map(tuple),
    counts,
    counts,
    counts,
    counts,
    buffers,
    ops,
    ops.filter(len),
    ops,
)
segments = st.builds(
    Segment,
    st.sampled_from(["solo", "p", "none"]),
    st.lists(st.sampled_from([0, 1, 5, BIG]), min_size=1, max_size=3).map(tuple),
    counts.map(lambda n: n + 1),
    counts,
    counts,
)


def answers(plan: Plan) -> list[str]:
    """The violations of a plan that the schema admits."""
    plan = plans.loads(msgspec.json.encode(plan))
    found = violations(plan)
    assert all(isinstance(line, str) and line and len(line.splitlines()) == 1 for line in found)
    assert len(set(found)) == len(found)
    assert found == violations(plan)
    return found


@RELAXED
@given(st.sampled_from(sorted(PLANS)), st.integers(0, 1 << 30), st.integers(1, 6))
def test_piled_up_mutations_never_crash(name: str, seed: int, count: int) -> None:
    """Several mutations on top of each other, times left as they are, still get an answer."""
    rng, plan = random.Random(seed), PLANS[name]()
    for mutator in rng.choices(MUTATORS, k=count):
        sites = list(mutator(plan))
        if sites:
            plan = rng.choice(sites)[1]()
    answers(plan)


@RELAXED
@given(
    st.lists(programs, min_size=1, max_size=3), st.lists(segments, min_size=1, max_size=3), buffers
)
def test_random_programs_never_crash(
    made: list[Program], runs: list[Segment], host: tuple[Buffer, ...]
) -> None:
    """Programs and segments of random parts get an answer, and none of them is sound."""
    plan = PLANS["streamed"]()
    store = replace(plan.host, buffers=(*plan.host.buffers, *host))
    plan = replace(plan, programs=tuple(made), segments=tuple(runs), host=store)
    assert answers(plan)


@RELAXED
@given(st.data())
def test_random_numbers_never_crash(data: st.DataObject) -> None:
    """A number anywhere in a plan replaced by another one gets an answer, or no plan at all."""
    tree = msgspec.to_builtins(PLANS[data.draw(st.sampled_from(sorted(PLANS)))]())
    places = [(holder, key) for holder, key, _ in numbers(tree)]
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(st.sampled_from([-1, 0, 1, 2, 7, 1000, BIG, 1 << 70]))
    try:
        plan = msgspec.convert(tree, Plan)
    except msgspec.ValidationError:
        return
    answers(plan)
