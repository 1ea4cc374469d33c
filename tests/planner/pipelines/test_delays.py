"""Waits of rounds on several devices, against figures by hand and against rounds."""

from random import Random

import pytest
from support import piped, synthetic

from planner.lowering import Round, PipelineStrategy
from planner.pipelines.delays import Delays
from planner.shards import Mode
from profiles.schema import Task

SEND = piped.LINKS.send_us
SAVED = Mode("resident", "device", "saved")
STAYS = Mode("resident", "device")


def alike(layers: int, batch: int = 3) -> Task:
    return synthetic.task("a", layers=layers, batch=batch, heterogeneous=False)


def delays(one: PipelineStrategy) -> Delays:
    return Delays(one, piped.LINKS)


def test_a_device_waits_between_forwards_and_backwards() -> None:
    """Three forwards, then gradients one hop after each backward behind; nobody else waits."""
    one = piped.piped(alike(2), (0, 1, 2), [(0,), (1,)], "gpipe", [SAVED, STAYS])
    first, second = one.shards
    hop, found = SEND(second.in_bytes), delays(one)
    forward, whole, back = first.graph_forward_us, second.backward_us, first.graph_backward_us
    assert forward < whole > back
    span = forward + hop + 3 * whole + hop + back
    assert found.span_us == span
    assert found.idle == [span - 3 * (forward + back), 0]
    assert found.gathered == [span, span - hop - back]
    assert found.firsts == {(0, 0): 0, (1, 1): forward + hop}


def test_gradients_of_replicas_come_home_one_after_the_other() -> None:
    """A device sends those of the shard that is done first before the others."""
    one = piped.piped(alike(2, batch=2), (0, 1, 2), [(0, 1), (0, 1)], "gpipe", [SAVED, STAYS])
    first, second = one.shards
    assert set(one.homes) == {0, 1}
    ends = [delays(one).lasts[k, 0] for k in (0, 1)]
    both = SEND(first.grad_bytes), SEND(second.grad_bytes)
    adds = [piped.LINKS.add_us(shard.grad_bytes) for shard in (first, second)]
    sums = [sum(each) for each in zip(ends, both, adds, strict=True)]
    assert delays(one).gathered == sums


def test_a_device_with_two_shards_to_send_takes_them_in_turn() -> None:
    """The first one's gradients wait until those of the second are sent."""
    one = piped.piped(alike(3, batch=2), (0, 1, 2, 3), [(0, 1)] * 3, "gpipe", [SAVED] * 2 + [STAYS])
    found, away = delays(one), one.homes[0] ^ 1
    mine = [k for k in (2, 1, 0) if one.homes[k] != away]
    free = 0
    for k in mine:
        free = max(free, found.lasts[k, away]) + SEND(one.shards[k].grad_bytes)
        assert found.gathered[k] == free + piped.LINKS.add_us(one.shards[k].grad_bytes)
    assert len(mine) == 2


@pytest.mark.parametrize("update", ["host", "device"])
def test_parameters_come_back_behind_those_of_others(update: str) -> None:
    """The second update on the host waits for the first; on a device none waits for another."""
    mode = Mode("kept", update)  # type: ignore[arg-type]
    one = piped.piped(alike(2), (0, 1, 2), [(0,), (0,)], "gpipe", [mode, mode])
    found, links, shard = delays(one), piped.LINKS, one.shards[0]
    copies = links.spill_us(shard.grad_bytes) + links.prefetch_us(shard.param_bytes)
    us = shard.update_host_us if update == "host" else shard.update_device_us
    assert found.back_us(0, 0, mode) == found.gathered[0] - found.firsts[0, 0] + copies + us
    assert found.back_us(1, 0, mode) == found.gathered[1] - found.firsts[0, 0] + copies + us
    assert found.served_us(1, mode) == us * (update == "host")


def test_no_wait_is_much_longer_than_a_round() -> None:
    """The time until a shard's parameters are back for the next round is an estimate, since the
    passes of other devices may begin later than it thinks."""
    over = 0
    for seed in range(200):
        one = piped.drawn(Random(seed))
        found, period = delays(one), Round(one, piped.LINKS).period_us
        trained = [k for k, shard in enumerate(one.shards) if shard.grad_bytes]
        backs = [found.back_us(k, k, one.modes[k]) for k in trained]
        assert found.span_us <= period, seed
        assert max(backs, default=0) <= period * 1.04, seed
        over += max(backs, default=0) > period * 1.01
    assert over < 10
