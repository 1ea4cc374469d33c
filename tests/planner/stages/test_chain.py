"""Cuts of chains, compared with all cuts there are."""

from itertools import combinations, pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.stages import Cuts, Place, Team, Work, cut, cut_freely, shared_out, within

works = st.one_of(
    st.builds(Work, *(st.integers(0, high) for high in (9, 3, 12, 24))),
    st.integers(1, 4).map(Work),
)


def chains(kinds: int) -> st.SearchStrategy[list[list[Work]]]:
    """As many layers on every kind of device."""
    return st.sampled_from([1, 2, 4, 5, 6, 7]).flatmap(
        lambda count: st.lists(
            st.lists(works, min_size=count, max_size=count), min_size=kinds, max_size=kinds
        )
    )


Hopping = list[list[int]]
"""What each layer's input takes, by boundary between stages."""


def stage(layers: list[Work], first: int, end: int, around: Hopping | None = None) -> Work:
    """What some layers take together: sums, and what crosses the cuts at both ends."""
    front, back = around or [[work.hop for work in layers]] * 2
    hops = [hop[cut] for hop, cut in ((front, first), (back, end)) if 0 < cut < len(layers)]
    own = layers[first:end]
    return Work(
        sum(w.time for w in own), sum(w.once for w in own), sum(hops), sum(w.exchange for w in own)
    )


def load(
    layers: list[list[Work]],
    team: Team,
    first: int,
    end: int,
    microbatches: int,
    around: Hopping | None = None,
) -> int:
    """The longest of a stage's replicas, their microbatches shared out."""
    replicas = [stage(layers[kind], first, end, around) for kind in team]
    counts = shared_out(microbatches, replicas)
    return max(w.load(c, len(team)) for w, c in zip(replicas, counts, strict=True))


def loads(layers: list[list[Work]], found: Cuts, microbatches: int) -> list[int]:
    """Of all stages of a result."""
    stages = zip(found.teams, pairwise(found.points), strict=True)
    return [load(layers, team, *ends, microbatches) for team, ends in stages]


def every(layers: list[list[Work]], teams: list[Team], microbatches: int) -> list[Cuts]:
    """All cuts into these stages, with their bottlenecks and no shares."""
    end = len(layers[0])
    ways = combinations(range(1, end), len(teams) - 1)
    found = [Cuts(0, (0, *way, end), tuple(teams), ()) for way in ways]
    return [Cuts(max(loads(layers, way, microbatches)), way.points, way.teams, ()) for way in found]


