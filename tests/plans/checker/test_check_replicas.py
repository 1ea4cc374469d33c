"""The order in which replicas are added: of all that there are two are sound."""

from collections.abc import Iterator, Sequence

from support import piped, synthetic

from planner.lowering.trees import Join
from plans.additions import additions
from plans.checker.check import violations

IN_TURN, IN_HALVES = "(((0)+(1))+(2))+(3)", "((0)+(1))+((2)+(3))"


def trees(heads: Sequence[int]) -> Iterator[tuple[Join, ...]]:
    """All ways to add up the sums of these devices on device 0, two at a time."""
    if len(heads) == 1:
        yield ()
    for to in heads:
        for other in heads:
            if other and other != to:
                for rest in trees([head for head in heads if head != other]):
                    yield (Join(to, other), *rest)


def test_four_replicas_are_added_in_turn_or_in_halves() -> None:
    """Any other order, though it counts every replica once, is refused by the update."""
    made = piped.piped(synthetic.task("a", layers=1, batch=4), (0, 1), [tuple(range(4))], "gpipe")
    vars(made)["homes"] = (0,)
    seen = set()
    for tree in trees(range(4)):
        vars(made)["added"] = (tree,)
        plan = piped.planned(made)
        (told,) = additions(plan)["a"]
        found = violations(plan)
        seen.add(told.sum)
        assert (not found) == (told.sum in (IN_TURN, IN_HALVES)), (tree, found)
        assert all(line.startswith("a.s0.U0: finds gradients added as (") for line in found)
    assert seen > {IN_TURN, IN_HALVES}
