"""The search: more of anything is never worse, the same is the same, and only what is known."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.searches import TENTH
from support.strategies import Small, faster, fitted, small

from planner import Infeasible, build
from planner.bounds import Solution, Terms
from planner.inputs.limits import Limits, default
from planner.inputs.problem import Effort
from planner.lowering import DeviceRound, host_bytes
from planner.search import guided
from planner.search.guided import Guided, Rounds
from planner.search.local_search import improve
from planner.search.task import Candidate, Search, lay_out_on
from planner.shards import Strategy
from planner.shards.shard_cost import Links
from profiles.codec import pretty
from profiles.schema import LayerCost, Time

PLENTY_S = 60.0

pytestmark = pytest.mark.usefixtures("quick")


def found(
    case: Small,
    links: Links,
    device_bytes: int,
    seconds: float = PLENTY_S,
    limits: Limits | None = None,
) -> Candidate | None:
    """What the search finds in time, if there is anything."""
    effort = Effort(time.monotonic() + seconds, 0, limits or default())
    try:
        return Search(case.task, links, device_bytes).best(effort)
    except Infeasible:
        return None


def period_us(case: Small, links: Links, device_bytes: int) -> float:
    best = found(case, links, device_bytes, limits=TENTH)
    return best.program.period_us if best else float("inf")


@settings(max_examples=3)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([105, 150, 300]))
def test_more_memory_or_a_faster_link_is_never_slower(seed: int, layers: int, percent: int) -> None:
    """More of either, in percent of what there was, and the period is no longer."""
    case = small(seed, layers)
    before = period_us(case, case.links, case.device_bytes)
    assert period_us(case, case.links, case.device_bytes * percent // 100) <= before
    for way in ("h2d", "d2h"):
        assert period_us(case, faster(case.links, way, percent), case.device_bytes) <= before


def test_too_little_memory_is_told_with_what_all_of_it_needs() -> None:
    """From there on nothing has to move; with a byte less there is no such plan."""
    case = small(1, 3)
    with pytest.raises(Infeasible) as short:
        Search(case.task, case.links, 1).best(Effort(time.monotonic() + PLENTY_S, 0, TENTH))
    told = re.search(
        r"all of it can stay on the device from .* \((\d+) bytes\) on", str(short.value)
    )
    assert told
    starts = Search(case.task, case.links, 1).starts
    whole = [starts.whole(costs) for costs in starts.sizes]
    fits = [[lay_out_on(one, case.links, int(told[1]) - n) for one in whole] for n in (0, 1)]
    assert any(fits[0])
    assert not any(fits[1])


@settings(max_examples=2)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_the_same_problem_has_the_same_plan(seed: int, layers: int) -> None:
    case = small(seed, layers)
    plans = [build(case.problem, profile_sha256="0" * 64, seed=seed) for _ in range(2)]
    assert pretty(plans[0]) == pretty(plans[1])


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_what_is_found_fits(seed: int, layers: int) -> None:
    """The strategy laid out again is within the device's memory and has the program's period."""
    case = small(seed, layers)
    best = found(case, case.links, case.device_bytes)
    if best:
        made = fitted(best.strategy, case.links, case.device_bytes)
        assert made
        assert made.period_us == best.program.period_us


def test_a_strategy_is_made_once_however_many_starts_lead_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[tuple[object, bool]]()

    def noted(strategy: Strategy, room: int) -> Strategy | None:
        made.append((strategy.key, strategy.lumped))
        return host_bytes.fitted(strategy, room)

    monkeypatch.setattr(guided, "fitted", noted)
    case = small(2, 4)
    assert found(case, case.links, case.device_bytes)
    assert len(made) == len({*made}) > 10


def test_a_search_ends_once_nothing_is_much_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is near the bound is not improved, and a start that is near it is the last one."""
    case, starts, every = small(5, 4), list[DeviceRound](), Guided.every

    def counted(guides: Guided) -> Iterator[DeviceRound]:
        for made in every(guides):
            starts.append(made)
            yield made

    def ended(bound_us: int) -> tuple[bool, int, int, int]:
        starts.clear()
        one = replace(search(case), bound_us=bound_us)
        us = one.best(Effort(time.monotonic() + PLENTY_S, 0, TENTH)).program.period_us
        return one.done, us, len(starts), len(one.rounds.known)

    monkeypatch.setattr(Guided, "every", counted)
    whole, best, guided_, made = ended(0)
    assert not whole
    assert ended(best * 255 // 256) == (False, best, guided_, made)
    done, us, _, fewer = ended(best)
    assert (done, us) == (True, best)
    assert fewer < made
    assert ended(1 << 40)[::2] == (True, 1)


def test_a_round_that_is_short_enough_is_not_improved() -> None:
    one, effort = search(small(5, 4)), Effort(time.monotonic() + PLENTY_S, 0, TENTH)
    start, tried = next(Guided(one.starts, one.rounds, effort).every()), list[Strategy]()
    for enough_us in (0, start.period_us):
        tried.clear()
        improve(start, one.starts.points, tried.append, 9_000, enough_us, effort)
        assert bool(tried) == (enough_us == 0)


def test_long_chains_and_steps_of_few_microbatches_are_searched_for_longer() -> None:
    """From 80 points to cut at on no longer; of several sizes of microbatches it is the mean."""

    def ops(layers: int, *sizes: int) -> int:
        task = synthetic.task("t", layers=layers, batch=8)
        costs = tuple(one for one in task.batches if one.microbatch in sizes)
        case = replace(small(1, 3), task=structs.replace(task, batches=costs))
        return search(case)._ops(replace(default(), search_ops=8_000))

    assert [ops(layers, 1) for layers in (19, 39, 79, 90)] == [5_625, 6_750, 9_000, 9_000]
    assert [ops(79, size) for size in (1, 4, 8)] == [9_000, 12_000, 16_000]
    assert ops(79, 4, 8) == 14_000


def rough(key: str, period_us: int) -> Any:
    """A round by that key, as it is simulated in few ops."""
    strategy = Keyed(key)
    return SimpleNamespace(strategy=strategy, period_us=period_us, draft=SimpleNamespace(us=[0]))


@dataclass(frozen=True)
class Keyed:
    """A strategy by its key."""

    key: str
    lumped: bool = True


def search(case: Small) -> Search:
    return Search(case.task, case.links, case.device_bytes)


def test_more_are_simulated_while_the_best_turn_out_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The three best are 30 longer than they seemed; the fourth is not, and the fifth cannot be
    shorter."""
    longer = {"a": 130, "b": 131, "c": 132, "d": 110, "e": 120}
    monkeypatch.setattr(Rounds, "fitting", lambda _, one: rough(one.key, longer[one.key]))
    ends = [rough(*end) for end in (("e", 120), ("d", 110), ("a", 100), ("b", 101), ("c", 102))]
    finals = search(small(2, 4))._finals(ends, default())
    assert [(one.strategy.key, one.period_us) for one in finals] == [*longer.items()][:4]


def test_a_guide_has_less_memory_as_long_as_its_rounds_get_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, periods, rooms = small(2, 4), iter([100, 90, 95]), list[int]()

    def realised(_: Guided, guide: Solution) -> list[Any]:
        rooms.append(guide.terms.room_bytes)
        return [rough("a", next(periods))]

    def solved(_: Solution, terms: Terms, *__: object) -> Any:
        return SimpleNamespace(terms=terms)

    monkeypatch.setattr(Guided, "_realised", realised)
    monkeypatch.setattr(guided, "again", solved)
    starts, effort = search(case).starts, Effort(time.monotonic() + PLENTY_S, 0)
    terms = next(starts.programs(starts.sizes[0], default()))
    guides = Guided(starts, search(case).rounds, effort)
    made = [*guides._roomier(solved(Any, terms))]
    assert [one.period_us for one in made] == [100, 90, 95]
    assert rooms == [terms.room_bytes - n * (case.device_bytes // 24) for n in range(3)]


@pytest.mark.parametrize(
    ("count", "known", "found"),
    [(1, [1], False), (2, [1], True), (2, [1, 1], False), (1, [], True)],
)
def test_what_cannot_be_among_the_starts_is_not_laid_out(
    count: int, known: list[int], found: bool
) -> None:
    """Where as many rounds are known as the search goes on from, no longer ones are made."""
    case = small(5, 4)
    limits = replace(default(), search_starts=count)
    effort = Effort(time.monotonic() + PLENTY_S, 0, limits)
    rounds, periods = search(case).rounds, {False: [*known], True: [*known]}
    guides = Guided(search(case).starts, rounds, effort, periods)
    made = [one.period_us for one in guides.every()]
    assert bool(made) == bool(rounds.known) == found
    assert sorted([*periods[False], *periods[True]]) == sorted([*known, *known, *made])


def test_the_finest_shards_are_single_layers_of_a_deep_chain() -> None:
    """Of the load program: half of their bytes are on their way at once where they are of two."""
    deep = search(small(2, 80)).starts
    programs = deep.programs(deep.sizes[0], default())
    assert max(len(terms.items) for terms in programs) == 80


def packed(case: Small, pack_us: int, unpack_us: int) -> Small:
    """The case with measured packing: so much longer is every layer's forward, and backward."""

    def timed(cost: LayerCost) -> LayerCost:
        both, alone = cost.recompute_backward.median_us, cost.backward.median_us
        longer = both + pack_us + unpack_us, alone + unpack_us
        return structs.replace(
            cost,
            pack_backward=Time(longer[0], longer[0], longer[0], 1),
            unpack_backward=Time(longer[1], longer[1], longer[1], 1),
        )

    layers = (
        structs.replace(layer, costs=tuple(map(timed, layer.costs))) for layer in case.task.layers
    )
    return replace(case, task=structs.replace(case.task, layers=tuple(layers)))


@pytest.mark.parametrize("seed", [5, 33])
def test_measured_packing_is_what_ops_last(seed: int) -> None:
    """F and B of a shard that packs take as much longer as was measured, not what bytes say."""
    case = packed(small(seed, 3), 7, 5)
    best = found(case, case.links, case.device_bytes, limits=Limits())
    assert best
    lasts = {op.id: op.end_us - op.start_us for op in best.program.round}
    strategy, packing = best.strategy, 0
    for k, (shard, mode) in enumerate(zip(strategy.shards, strategy.modes, strict=True)):
        if mode.activations == "offload":
            count, packing = shard.end - shard.first, packing + 1
            name = f"{case.task.name}.s{k}."
            assert lasts[name + "F0"] == shard.graph_forward_us + 7 * count
            assert lasts[name + "B0"] == shard.graph_backward_us + 5 * count
    assert packing


@pytest.mark.parametrize("seed", [5])  # with a rate, packing is what they do
def test_nothing_is_packed_at_an_unknown_rate(seed: int) -> None:
    """Where copies inside the device were not measured, no activations are offloaded."""
    case = small(seed, 3)
    links = replace(case.links, d2d=None)
    best = found(case, links, case.device_bytes)
    assert best
    assert all(mode.activations != "offload" for mode in best.strategy.modes)
