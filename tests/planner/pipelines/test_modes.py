"""The program that chooses the modes of a pipeline, against all that could be chosen."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from time import monotonic

import pytest
from support import piped, synthetic

from planner.inputs import Effort
from planner.lowering import PipelineStrategy
from planner.orders import Pass
from planner.pipelines.modes import ModeProgram
from planner.pipelines.windows import loads, windows
from planner.shards import Mode, backward_us, forward_us
from profiles.codec import align
from profiles.schema import Task

HOST = 1 << 30
PARTS = (8, 2, 1, 0, -1)  # of what modes may take, from the least on


def program(one: PipelineStrategy, room: int, host: int = HOST) -> ModeProgram:
    return ModeProgram(one, piped.LINKS, (room,) * one.devices, (host,))


def effort() -> Effort:
    return Effort(monotonic() + 60, 0)


def small(seed: int) -> PipelineStrategy:
    """Three layers on two devices, with links about as busy as the devices."""
    task: Task = synthetic.task("a", layers=3, seed=seed, param_bytes=1 << 19, forward_us=400)
    places = [((0,), (0,), (1,)), ((0,), (1,), (0, 1))][seed % 2]
    return piped.piped(task, (0, 1, 2, 3), places, ["gpipe", "1f1b"][seed % 2])


def held(one: ModeProgram, modes: Sequence[Mode]) -> int:
    """The most bytes on any device, in any window."""
    return max(
        sum(one.choices.held_bytes(window, own, modes[own.shard]) for own in window.held)
        for window in windows(one.strategy)
    )


@cache
def every(seed: int) -> list[int]:
    """The bytes of all there is to choose."""
    one = program(small(seed), 0)
    return [held(one, modes) for modes in choices(one)]


def choices(one: ModeProgram) -> Iterator[tuple[Mode, ...]]:
    return product(*(one.choices.modes(k) for k in range(len(one.strategy.shards))))


def room_of(seed: int, part: int) -> int:
    """So much of what there is between the modes that take least and those that take most."""
    sizes = every(seed)
    return min(sizes) + (max(sizes) - min(sizes)) * part // 8


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("seed", range(4))
def test_modes_fit_and_parts_of_them_are_no_worse(seed: int, part: int) -> None:
    """Where any modes fit some are found, and what ranks sketches is no longer than they are."""
    room = room_of(seed, part)
    one = program(small(seed), room)
    chosen, relaxed = one.chosen(effort()), one.relaxed(effort())
    assert (chosen is None) == (room < min(every(seed)))
    if chosen:
        assert held(one, chosen.strategy.modes) <= room
        assert relaxed
        assert relaxed.us <= chosen.us + 1


@pytest.mark.parametrize("part", PARTS[:-1])
@pytest.mark.parametrize("seed", range(6))
def test_no_modes_that_fit_are_better(seed: int, part: int) -> None:
    """Of all there is to choose; and those chosen are worth what the program says."""
    room = room_of(seed, part)
    one = program(small(seed), room)
    chosen = one.chosen(effort())
    assert chosen
    fits = (m for m, size in zip(choices(one), every(seed), strict=True) if size <= room)
    best = min(worth(one, modes) for modes in fits)
    assert abs(worth(one, chosen.strategy.modes) - chosen.us) <= 2
    assert best - 2 <= chosen.us <= best * 1.012 + 2


def worth(one: ModeProgram, modes: Sequence[Mode]) -> float:
    """The objective, shard by shard: the longest of what a round takes, and a part of all work."""
    own, delays, most, work = one.strategy, one.delays, 0.0, 0.0
    pairs = list(zip(own.shards, modes, strict=True))
    chain = sum(forward_us(*pair) + backward_us(*pair) for pair in pairs)
    times, counts = loads(own), Counter((d, k) for (k, _), d in own.where.items())
    for device in range(own.devices):
        here = [k for k in range(len(modes)) if counts[device, k]]
        home = [k for k in here if own.homes[k] == device]
        on_host = [k for k in home if modes[k].update == "host"]
        copies = [
            one.choices.copies_us(k, device, modes[k], times[device, k], counts[device, k])
            for k in here
        ]
        mine = [
            sum(one.choices.compute_us(k, device, modes[k], counts[device, k]) for k in here)
            + delays.idle[device] * chain / delays.chain_us,
            sum(come for come, _ in copies),
            sum(go for _, go in copies),
            sum(own.shards[k].update_host_us for k in on_host),
        ]
        most, work = max(most, *mine), work + sum(mine)
        ended = sorted(
            (k for k in home if own.shards[k].grad_bytes), key=delays.gathered.__getitem__
        )
        for at, k in enumerate(ended):
            most = max(most, delays.back_us(k, k, modes[k]))
            for early in range(at):
                lane = delays.lane(k, modes[k])
                queue = [n for n in ended[early:at] if delays.lane(n, modes[n]) == lane != ""]
                others = sum(delays.served_us(n, modes[n]) for n in queue)
                if lane:
                    most = max(most, delays.back_us(ended[early], k, modes[k]) + others)
    return most + 0.1 * work / own.devices


@pytest.mark.parametrize("seed", range(4))
def test_the_modes_that_take_least(seed: int) -> None:
    """No others take less of the device that needs most."""
    one = program(small(seed), 0)
    chosen = one.chosen(effort(), least=True)
    assert chosen
    assert held(one, chosen.strategy.modes) <= min(every(seed)) * 1.006


@pytest.mark.parametrize("host", [HOST, 1 << 16, 0])
@pytest.mark.parametrize("seed", range(4))
def test_thrifty_modes_hold_about_the_least(seed: int, host: int) -> None:
    """Of those that the host has room for."""
    one = program(small(seed), 0, host)
    strategy = one.thrifty(effort())
    assert strategy
    fit = [n for m, n in zip(choices(one), every(seed), strict=True) if waiting(one, m) <= host]
    assert held(one, strategy.modes) <= min(fit) * 1.01
    assert waiting(one, strategy.modes) <= host


def waiting(one: ModeProgram, modes: Sequence[Mode]) -> int:
    """The bytes that wait on the host, buffer by buffer."""
    made = replace(one.strategy, modes=tuple(modes))
    return sum(align(size) for _, size in made.waiting())


def test_what_waits_on_the_host_is_counted() -> None:
    """Without room there, nothing is put aside and updates are on the devices."""
    chosen = program(small(0), 1 << 40, host=0).chosen(effort())
    assert chosen
    assert {mode.update for mode in chosen.strategy.modes} <= {"device", "device-streamed"}
    assert not [m for m in chosen.strategy.modes if m.spilled or m.activations == "offload"]


def test_windows_see_the_most_that_is_in_flight() -> None:
    """Of every device: microbatches with boundaries on it, walked pass by pass."""
    for seed in range(80):
        one = piped.drawn(Random(seed))
        seen = [0] * one.devices
        for window in windows(one):
            flying = sum(own.flying * one.shards[own.shard].in_bytes for own in window.held)
            seen[window.device] = max(seen[window.device], flying)
        assert seen == [most_in_flight(one, passes) for passes in one.order], seed


def most_in_flight(one: PipelineStrategy, passes: Sequence[Pass]) -> int:
    """The most bytes of boundaries between forward and the last part of backward."""
    most = now = 0
    for kind, k, _ in passes:
        begins = kind == "F" or (k == one.last and kind in "BI")
        now += begins * one.shards[k].in_bytes
        most = max(most, now)
        ends = kind == ("W" if k in one.halved else "B")
        now -= ends * one.shards[k].in_bytes
    return most
