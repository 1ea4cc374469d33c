"""Local search around a strategy: one shard's mode, a cut, the block at a time, judged by the
simulator, until nothing helps or the evaluations are used up.

What does not touch the cycle of ops that makes the period cannot shorten it, unless by the memory
it frees; so the shards on that cycle come first, and of those the ones that compute waits for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.inputs import Effort
from planner.lowering import DeviceRound
from planner.search.descent import descend
from planner.search.round_bound import round_bound_us
from planner.shards import ACTIVATIONS, HELD, Mode, Place, Strategy, nearest_mode, possible

Evaluate = Callable[[Strategy], DeviceRound | None]  # None when the strategy does not fit
Score = tuple[int, int]

_AWAY = 10  # shards that make room for one


class _State(NamedTuple):
    """A strategy that is laid out, or one that moves or computes too much to be better."""

    score: Score
    of: DeviceRound | Strategy


def improve(
    start: DeviceRound,
    points: Sequence[int],
    evaluate: Evaluate,
    ops: int,
    enough_us: int,
    effort: Effort,
) -> DeviceRound:
    """The best found from `start` on, simulating so many ops at most, until its period is short
    enough.

    points: where the chain of layers may be cut. Strategies that do not fit cost a part of it, and
    those that move or compute too much to be better are only laid out where no change helps.
    """
    best, seen, limits = start, {start.strategy.key}, effort.limits

    def neighbours(now: _State) -> Iterator[tuple[int, _State | None]]:
        nonlocal best
        late = isinstance(now.of, Strategy)
        for strategy in [now.of] if isinstance(now.of, Strategy) else _moves(now.of, points):
            price = max(limits.search_least_ops, len(best.entries))
            if not late and strategy.key in seen:
                continue
            seen.add(strategy.key)
            if not late and (least := round_bound_us(strategy, best.links)) > best.period_us:
                yield price, _State((least, 0), strategy)
            elif made := evaluate(strategy):
                best = min(best, made, key=score)
                yield price, _State(score(made), made)
            else:
                yield price // limits.search_rejections, None

    found = _State(score(start), start)
    descend(
        found,
        neighbours,
        lambda one: one.score,
        ops,
        lambda _: best.period_us <= enough_us or effort.left <= 0,
    )
    return best


def exchanged(made: DeviceRound, evaluate: Evaluate, most: int) -> Iterator[DeviceRound]:
    """Rounds in which a shard stays with its state, of the `most` that compute waits for longest,
    and others that take less stream instead, as many as that takes: one at a time is no better."""
    blame = made.blame()
    waited = sorted(blame, key=lambda k: (-blame[k], k))
    moving = [k for k in waited[:most] if made.strategy.modes[k].params != "resident"]
    for k in moving:
        stays = replace(made.strategy.modes[k], params="resident", update="device")
        now = resettled(with_mode(made.strategy, k, stays))
        for _ in range(_AWAY + 1):
            if found := evaluate(now):
                yield found
                break
            others = [j for j in _resident(now) if j != k]
            if not others:
                break
            apart = [j for j, mode in enumerate(now.modes) if mode.params != "resident"]
            away = min(others, key=lambda j: _given_up(now, j, apart))
            now = resettled(with_mode(now, away, Mode()))


def _resident(strategy: Strategy) -> list[int]:
    shards = enumerate(zip(strategy.shards, strategy.modes, strict=True))
    return [k for k, (shard, mode) in shards if mode.params == "resident" and shard.param_bytes]


def _given_up(strategy: Strategy, k: int, apart: Sequence[int]) -> tuple[int, int, int]:
    """A key that is least for the shard that streams next: few bytes that are updated, and far from
    those that stream already, since copies that come at once wait for each other."""
    shard = strategy.shards[k]
    near = min((abs(k - other) for other in apart), default=0)
    return shard.grad_bytes + shard.state_bytes, -near, k


def score(made: DeviceRound) -> Score:
    """The period; among equal ones the load of all streams."""
    return made.period_us, sum(made.draft.us)


def _moves(made: DeviceRound, points: Sequence[int]) -> Iterator[Strategy]:
    """All strategies one change away, those of shards that compute waits for first."""
    strategy = made.strategy
    blame = made.blame()
    packs = made.links.d2d is not None
    waited = sorted(range(len(strategy.modes)), key=lambda k: (-blame.get(k, 0), k))
    for k in waited:
        for other in _others(strategy, k):
            if packs or other.activations != "offload":
                yield with_mode(strategy, k, other)
        for near in (k - 1, k + 1):
            if 0 <= near <= strategy.last and strategy.modes[near] != strategy.modes[k]:
                swapped = with_mode(strategy, k, strategy.modes[near])
                yield resettled(with_mode(swapped, near, strategy.modes[k]))
        yield from _recut(strategy, k, points)
        if k == 0 and strategy.costs.microbatches > 1:
            for block in (strategy.block - 1, strategy.block + 1):
                if 0 <= block <= strategy.last:
                    yield resettled(replace(strategy, block=block))
        if k == waited[0]:
            yield from _of_no_shard(strategy)


def _of_no_shard(strategy: Strategy) -> Iterator[Strategy]:
    """Changes of no single shard: the order of copies out, and the buffers of what is packed."""
    yield replace(strategy, urgent=not strategy.urgent)
    for depth in (2 * strategy.depth, strategy.depth // 2) if strategy.packs else ():
        if 2 <= depth <= strategy.costs.microbatches:
            yield replace(strategy, depth=depth)


def _recut(strategy: Strategy, k: int, points: Sequence[int]) -> Iterator[Strategy]:
    """Shard k split in two, joined with the next one, or its end moved by one point."""
    cuts, modes, block = strategy.cuts, strategy.modes, strategy.block
    first, end = points.index(cuts[k]), points.index(cuts[k + 1])
    if end - first > 1:
        middle = points[(first + end) // 2]
        split = (*modes[: k + 1], *modes[k:])
        yield resettled(
            replace(
                strategy,
                cuts=(*cuts[: k + 1], middle, *cuts[k + 1 :]),
                modes=split,
                block=block + (block > k),
            )
        )
    if k == strategy.last:
        return
    joined = (*modes[:k], *modes[k + 1 :])
    yield resettled(
        replace(
            strategy, cuts=(*cuts[: k + 1], *cuts[k + 2 :]), modes=joined, block=block - (block > k)
        )
    )
    for point in (points[end - 1], points[end + 1]):
        if cuts[k] < point < cuts[k + 2]:
            yield resettled(replace(strategy, cuts=(*cuts[: k + 1], point, *cuts[k + 2 :])))


def _others(strategy: Strategy, k: int) -> Iterator[Mode]:
    """Modes for shard k that differ in one way from its own, or in what goes together."""
    shard, place, mode = strategy.shards[k], place_of(strategy, k), strategy.modes[k]
    changed = [replace(mode, params=params, update=update) for params, update in HELD]
    if mode.params == "streamed":  # a graph needs the parameters that it was made with
        kept = replace(mode.with_activations("saved"), params="kept", spilled=False)
        changed += [kept, replace(kept, params="resident", update="device")]
    elif mode.activations == "saved":
        changed += [Mode(), Mode(activations="offload")]
    changed += [mode.with_activations(act) for act in ACTIVATIONS]
    # Where none is recomputed yet, ops are fewer, and so sooner timed.
    if any(other.recomputed for other in strategy.modes):
        changed += _packing(mode, strategy.costs.microbatches)
    changed.append(replace(mode, spilled=not mode.spilled))
    for other in dict.fromkeys(changed):
        if other != mode and possible(shard, other, place):
            yield other


def _packing(mode: Mode, count: int) -> Iterator[Mode]:
    """The mode with a microbatch more that packs, or one less; none of those all of which do."""
    packed = count - mode.recomputed if mode.activations == "offload" else 0
    for number in (packed + 1, packed - 1):
        if 0 < number < count and mode.activations != "saved":
            yield replace(mode, activations="offload", recomputed=count - number)


def with_mode(strategy: Strategy, k: int, mode: Mode) -> Strategy:
    """The strategy with another mode for shard k."""
    return replace(strategy, modes=(*strategy.modes[:k], mode, *strategy.modes[k + 1 :]))


def place_of(strategy: Strategy, k: int) -> Place:
    """Where a shard of the strategy is."""
    return Place(not k, k == strategy.last, strategy.turn and strategy.block <= k)


def resettled(strategy: Strategy) -> Strategy:
    """The strategy with modes that are possible where its shards are now."""
    modes = tuple(
        nearest_mode(shard, mode, place_of(strategy, k))
        for k, (shard, mode) in enumerate(zip(strategy.shards, strategy.modes, strict=True))
    )
    return replace(strategy, modes=modes)
