"""Sharing out the microbatches of a stage: the longest load is the least there is."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from planner.stages import Work, dealt, shared_out

works = st.builds(Work, *(st.integers(0, 9) for _ in range(4)))


@given(st.integers(0, 6), st.lists(works, min_size=1, max_size=3))
def test_no_other_shares_have_a_shorter_longest_load(count: int, replicas: list[Work]) -> None:
    """Compared with every way to share them out."""

    def longest(shares: tuple[int, ...]) -> int:
        loads = zip(replicas, shares, strict=True)
        return max(work.load(share, len(replicas)) for work, share in loads)

    ways = product(range(count + 1), repeat=len(replicas))
    assert longest(shared_out(count, replicas)) == min(
        longest(way) for way in ways if sum(way) == count
    )


def test_a_replica_twice_as_fast_gets_two_of_three() -> None:
    """And they take turns, each microbatch with the replica that is done with it first."""
    assert dealt(6, [Work(10), Work(5)]) == [1, 0, 1, 1, 0, 1]
    assert shared_out(6, [Work(10), Work(5)]) == (2, 4)


def test_a_replica_sends_its_part_of_what_owners_get_and_give() -> None:
    """Of three replicas each sends two thirds of its gradients, and a third of the parameters to
    each of the two others."""
    assert Work(time=1, exchange=30).load(1, 3) == 40
    assert Work(time=1, hop=7, exchange=30).load(2, 3) == 54
