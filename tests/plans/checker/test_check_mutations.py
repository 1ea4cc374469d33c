"""The checker against an oracle: whatever trains other numbers, races or overflows is refused.

The oracle (`support.oracle`) shares no code with the checker; it tries every pair of accesses and
runs the plan on bytes.
"""

import re

import pytest
from support.handmade import CASTING, NOTED, PLANS
from support.mutations import MUTATORS, bites, mutants
from support.oracle import harm

from plans.schema import Plan

LIMIT = 75  # every rule is the only one that refuses some of these
SEVERAL = ("resident", "streamed", "parallel", "relay", "norms-host", "some", "swapped")
ALL = PLANS | NOTED | {name: CASTING[name] for name in map("cast-{}".format, SEVERAL)}


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


def test_every_mutator_does_harm_somewhere() -> None:
    """No mutator is idle: each makes at least one plan that the oracle refuses."""
    idle = {mutator.__name__ for mutator in MUTATORS}
    for made in ALL.values():
        for mutant in mutants(made(), seed=2, limit=4 * len(MUTATORS)) if idle else ():
            name = mutant.name.split(":")[0]
            if name in idle and harm(mutant.plan):
                idle.remove(name)
    assert not idle
