"""Packs: a chain of layers cut for forward and for backward on their own.

Where every pack streams its parameters and runs all microbatches in turn, packs that go forward
need little memory and packs that go backward much, so the two directions are cut differently and
have microbatches of their own. Small packs at both ends fill and drain the devices soon; large ones
in between save what each pack costs. Only a simulation knows what packs take: the search here
changes them step by step and asks a judge.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from random import Random
from typing import NamedTuple


class Packs(NamedTuple):
    """The first layer of every pack, ascending, and the samples of every microbatch.

    The last backward pack computes its own forward, just before; forward packs end where it begins.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]

    @property
    def turn(self) -> int:
        """The first layer of the last backward pack."""
        return self.backward[-1]

    def runs(self, layers: int) -> Iterator[tuple[bool, int, int]]:
        """Packs in the order in which they run: backward or not, first layer, end."""
        for first, end in pairwise((*self.forward, self.turn)):
            yield False, first, end
        for end, first in pairwise((layers, *reversed(self.backward))):
            yield True, first, end


PackFits = Callable[[bool, int, int, int], bool]
"""By direction (backward or not), microbatch, first layer and end: there is room for such a pack.
Where there is, there is room for fewer layers and smaller microbatches."""

Judge = Callable[[Packs], float]
"""The time that packs take."""

_MOST = 6  # microbatches of a direction; a step changes their sizes, not their number
_STARTS = 8  # the best of all numbers of microbatches, with the fewest packs
_WARM, _COLD = 1e-3, 3e-5  # how much worse a step may be, as a share of the time; first and last


def best_packs(
    layers: int, samples: int, fits: PackFits, judge: Judge, *, steps: int, seed: int = 0
) -> tuple[float, Packs] | None:
    """The best packs found, and their time; None where nothing fits.

    Each round improves what is left of the starts, with as many steps as every other round, and
    keeps the better half.
    """
    rng = Random(seed)
    numbers = range(1, min(samples, _MOST) + 1)
    even = [tuple((samples + m) // number for m in range(number)) for number in numbers]
    starts = (fewest(layers, *sizes, fits) for sizes in product(even, even))
    found = sorted((judge(start), start) for start in starts if start)[:_STARTS]
    rounds = len(found).bit_length()
    for _ in range(rounds):
        each = steps // (rounds * len(found))
        found = sorted(improve(start, layers, fits, judge, each, rng) for _, start in found)
        found = found[: (len(found) + 1) // 2]
    return found[0] if found else None


def fewest(
    layers: int, forward_sizes: tuple[int, ...], backward_sizes: tuple[int, ...], fits: PackFits
) -> Packs | None:
    """Each pack as long as it fits, the last backward one first; None if a layer does not fit."""
    largest = max(forward_sizes), max(backward_sizes)
    turn = layers
    while turn > 1 and fits(True, largest[True], turn - 1, layers):
        turn -= 1
    begins: list[list[int]] = [[0], [0]]
    for layer in range(turn):
        for backward, size in enumerate(largest):
            if not fits(bool(backward), size, begins[backward][-1], layer + 1):
                begins[backward].append(layer)
    cuts = tuple(begins[False]), (*begins[True], turn)
    packs = Packs(*cuts, forward_sizes, backward_sizes)
    return packs if _sound(packs, layers) and _fit(packs, layers, fits) else None


def improve(
    start: Packs, layers: int, fits: PackFits, judge: Judge, steps: int, rng: Random
) -> tuple[float, Packs]:
    """Simulated annealing: a step that is a little worse may be taken, ever less of them."""
    value, now = judge(start), start
    best = value, now
    for step in range(steps):
        other = _changed(now, layers, rng)
        if other == now or not _sound(other, layers) or not _fit(other, layers, fits):
            continue
        heat = value * _WARM * (_COLD / _WARM) ** (step / steps)
        judged = judge(other)
        if judged <= value or rng.random() < math.exp((value - judged) / heat):
            value, now = judged, other
            best = min(best, (value, now))
    return best


def _fit(packs: Packs, layers: int, fits: PackFits) -> bool:
    largest = max(packs.forward_sizes), max(packs.backward_sizes)
    return all(fits(back, largest[back], first, end) for back, first, end in packs.runs(layers))


def _sound(packs: Packs, layers: int) -> bool:
    """No pack is empty, and no microbatch."""
    ends = (*packs.forward, packs.turn), (*packs.backward, layers)
    ascending = all(first < end for direction in ends for first, end in pairwise(direction))
    return ascending and min(packs.forward_sizes + packs.backward_sizes) > 0


def _changed(packs: Packs, layers: int, rng: Random) -> Packs:
    """Other cuts in one direction, or other microbatches. It may be unsound."""
    where = rng.choice(("forward", "backward"))
    sizes = rng.random() < 0.05
    field = f"{where}_sizes" if sizes else where
    values = list(getattr(packs, field))
    (_trade if sizes else rng.choice(_CHANGES))(values, layers, rng)
    return packs._replace(**{field: tuple(values)})


def _shift(begins: list[int], layers: int, rng: Random) -> None:
    """Some neighbouring cuts go a few layers up or down."""
    low, high = sorted(rng.randrange(len(begins)) for _ in range(2))
    by = rng.choice((-1, 1)) * rng.choice((1, 1, rng.randint(2, 8)))
    for at in range(max(low, 1), high + 1):
        begins[at] += by


def _drop(begins: list[int], layers: int, rng: Random) -> None:
    """Two packs become one."""
    if len(begins) > 1:
        del begins[rng.randrange(1, len(begins))]


def _add(begins: list[int], layers: int, rng: Random) -> None:
    """A pack becomes two."""
    begins.append(rng.randrange(layers))
    begins.sort()


def _move(begins: list[int], layers: int, rng: Random) -> None:
    """Two packs become one, and one becomes two."""
    _drop(begins, layers, rng)
    _add(begins, layers, rng)


def _trade(sizes: list[int], layers: int, rng: Random) -> None:
    """A microbatch gives a sample to another, or both change places."""
    one, other = (rng.randrange(len(sizes)) for _ in range(2))
    if rng.random() < 0.3:
        sizes[one], sizes[other] = sizes[other], sizes[one]
    else:
        sizes[one] -= 1
        sizes[other] += 1


_CHANGES = (_shift, _shift, _shift, _drop, _add, _move)
