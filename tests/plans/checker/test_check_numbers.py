"""The checker on every number of a plan: what follows from the rest of the plan cannot be wrong."""

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.disked import disked
from support.edits import with_prediction
from support.handmade import PLANS
from support.noded import NODED

import plans
from plans.checker.check import violations
from plans.schema import Plan
from plans.timing import exposed_copy_us, timeline

SAMPLE = Path(__file__).parents[3] / "plans" / "sample.json"
EACH = 3  # numbers of a field that are tried in one plan

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
    # Facts of the machine.
    r"devices\.threads|devices\.node|devices\.emulation\..*",
    # What no plan at all can beat: of another plan, so that nothing of this one says how much it
    # is. A smaller one is a weaker claim and true as well.
    r"prediction\.bounds\.us|prediction\.configuration_us",
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


def numbers(tree: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every (container, key) that holds an integer, with the names of the fields on the way."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        here = f"{path}.{key}" if isinstance(tree, dict) else path
        if isinstance(value, dict | list):
            yield from numbers(value, here)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield tree, key, here[1:]


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
    """What a sound plan says of devices and tasks is what a list of all its ops says."""
    plan, programs = made(name), {p.name: p for p in made(name).programs}
    ops = list(timeline(plan))
    exposed: dict[str, int] = {}
    for index in range(len(plan.segments)):
        own = ((o.stream, o.start_us, o.end_us) for o in ops if o.segment == index)
        for device, us in exposed_copy_us(own).items():
            exposed[device] = exposed.get(device, 0) + us
    for number, told in enumerate(plan.prediction.devices):
        own_us = sum(o.end_us - o.start_us for o in ops if o.stream == f"{number}.compute")
        memories = [
            m.slab_bytes + m.reserve_bytes
            for s in plan.segments
            for d, m in zip(s.devices, programs[s.program].memory, strict=True)
            if d == number
        ]
        assert told.compute_us == own_us
        assert told.exposed_copy_us == exposed.get(str(number), 0)
        assert told.peak_bytes == max(memories, default=0)
    for task in plan.prediction.tasks:
        runs = [s for s in plan.segments if task.name in programs[s.program].tasks]
        assert task.start_us == min(s.start_us for s in runs)
        assert task.end_us == max(s.end_us for s in runs)


def test_a_wrong_prediction_is_told_with_both_numbers() -> None:
    """By the device or task that it is of."""
    plan = made("fleet")
    devices, tasks = plan.prediction.devices, plan.prediction.tasks
    plan = with_prediction(
        plan,
        devices=(replace(devices[0], peak_bytes=1), devices[1]),
        tasks=(tasks[0], replace(tasks[1], round_us=1)),
    )
    assert violations(plan) == [
        f"prediction: peak_bytes of device 0 is 1 but the plan's own times give "
        f"{devices[0].peak_bytes}",
        f"prediction: round_us of task 'b' is 1 but the plan's own times give {tasks[1].round_us}",
    ]


def with_live(plan: Plan, live: int) -> Plan:
    (program,) = plan.programs
    memory = tuple(replace(m, live_bytes=live) for m in program.memory)
    return replace(plan, programs=(replace(program, memory=memory),))


def test_live_bytes_lie_between_what_is_alive_and_the_slab() -> None:
    """One byte more than the slab, or less than what a backward finds there, is refused."""
    plan = made("resident")
    slab = plan.programs[0].memory[0].slab_bytes
    assert violations(with_live(plan, slab)) == []
    assert violations(with_live(plan, slab + 1)) == [
        f"solo: device 0 has {slab + 1} live bytes in a slab of {slab}"
    ]
    assert violations(with_live(plan, slab - 1)) == [
        f"solo: device 0 has {slab - 1} live bytes, but {slab} are alive at a.s0.B0 round 1"
    ]


def test_a_value_that_a_copy_brings_again_is_not_alive_meanwhile() -> None:
    """Of two slots that parameters stream through, what the next load overwrites does not count."""
    plan = made("streamed")
    program = plan.programs[0]
    sizes = {buffer.name: buffer.bytes for buffer in program.buffers}
    # At the backward of the middle shard its slot, its input and gradient, and what waits: of
    # the first shard the batches, of the last one's gradient nothing, for it is on its way out.
    waits = sum(size for name, size in sizes.items() if "slot" not in name and "grad" not in name)
    least = waits + sizes["a.slot0"] + sizes["a.grad0"]
    assert violations(with_live(plan, least)) == []
    assert "are alive at" in violations(with_live(plan, least - 1))[0]
