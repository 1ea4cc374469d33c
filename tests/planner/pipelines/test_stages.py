"""Cuts of chains, compared with all cuts there are."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipelines.stages import StageWork, cut

works = st.one_of(
    st.builds(StageWork, *(st.integers(0, high) for high in (9, 3, 12, 24)), st.just(0)),
    st.integers(1, 4).map(StageWork),
)
chains = st.lists(works, min_size=1, max_size=7)
stages = st.lists(st.integers(1, 3), min_size=1, max_size=4)  # replicas of each


def load(layers: list[StageWork], first: int, end: int, replicas: int, microbatches: int) -> int:
    """The time for which a replica computes or sends; each owns an equal part of the parameters."""
    own, each = layers[first:end], -(-microbatches // replicas)
    sent = sum(layers[cut].hop for cut in (first, end) if 0 < cut < len(layers))
    owned = -(-2 * (replicas - 1) * sum(work.exchange for work in own) // replicas)
    computes = each * sum(work.time for work in own) + sum(work.once for work in own)
    return max(computes, each * sent + owned)


def loads(
    layers: list[StageWork], ends: tuple[int, ...], replicas: list[int], many: int
) -> list[int]:
    """Of all stages."""
    both = zip(pairwise(ends), replicas, strict=True)
    return [load(layers, *stage, count, many) for stage, count in both]


def every(layers: list[StageWork], replicas: list[int]) -> list[tuple[int, ...]]:
    """All cuts into these stages."""
    end = len(layers)
    return [(0, *way, end) for way in combinations(range(1, end), len(replicas) - 1)]


@settings(max_examples=100, deadline=None)
@given(chains, stages, st.integers(1, 5))
def test_cuts_are_the_best_there_are(
    layers: list[StageWork], replicas: list[int], microbatches: int
) -> None:
    """The least longest load of all cuts, and of these the evenest."""
    found = cut(layers, replicas, microbatches, range(len(layers) + 1))
    ways = [loads(layers, way, replicas, microbatches) for way in every(layers, replicas)]
    if not ways:
        assert found == ()
        return
    ours = loads(layers, found, replicas, microbatches)
    least = min(map(max, ways))
    assert max(ours) == least

    def squares(way: list[int]) -> int:
        return sum(load * load for load in way)

    assert squares(ours) == min(squares(way) for way in ways if max(way) == least)


@settings(max_examples=100, deadline=None)
@given(chains, st.lists(st.integers(0, 3), min_size=7, max_size=7), stages)
def test_layers_have_the_replicas_that_they_must(
    layers: list[StageWork], teams: list[int], replicas: list[int]
) -> None:
    """Only cuts whose stages have them are compared."""
    layers = [one._replace(team=team) for one, team in zip(layers, teams, strict=False)]

    def fits(count: int, first: int, end: int) -> bool:
        return {one.team for one in layers[first:end]} <= {0, count}

    ways = [
        max(loads(layers, way, replicas, 3))
        for way in every(layers, replicas)
        if all(fits(n, *stage) for n, stage in zip(replicas, pairwise(way), strict=True))
    ]
    found = cut(layers, replicas, 3, range(len(layers) + 1))
    assert (max(loads(layers, found, replicas, 3)) if found else None) == min(ways, default=None)


def test_tied_layers_stay_in_one_stage() -> None:
    """With only the points between which nothing is shared; no two stages are left here."""
    layers = [StageWork(10)] * 8
    assert cut(layers, (1, 1), 1, range(9)) == (0, 4, 8)
    assert cut(layers, (1, 1), 1, (0, 1, 6, 8)) == (0, 6, 8)
    assert cut(layers, (1, 1), 1, (0, 8)) == ()


def test_a_replica_sends_its_part_of_what_owners_get_and_give() -> None:
    """Of three replicas each sends two thirds of its gradients, and a third of the parameters to
    each of the two others. Where that takes 40 µs the layer has replicas, where it takes 120 none.
    """
    ends = [
        cut(
            [StageWork(10), StageWork(10), StageWork(10, exchange=us), StageWork(10)],
            (1, 3),
            3,
            range(5),
        )
        for us in (30, 90)
    ]
    assert ends == [(0, 1, 4), (0, 3, 4)]
