"""Programs on several devices, of ways that are drawn: proven, on devices that just hold them."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs
from support import piped, synthetic

from planner.lowering import PipelineRound
from planner.shards import Mode
from plans import InvalidPlan, prove


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_any_way_is_sound(first: int) -> None:
    """Whatever the cuts, places of shards, order and modes: the checker finds nothing."""
    for seed in range(first, first + 20):
        prove(piped.planned(piped.drawn(Random(seed))))


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_larger_than_it_must_be(seed: int) -> None:
    """With a little less on any device the plan is refused."""
    plan = piped.planned(piped.drawn(Random(seed)))
    (program,) = plan.programs
    needed = max(m.slab_bytes + m.reserve_bytes for m in program.memory)
    small = [structs.replace(d, budget_bytes=needed - 1) for d in plan.devices]
    with pytest.raises(InvalidPlan):
        prove(structs.replace(plan, devices=tuple(small)))


def four_layers(
    *modes: Mode, norms: bool = False, places: tuple[tuple[int, ...], ...]
) -> PipelineRound:
    """Four equal layers in four microbatches, each a shard, in order 1f1b."""
    task = synthetic.task("a", layers=4, heterogeneous=False, norms=norms)
    return PipelineRound(piped.piped(task, (0, 1, 2, 3, 4), places, "1f1b", modes), piped.LINKS)


def counted(made: PipelineRound) -> Counter[str]:
    """The round's ops by kind."""
    return Counter(op.name.kind for op in made.program().round)


STAGES = ((0,), (0,), (1,), (1,))


def test_only_what_crosses_is_sent() -> None:
    """A boundary and a gradient for each microbatch, and the batch for the loss."""
    assert counted(four_layers(places=STAGES))["X"] == 3 * 4


def test_replicas_send_gradients_to_the_owner_and_get_parameters_back() -> None:
    """Both once for each replica but the owner, whose device adds and updates."""
    found = counted(four_layers(places=((0, 1, 2),) * 4))
    assert (found["X"], found["R"], found["U"]) == (2 * 2 * 4, 2 * 4, 4)


@pytest.mark.parametrize(
    ("mode", "loads"),
    [(Mode("kept"), 4), (Mode("resident", "device"), 0), (Mode("kept", "device-streamed"), 8)],
)
def test_parameters_come_once_unless_they_stay(mode: Mode, loads: int) -> None:
    """Beside the batches; state that is streamed comes as well."""
    assert counted(four_layers(*(mode,) * 4, places=STAGES))["P"] == loads + 4


def test_replicas_with_updates_on_the_host_prefetch_what_is_new() -> None:
    """No parameters are sent from device to device, and gradients to the host once."""
    found = counted(four_layers(*(Mode("kept"),) * 4, places=((0, 1),) * 4))
    assert (found["X"], found["R"], found["S"], found["P"]) == (4, 4, 4, 8 + 4)


def test_norms_go_around_in_the_order_of_notes() -> None:
    """From device to device as shards there are done, and back to those that update before."""
    one, two = (four_layers(places=STAGES, norms=norms) for norms in (False, True))
    assert counted(two)["N"] == 4
    assert counted(two)["X"] == counted(one)["X"] + 2


def test_a_round_asked_again_gives_the_same_program() -> None:
    """To the names of the copies before the first round and after the last."""
    made = PipelineRound(piped.drawn(Random(0)), piped.LINKS)
    assert made.program() == made.program()


@pytest.mark.parametrize("replicas", [3, 6])
def test_a_device_has_room_for_two_gradients_of_others(replicas: int) -> None:
    """However many replicas there are, beside those that others are added to."""
    task = synthetic.task("a", layers=1, batch=6)
    one = piped.piped(task, (0, 1), [tuple(range(replicas))], "1f1b")
    values = [value for own in PipelineRound(one, piped.LINKS).walk.values for value in own]
    held = Counter(value.space for value in values if value.name.startswith("o"))
    assert held[str(one.homes[0])] == max(held.values()) == 2


def test_a_tight_round_needs_less() -> None:
    """Where state comes for an update, it has the place of the gradients that came before it."""
    task = synthetic.task("a", layers=1, batch=2, param_bytes=1 << 20, boundary_bytes=1 << 10)
    one = piped.piped(task, (0, 1), [(0, 1)], "gpipe", [Mode("resident", "device-streamed")])
    slabs = [
        max(memory.slab_bytes for memory in PipelineRound(way, piped.LINKS).memory)
        for way in (one, replace(one, tight=True))
    ]
    assert slabs[0] - slabs[1] >= one.shards[0].grad_bytes
    prove(piped.planned(replace(one, tight=True)))
