"""Layers from the model's own lists of modules: what a run of the model shows of them.

Calls of the listed modules are the layers. What the model does between two of them is taken along
by running its own code (gap.Gap), but where it only hands tensors on there is nothing to run.
"""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from executor.chain.building import Builder
from executor.chain.flow import Flow, Unsupported
from executor.chain.listed import check_alike, listed
from executor.chain.needs import Needs
from executor.chain.pieces import joined
from executor.chain.record import record
from executor.chain.same import SEED, isolated


def cut(model: nn.Module, inputs: Any, smaller: Any, has_loss: bool) -> list[nn.Module]:
    """The layers of the model; `smaller` is like `inputs` with fewer samples, or as many.

    Unsupported when its lists do not show them, and whatever running the model raises.
    """
    with isolated(model):
        large = small = record(model, fresh_copy(inputs))
    if samples(smaller) < samples(inputs):
        with isolated(model, SEED + 1):
            small = record(model, fresh_copy(smaller))
    layers = listed(model, large)
    check_alike(large, small)
    needs = Needs(Flow(large, layers), has_loss)
    places = needs.places()
    boundaries = needs.boundaries(places)
    builder = Builder(model, needs, small)
    pieces = [
        builder.piece(place, before, after)
        for place, before, after in zip(places, [[], *boundaries], boundaries, strict=False)
    ]
    found = joined(pieces)
    if len(found) < 2:
        raise Unsupported(
            "all its parameters are in one layer" if found else "it has no parameters"
        )
    return found


def samples(inputs: Any) -> int:
    """How many samples a batch has."""
    return next(len(x) for x in tree_leaves(inputs) if isinstance(x, Tensor))


def fresh_copy(inputs: Any) -> Any:
    """The inputs as tensors that a model may change."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs)
