"""Rule 4 between kinds of rounds: a round of a kind finds the right values after any kind that a
segment has before it.

Each kind is proven as a program of its own. What is left to ask is if its rounds find in place
what they do not bring themselves (parameters that stay, most of all) where rounds of another kind
went before. One round of either, after enter, is enough:

- Barriers lie between kinds, and rounds one after the other find what overlapping ones would.
- Of what changes with every step a round finds the latest only where the round before it left it,
  since what came before that is older.
- What never changes stands after any number of rounds if no kind among them destroys it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product

from plans.checker.order import Phase
from plans.checker.symbolic import Run
from plans.schema import Plan
from plans.timing import runs
from plans.view import View

Pair = tuple[int, int]
"""A kind of rounds, and another that comes after it."""


def pairs(plan: Plan, programs: Iterable[str]) -> dict[str, frozenset[Pair]]:
    """For each of these programs the kinds that some segment has one after the other, at any
    distance."""
    found: dict[str, set[Pair]] = {name: set() for name in programs}
    for segment in plan.segments:
        if segment.kinds and segment.program in found:
            kinds = [kind for kind, _ in runs(segment)]
            last = {kind: at for at, kind in enumerate(kinds)}
            first = {kind: -at for at, kind in enumerate(reversed(kinds), 1 - len(kinds))}
            both = product(first, last)
            found[segment.program] |= {(a, b) for a, b in both if a != b and first[a] < last[b]}
    return {name: frozenset(own) for name, own in found.items()}


def following(
    views: Sequence[View], parts: Sequence[Sequence[Phase]], after: Collection[Pair]
) -> Iterator[str]:
    """One line per op and role of a kind that does not find what it should after another.

    For each kind its view and its phases; each is sound by itself."""
    start = Run(views[0])
    start.phase(parts[0][0], parts[0][0].order)
    rounds = [_first(own[1]) for own in parts]
    for one in sorted({earlier for earlier, _ in after}):
        before = start.fork(views[one])
        before.phase(parts[one][1], rounds[one])
        for other in sorted(later for earlier, later in after if earlier == one):
            then = before.fork(views[other])
            then.phase(parts[other][1], rounds[other], step=1)
            for line in then.found.values():
                yield f"{line} [kind {other} after kind {one}]"


def _first(phase: Phase) -> list[int]:
    """The nodes of round 0."""
    return [node for node in phase.order if node < len(phase.ops)]
