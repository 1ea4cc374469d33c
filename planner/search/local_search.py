"""Local search around a choice: one shard's mode, a cut, the block at a time, judged by the
simulator, until nothing helps or the evaluations are used up.

What does not touch the cycle of ops that makes the period cannot shorten it, unless by the memory
it frees; so the shards on that cycle come first, and of those the ones that compute waits for.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from planner.inputs import Effort
from planner.rounds import Round
from planner.shards import HELD, Activations, Links, Mode, Place, Slots, Strategy, possible, settled

Evaluate = Callable[[Strategy], Round | None]  # None when the choice does not fit
Score = tuple[int, int]

_REJECTIONS = 4  # choices that do not fit, for the price of one that does
_SKIPS = 1  # choices that cannot be better, for the price of one
_LEAST = 60  # ops that the smallest choice counts for
_ACTS: tuple[Activations, ...] = ("recompute", "saved", "offload")


def improve(
    start: Round, points: Sequence[int], evaluate: Evaluate, ops: int, effort: Effort
) -> Round:
    """The best found from `start` on, simulating so many ops at most.

    points: where the chain of layers may be cut. Choices that do not fit cost a part of it, and
    those that move or compute too much to be better are only looked at where no change helps: the
    search then goes on from the best choice that it has not gone on from.
    """
    best, seen = start, {start.choice.key}
    moves = _moves(best, points)
    others: list[tuple[Score, int, Round | Strategy]] = []
    number = count()
    while ops > 0 and effort.left > 0:
        choice = next((m for m in moves if m.key not in seen), None)
        if choice is None:
            if not others:
                return best
            other = heapq.heappop(others)[2]
            if isinstance(other, Round):
                moves = _moves(other, points)
                continue
            choice = other
        elif (least := least_us(choice, best.links)) > best.period_us:
            seen.add(choice.key)
            ops -= max(_LEAST, len(best.entries)) // _SKIPS
            heapq.heappush(others, ((least, 0), next(number), choice))
            continue
        seen.add(choice.key)
        made = evaluate(choice)
        ops -= max(_LEAST, len(best.entries)) // (1 if made else _REJECTIONS)
        if made and score(made) < score(best):
            best = made
            moves = _moves(best, points)
        elif made:
            heapq.heappush(others, (score(made), next(number), made))
    return best


def score(made: Round) -> Score:
    """The period; among equal ones the load of all streams."""
    return made.period_us, sum(made.draft.us)


def least_us(choice: Strategy, links: Links) -> int:
    """A time that the choice's round is not below: what each stream has to do."""
    slots = Slots(choice)
    values = list(slots.values())
    into = sum(value.into.us(links) for value in values if value.into)
    out = sum(links.spill_us(value.out.bytes) for value in values if value.out)
    updates = sum(value.out.update_us for value in values if value.out)
    return max(sum(slots.us), into, out, updates)


def _moves(made: Round, points: Sequence[int]) -> Iterator[Strategy]:
    """All choices one change away, those of shards that compute waits for first."""
    choice = made.choice
    blame = made.blame()
    packs = made.links.d2d is not None
    yield replace(choice, urgent=not choice.urgent)
    if any(mode.activations == "offload" for mode in choice.modes):
        for depth in (2 * choice.depth, choice.depth // 2):
            if 2 <= depth <= choice.costs.microbatches:
                yield replace(choice, depth=depth)
    for k in sorted(range(len(choice.modes)), key=lambda k: (-blame.get(k, 0), k)):
        for other in _others(choice, k):
            if packs or other.activations != "offload":
                yield with_mode(choice, k, other)
        for near in (k - 1, k + 1):
            if 0 <= near <= choice.last and choice.modes[near] != choice.modes[k]:
                swapped = with_mode(choice, k, choice.modes[near])
                yield resettled(with_mode(swapped, near, choice.modes[k]))
        yield from _recut(choice, k, points)
        if k == 0 and choice.costs.microbatches > 1:
            for block in (choice.block - 1, choice.block + 1):
                if 0 <= block <= choice.last:
                    yield resettled(replace(choice, block=block))


def _recut(choice: Strategy, k: int, points: Sequence[int]) -> Iterator[Strategy]:
    """Shard k split in two, joined with the next one, or its end moved by one point."""
    cuts, modes, block = choice.cuts, choice.modes, choice.block
    first, end = points.index(cuts[k]), points.index(cuts[k + 1])
    if end - first > 1:
        middle = points[(first + end) // 2]
        split = (*modes[: k + 1], *modes[k:])
        yield resettled(
            replace(
                choice,
                cuts=(*cuts[: k + 1], middle, *cuts[k + 1 :]),
                modes=split,
                block=block + (block > k),
            )
        )
    if k == choice.last:
        return
    joined = (*modes[:k], *modes[k + 1 :])
    yield resettled(
        replace(
            choice, cuts=(*cuts[: k + 1], *cuts[k + 2 :]), modes=joined, block=block - (block > k)
        )
    )
    for point in (points[end - 1], points[end + 1]):
        if cuts[k] < point < cuts[k + 2]:
            yield resettled(replace(choice, cuts=(*cuts[: k + 1], point, *cuts[k + 2 :])))


def _others(choice: Strategy, k: int) -> Iterator[Mode]:
    """Modes for shard k that differ in one way from its own, or in what goes together."""
    shard, place, mode = choice.shards[k], place_of(choice, k), choice.modes[k]
    changed = [replace(mode, params=params, update=update) for params, update in HELD]
    if mode.params == "streamed":  # a graph needs the parameters that it was made with
        kept = replace(mode, params="kept", activations="saved", spilled=False)
        changed += [kept, replace(kept, params="resident", update="device")]
    elif mode.activations == "saved":
        changed += [Mode(), Mode(activations="offload")]
    changed += [replace(mode, activations=act) for act in _ACTS]
    changed.append(replace(mode, spilled=not mode.spilled))
    for other in dict.fromkeys(changed):
        if other != mode and possible(shard, other, place):
            yield other


def with_mode(choice: Strategy, k: int, mode: Mode) -> Strategy:
    """The choice with another mode for shard k."""
    return replace(choice, modes=(*choice.modes[:k], mode, *choice.modes[k + 1 :]))


def place_of(choice: Strategy, k: int) -> Place:
    """Where a shard of the choice is."""
    return Place(not k, k == choice.last, choice.turn and choice.block <= k)


def resettled(choice: Strategy) -> Strategy:
    """The choice with modes that are possible where its shards are now."""
    modes = tuple(
        settled(shard, mode, place_of(choice, k))
        for k, (shard, mode) in enumerate(zip(choice.shards, choice.modes, strict=True))
    )
    return replace(choice, modes=modes)
