"""A time below that of every schedule of Harmony, by Harmony's rule (`harmony_rule`).

The largest microbatch of each direction says which packs fit, and how little all microbatches can
take; the number of GPUs in use says how fast each swaps. The least bound over all these is below
every schedule. For each of them the larger of two holds:

load    The compute streams of all GPUs together. Besides computing, they wait after every backward
        pack for its gradients' way out and its delete. Before every forward pack they wait for the
        delete of the pack before, or for weights, which begin to come in when that one has
        computed, whichever is longer; so does the first backward pack. (Each GPU's first pack waits
        for weights only; there is one more delete behind its last forward pack.) The last pack's
        update may outlast its delete.
path    All forward passes of the largest backward microbatch on all GPUs, with the waits before
        forward packs; then its gradients go down all layers. Recomputation waits for nobody.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from tests.support.harmony_profile import Profile


class Bound(NamedTuple):
    us: float
    name: str


def lower_bound(profile: Profile) -> Bound:
    """The least over all numbers of GPUs and all largest microbatches."""
    return min(_bounds(profile, used) for used in range(1, profile.gpus + 1))


def _bounds(profile: Profile, used: int) -> Bound:
    """With so many GPUs in use."""
    layers, delete, rate = profile.layers, profile.delete_us, profile.swap_rate / used

    def swapped(first: int, end: int) -> float:
        return max(delete, (profile.weights[end] - profile.weights[first]) / rate)

    opening = used * (min(delete, profile.weights[1] / rate) - delete)  # no delete, but weights
    before = {size: _cuts(profile, False, size, swapped) for size in _sizes(profile, False)}
    turning = [swapped(turn, layers) for turn in range(layers)]
    behind = profile.weights[layers] / rate + max(0.0, profile.update_us[1] - delete)
    bounds = []
    for size, backward, _ in _cheapest(profile, True, layers):
        backward += _cuts(profile, True, size, lambda first, end: delete)[layers] + behind
        chain = profile.backward_us(size)[layers] - profile.forward_us(size)[layers]
        turn = _turn(profile, size)
        for other, forward, parts in _cheapest(profile, False, turn):
            waits = before[other][turn:layers]
            turned = min(map(sum, zip(waits, turning[turn:], strict=True)))
            load = forward + turned + opening + (used - 1) * delete + backward
            path = min(parts[size:]) + min(waits) + opening + used * chain
            bounds.append(max(Bound(load / used, "load"), Bound(path / used, "path")))
    return min(bounds)


def _sizes(profile: Profile, backward: bool) -> range:
    return range(1, profile.most(backward) + 1)


def _cheapest(
    profile: Profile, backward: bool, layers: int
) -> Iterator[tuple[int, float, list[float]]]:
    """By the largest microbatch: what all samples take in these layers at least, and so many."""
    parts = [0.0] + [inf] * profile.minibatch
    for size in _sizes(profile, backward):
        us = (profile.backward_us if backward else profile.forward_us)(size)[layers]
        for samples in range(size, profile.minibatch + 1):
            parts[samples] = min(parts[samples], parts[samples - size] + us)
        yield size, parts[profile.minibatch - size] + us, parts.copy()


def _turn(profile: Profile, size: int) -> int:
    """The first layer of the longest last pack."""
    turn = profile.layers - 1
    while turn and profile.fits(True, size, turn - 1, profile.layers):
        turn -= 1
    return turn


def _cuts(
    profile: Profile, backward: bool, size: int, cost: Callable[[int, int], float]
) -> list[float]:
    """The least cost of packs up to every layer."""
    least = [0.0]
    for end in range(1, profile.layers + 1):
        best, first = inf, end - 1
        while first >= 0 and profile.fits(backward, size, first, end):
            best = min(best, least[first] + cost(first, end))
            first -= 1
        least.append(best)
    return least