@settings(max_examples=100, deadline=None)
@given(
    chains(2),
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_cuts_into_given_teams_are_the_best_there_are(
    layers: list[list[Work]], replicas: list[list[int]], microbatches: int
) -> None:
    """The least bottleneck of all cuts, of that the evenest, and shares that give it."""
    teams = [tuple(sorted(team)) for team in replicas]
    found = cut(layers, teams, microbatches)
    ways = every(layers, teams, microbatches)
    if not ways:
        assert found is None
        return
    assert found is not None
    assert found.teams == tuple(teams)
    least = min(way.bottleneck for way in ways)
    assert max(loads(layers, found, microbatches)) == found.bottleneck == least

    def squares(way: Cuts) -> int:
        return sum(load * load for load in loads(layers, way, microbatches))

    assert squares(found) == min(squares(way) for way in ways if way.bottleneck == least)
    for team, ends, shares in zip(found.teams, pairwise(found.points), found.shares, strict=True):
        assert shares == shared_out(microbatches, [stage(layers[k], *ends) for k in team])


def layouts(devices: list[int]) -> set[tuple[Team, ...]]:
    """All orders of all teams of some of these devices."""
    all_kinds = [kind for kind, count in enumerate(devices) for _ in range(count)]
    found = set()
    for count in range(1, len(all_kinds) + 1):
        for order in permutations(all_kinds, count):
            for inner in product((False, True), repeat=count - 1):
                ends = [0, *(at for at, cut in enumerate(inner, 1) if cut), count]
                found.add(tuple(tuple(sorted(order[a:b])) for a, b in pairwise(ends)))
    return found


@settings(max_examples=40, deadline=None)
@given(chains(2), st.lists(st.integers(0, 2), min_size=2, max_size=2), st.integers(1, 4))
def test_free_cuts_are_the_best_of_all_layouts(
    layers: list[list[Work]], devices: list[int], microbatches: int
) -> None:
    """Of every order of the kinds, with every number of replicas."""
    found = cut_freely(layers, devices, microbatches)
    given_teams = [cut(layers, teams, microbatches) for teams in layouts(devices)]
    ways = [way.bottleneck for way in given_teams if way]
    assert (found and found.bottleneck) == min(ways, default=None)


@settings(max_examples=40, deadline=None)
@given(chains(2), st.lists(st.integers(1, 2), min_size=1, max_size=3), st.integers(1, 4))
def test_kinds_of_given_replicas_are_the_best_there_are(
    layers: list[list[Work]], replicas: list[int], microbatches: int
) -> None:
    """Of every layout with that many replicas, front first."""
    devices = [2, 1]
    found = cut_freely(layers, devices, microbatches, replicas=replicas)
    teams = [t for t in layouts(devices) if [len(team) for team in t] == replicas]
    ways = [way.bottleneck for t in teams if (way := cut(layers, t, microbatches))]
    assert (found and found.bottleneck) == min(ways, default=None)
    assert found is None or [len(team) for team in found.teams] == replicas


@settings(max_examples=100, deadline=None)
@given(
    chains(1),
    st.lists(st.integers(0, 5), min_size=7, max_size=7),
    st.integers(0, 25),
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
)
def test_no_stage_is_larger_than_its_place_allows(
    layers: list[list[Work]], sizes: list[int], limit: int, replicas: list[int]
) -> None:
    """Only cuts whose stages fit, with what is in flight there, are compared."""

    sizes = sizes[: len(layers[0])]
    fixed = sizes[::-1]

    def fits(place: Place, first: int, end: int) -> bool:
        flying = sum(sizes[first:end]) * place.in_flight(3)
        return sum(fixed[first:end]) + flying <= limit

    teams = [(0,) * count for count in replicas]
    behind = [sum(replicas[at:]) for at in range(len(replicas))]
    ways = [
        way.bottleneck
        for way in every(layers, teams, 3)
        if all(
            fits(Place(team, devices), *ends)
            for team, devices, ends in zip(teams, behind, pairwise(way.points), strict=True)
        )
    ]
    found = cut(layers, teams, 3, fits=within(fixed, sizes, [limit], 3))
    assert (found and found.bottleneck) == min(ways, default=None)


@settings(max_examples=100, deadline=None)
@given(
    chains(2),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 30), min_size=7, max_size=7), min_size=3, max_size=3),
)
def test_links_between_stages_may_differ(
    layers: list[list[Work]], kinds: list[int], all_hops: Hopping
) -> None:
    """Each boundary takes what its own link takes, also where it is at the better cut."""
    teams = [(kind,) for kind in kinds]
    hops = [hop[: len(layers[0])] for hop in all_hops[: len(kinds) - 1]]
    around = [[[0] * 7, *hops, [0] * 7][s : s + 2] for s in range(len(kinds))]
    ways = [
        max(
            load(layers, team, *ends, 3, own)
            for team, ends, own in zip(teams, pairwise(way.points), around, strict=True)
        )
        for way in every(layers, teams, 3)
    ]
    found = cut(layers, teams, 3, hops=hops)
    assert (found and found.bottleneck) == min(ways, default=None)


def test_tied_layers_stay_in_one_stage() -> None:
    """With only the points between which nothing is shared; no two stages are left here."""
    layers = [[Work(10)] * 8]
    free = cut(layers, [(0,), (0,)], 1)
    tied = cut(layers, [(0,), (0,)], 1, points=(0, 1, 6, 8))
    assert free is not None
    assert free.points == (0, 4, 8)
    assert tied is not None
    assert (tied.points, tied.bottleneck) == ((0, 6, 8), 60)
    assert cut(layers, [(0,), (0,)], 1, points=(0, 8)) is None


@pytest.mark.parametrize(("devices", "flying"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_in_flight_are_as_many_as_devices_from_there_on(devices: int, flying: int) -> None:
    """Shared by the replicas; never more than there are microbatches."""
    assert Place((0, 0), devices).in_flight(9) == flying
    assert Place((0,), devices).in_flight(2) == min(2, devices)


def test_four_chunks_on_two_devices() -> None:
    """Stages in turn on both kinds of device: the faster one gets the larger chunks."""
    slow, fast = [Work(2)] * 12, [Work(1)] * 12
    found = cut([slow, fast], [(0,), (1,)] * 2, 1)
    assert found is not None
    assert (found.points, found.bottleneck) == ((0, 2, 6, 8, 12), 4)
