"""Links within groups of devices and between them."""

from planner.stages import Hops, Work, cut
from profiles.schema import Rate

MACHINES = Hops((0, 0, 1, 1), near=Rate(10**9, 5), far=Rate(10**8, 50))


def test_a_boundary_takes_the_slowest_link_of_its_replicas() -> None:
    """Within a machine 1,000 bytes take a us, between machines ten; a part of a us counts whole."""
    assert MACHINES.us(0, 1, 1_001) == 5 + 2
    assert MACHINES.us(1, 2, 1_000) == 50 + 10
    stages = [(0,), (1, 2), (3,)]
    assert MACHINES.boundaries(stages, [0, 1_000]) == [[50, 60], [50, 60]]
    assert MACHINES.boundaries([(0,), (1,), (2,)], [2_000]) == [[7], [70]]


def test_the_cut_between_machines_is_where_little_is_sent() -> None:
    """Two machines of two devices: the middle cut goes to the small boundary, though stages get
    longer; with links all alike it is in the middle."""
    sizes = [10**6] * 5 + [0] + [10**6] * 2
    stages = [(0,), (1,), (2,), (3,)]
    for hops, middle, longest in (
        (MACHINES.boundaries(stages, sizes), 5, 3_000),
        (None, 4, 2_000),
    ):
        found = cut([[Work(1_000)] * 8], [(0,)] * 4, 1, hops=hops)
        assert found is not None
        assert (found.points[2], found.bottleneck) == (middle, longest)
