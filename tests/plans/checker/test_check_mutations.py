"""The checker against an oracle: whatever trains other numbers, races or overflows is refused.

The oracle (`support.oracle`) shares no code with the checker; it tries every pair of accesses and
runs the plan on bytes.
"""

import re
from collections.abc import Callable

import pytest
from support.casting import CASTING
from support.handmade import PLANS
from support.mutations import MUTATORS, STRICT, mutants
from support.noted import NOTED
from support.oracle import harm

from plans.checker.check import violations
from plans.schema import Plan

LIMIT = 75  # every rule is the only one that refuses some of these
SEVERAL = ("resident", "streamed", "parallel", "relay", "norms-host", "some", "swapped")
ALL = PLANS | NOTED | {name: CASTING[name] for name in map("cast-{}".format, SEVERAL)}


def names(plan: Plan) -> set[str]:
    """Everything that a violation may begin with."""
    found = {"host", "prediction", *(task.name for task in plan.tasks)}
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


@pytest.mark.parametrize("name", ALL)
def test_every_harmful_mutant_is_refused(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Of the mutants that do harm, the checker refuses all, and says where."""
    harmful, missed, strict = 0, [], []
    for mutant in mutants(ALL[name](), seed=1, limit=LIMIT):
        why, found = harm(mutant.plan), violations(mutant.plan)
        if why:
            harmful += 1
            if not found:
                missed.append(f"{mutant.name}: {why}")
        elif found and not all(STRICT.search(line) for line in found):
            strict.append(f"{mutant.name}: {found[0]}")
        known = names(mutant.plan)
        for line in found:
            subject = re.split(r": | round \d| in (?:enter|leave)| \('| and ", line)[0]
            assert subject in known or subject.rpartition(".")[0].rpartition(".")[0] in known, line
    print(f"kill rate: {harmful - len(missed)}/{harmful}")
    record_property("kill rate", f"{harmful - len(missed)}/{harmful}")
    assert harmful > LIMIT // 2
    assert not missed
    assert not strict


def test_every_mutator_does_harm_somewhere() -> None:
    """No mutator is idle: each makes at least one plan that the oracle refuses."""
    idle = {mutator.__name__ for mutator in MUTATORS}
    for made in ALL.values():
        for mutant in mutants(made(), seed=2, limit=4 * len(MUTATORS)) if idle else ():
            name = mutant.name.split(":")[0]
            if name in idle and harm(mutant.plan):
                idle.remove(name)
    assert not idle
