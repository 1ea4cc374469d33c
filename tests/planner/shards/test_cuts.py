"""Cuts against brute force."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import synthetic

from planner.shards.costs import TaskCosts
from planner.shards.cuts import cheapest, cut_points
from profiles.schema import Task, Time


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
    params, transients = param_mib << 20, transient_kib << 18
    found = cheapest(costs, list(range(layers + 1)), params, transients, 50)
    allowed = []
    for count in range(layers):
        for inner in combinations(range(1, layers), count):
            cuts = (0, *inner, layers)
            shards = [costs.shard(a, b) for a, b in pairwise(cuts)]
            if all(
                s.param_bytes <= params and s.backward_transient_bytes <= transients for s in shards
            ):
                allowed.append(price(costs, cuts, 50))
    assert (found is None) == (not allowed)
    if found:
        assert price(costs, found, 50) == min(allowed)


def test_parts_of_a_backward_are_those_of_the_layers() -> None:
    """A shard has times of both parts, and what is left between, where all its layers have. In the
    first part no graph is freed: what layers behind the one at work saved stays, with gradients.
    """
    task = synthetic.task("a", layers=3)
    layers = [task.layers[0]]
    for k, layer in enumerate(task.layers[1:], 1):
        times = {name: Time(us, us, us, 1) for name, us in (("input", 3 * k), ("weight", 5 * k))}
        costs = tuple(
            replace(
                cost,
                backward_input=times["input"],
                backward_weight=times["weight"],
                left_bytes=256 * k,
                kept_grad_bytes=10 * k,
                input_peak_bytes=10**k,
                saved_bytes=100 * k,
                out_bytes=1,
            )
            for cost in layer.costs
        )
        layers.append(replace(layer, costs=costs))
    costs = TaskCosts(replace(task, layers=tuple(layers)), 4)
    found = [costs.shard(*cut) for cut in ((0, 3), (0, 1), (1, 2), (1, 3))]
    assert [
        (s.input_us, s.weight_us, s.left_bytes, s.kept_grad_bytes, s.input_transient_bytes)
        for s in found
    ] == [
        (None, None, None, 30, 0),
        (None, None, None, 0, 0),
        (3, 5, 256, 10, 10),
        (9, 15, 768, 30, max(10 + 1 + 200 + 20, 100 + 100)),
    ]


def test_tied_layers_are_never_separated() -> None:
    """A tie between the first and the third layer leaves only the cuts outside it."""
    task = synthetic.task("a", layers=5)
    tied = Task(**{f: getattr(task, f) for f in task.__struct_fields__} | {"ties": ((0, 2),)})
    assert cut_points(tied) == [0, 3, 4, 5]
