"""Cuts against brute force."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st
from support import synthetic

from planner.shards.costs import TaskCosts
from planner.shards.cuts import Caps, cheapest, cut_points, layer_graph
from profiles.schema import Task


def price(costs: TaskCosts, cuts: tuple[int, ...], shard_us: int) -> int:
    """What a cut costs: forwards of all shards but the last, and a price per shard."""
    forward = sum(costs.shard(a, b).forward_us for a, b in list(pairwise(cuts))[:-1])
    return costs.microbatches * forward + shard_us * (len(cuts) - 1)


@given(st.integers(1, 7), st.integers(0, 99), st.integers(1, 6), st.integers(1, 6))
def test_no_other_cut_within_the_caps_is_cheaper(
    layers: int, seed: int, param_mib: int, transient_kib: int
) -> None:
    """All subsets of cut points, tried one by one, contain nothing cheaper."""
    costs = TaskCosts(synthetic.task("a", layers=layers, seed=seed), 4)
    caps = Caps(param_mib << 20, transient_kib << 18)
    found = cheapest(costs, list(range(layers + 1)), caps, 50)
    allowed = []
    for count in range(layers):
        for inner in combinations(range(1, layers), count):
            cuts = (0, *inner, layers)
            shards = [costs.shard(a, b) for a, b in pairwise(cuts)]
            if all(
                s.param_bytes <= caps.param_bytes
                and s.backward_transient_bytes <= caps.transient_bytes
                for s in shards
            ):
                allowed.append(price(costs, cuts, 50))
    assert (found is None) == (not allowed)
    if found:
        assert price(costs, found, 50) == min(allowed)


def test_tied_layers_are_never_separated() -> None:
    """A tie between the first and the third layer leaves only the cuts outside it."""
    task = synthetic.task("a", layers=5)
    tied = Task(**{f: getattr(task, f) for f in task.__struct_fields__} | {"ties": ((0, 2),)})
    assert cut_points(layer_graph(tied)) == [0, 3, 4, 5]
