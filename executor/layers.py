"""A model as a chain of layers: the units that are profiled, and that shards are made of."""

from collections.abc import Sequence

from torch import nn

from executor.errors import WorkloadError


def split(model: nn.Module) -> list[nn.Module]:
    """The layers in the order they run: an nn.Sequential's or nn.ModuleList's children.

    Any other model is one layer. Each layer maps one tensor to one tensor. WorkloadError for an
    empty chain and for parameters that belong to no layer.
    """
    layers = _chain(model)
    if not layers:
        raise WorkloadError(f"the model, a {type(model).__name__}, has no layers")
    held = {id(p) for layer in layers for p in layer.parameters()}
    loose = [name for name, p in model.named_parameters() if id(p) not in held]
    if loose:
        raise WorkloadError(
            f"parameter {loose[0]} belongs to no layer of the model; move it into one of them"
        )
    return layers


def _chain(model: nn.Module) -> list[nn.Module]:
    """A Sequential that overrides `forward` is no chain: its children may run in any way."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return list(model)
    return [model]


def ties(layers: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups of layer indices that share a Parameter, directly or through others, ascending."""
    groups: list[set[int]] = []
    holders: dict[int, set[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            holders.setdefault(id(parameter), set()).add(index)
    for holder in holders.values():
        if len(holder) > 1:
            touching = [group for group in groups if group & holder]
            groups = [group for group in groups if not group & holder]
            groups.append(holder.union(*touching))
    return tuple(sorted(tuple(sorted(group)) for group in groups))
