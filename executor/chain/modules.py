"""Layers from the model's own lists of modules: what a run of the model shows of them.

Calls of the listed modules are the layers. What the model does between two of them is taken along
by running its own code (gap.Gap), but where it only hands tensors on there is nothing to run.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from executor.chain.building import Builder
from executor.chain.flow import Flow, Unsupported
from executor.chain.listed import Listing, check_share, twins
from executor.chain.needs import Needs
from executor.chain.pieces import joined
from executor.chain.record import record
from executor.chain.same import SEED, isolated


def cut(
    listing: Listing, model: nn.Module, batches: Sequence[Any], has_loss: bool
) -> tuple[list[nn.Module], bool]:
    """The layers of the model, for any batch size; the second batch is like the first, with fewer
    samples or as many.

    Unsupported when `listing` does not show them, and whatever running the model raises.
    """
    inputs, smaller = batches
    with isolated(model):
        large = small = record(model, fresh_copy(inputs))
    if samples(smaller) < samples(inputs):
        with isolated(model, SEED + 1):
            small = record(model, fresh_copy(smaller))
    layers = sorted(listing(model, large), key=lambda call: call.start)
    check_share(model, layers)
    alike = twins(large, small, layers)
    needs = Needs(Flow(large, layers), has_loss)
    places = needs.places()
    boundaries = needs.boundaries(places)
    builder = Builder(model, needs, small, alike)
    pieces = [
        builder.piece(place, before, after)
        for place, before, after in zip(places, [[], *boundaries], boundaries, strict=False)
    ]
    found = joined(pieces)
    if len(found) < 2:
        raise Unsupported(
            "all its parameters are in one layer" if found else "it has no parameters"
        )
    return found, True


def samples(inputs: Any) -> int:
    """How many samples a batch has."""
    return next(len(x) for x in tree_leaves(inputs) if isinstance(x, Tensor))


def fresh_copy(inputs: Any) -> Any:
    """The inputs as tensors that a model may change."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
