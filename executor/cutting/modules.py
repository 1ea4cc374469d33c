"""Layers from the model's own lists of modules: what a run of the model shows of them.

Calls of the listed modules are the layers. What the model does between two of them is taken along
by running its own code (slices.Slice), but where it only hands tensors on there is nothing to run.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from executor.cutting.building import Builder
from executor.cutting.calling import SEED, fresh_copy, isolated, samples
from executor.cutting.flow import Flow
from executor.cutting.needs import Compared, Growth
from executor.cutting.parts import Unsupported
from executor.cutting.record import Call, Record, record
from executor.cutting.shells import bytes_of
from profiles.schema import Cut

_LEAST_SHARE = 0.3  # of the parameters outside embeddings that must be in listed modules

Listing = Callable[[nn.Module, Record], list[Call]]


def cut(
    listing: Listing, model: nn.Module, batches: Sequence[Any], has_loss: bool
) -> tuple[list[nn.Module], Cut]:
    """The layers of the model and how they were cut; the second batch is like the first, with
    fewer samples or as many.

    Unsupported when `listing` does not show them, and whatever running the model raises.
    """
    sizes = samples(batches[0]), samples(batches[1])
    run, growth = _recorded(model, batches[0]), Growth(sizes[0], None)
    if sizes[1] < sizes[0]:
        growth = Compared(run, _recorded(model, batches[1], SEED + 1), sizes)
    layers = sorted(listing(model, run), key=lambda call: call.start)
    _check_share(model, layers)
    found = _layers(model, Flow(run, layers, has_loss), growth)
    paths = {module: path for path, module in model.named_modules()}
    listed = tuple(paths[call.module] for call in layers)
    return found, Cut("modules", listed, sizes[0], growth.noted)


def again(model: nn.Module, inputs: Any, cut: Cut, has_loss: bool) -> list[nn.Module]:
    """The layers of a model that was cut so before, from one run; `inputs` are as many samples as
    then."""
    run = _recorded(model, inputs)
    layers = [run.once[model.get_submodule(path)] for path in cut.paths]
    flow = Flow(run, layers, has_loss)
    return _layers(model, flow, Growth(samples(inputs), cut.grows))


def _recorded(model: nn.Module, inputs: Any, seed: int = SEED) -> Record:
    with isolated(model, seed):
        return record(model, fresh_copy(inputs))


def _layers(model: nn.Module, flow: Flow, growth: Growth) -> list[nn.Module]:
    """The layers of a recorded run; Unsupported for fewer than two."""
    found = Builder(model, flow, growth).slices()
    if len(found) < 2:
        raise Unsupported(
            "all its parameters are in one layer" if found else "it has no parameters"
        )
    return found


def opened(share: float, model: nn.Module, run: Record) -> list[Call]:
    """The calls of the modules in the model's outermost lists, each called once.

    A list is an nn.ModuleList or a plain nn.Sequential. Inside a listed module that holds more
    than this share of the model's parameters, its own lists count.
    """
    once, most = run.once, share * bytes_of(model)

    def inside(module: nn.Module) -> list[Call]:
        found: list[Call] = []
        for child in module.children():
            members = list(child.children())
            if is_list(child) and members and all(member in once for member in members):
                for member in members:
                    found += (bytes_of(member) > most and inside(member)) or [once[member]]
            else:
                found += inside(child)
        return found

    calls = {call.number: call for call in inside(model)}
    return [c for c in calls.values() if not calls.keys() & set(c.parents)]


def children(model: nn.Module, run: Record) -> list[Call]:
    """The calls of the modules that the model itself is made of, each called once."""
    while len(parts := [child for child in model.children() if bytes_of(child)]) == 1:
        (model,) = parts
    return [run.once[child] for child in parts if child in run.once]


def is_list(module: nn.Module) -> bool:
    """True for an nn.ModuleList, or an nn.Sequential with no forward of its own."""
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return plain or isinstance(module, nn.ModuleList)


def _check_share(model: nn.Module, layers: Sequence[Call]) -> None:
    """Unsupported for layers that are none, or only a small part of the model."""
    if not layers:
        raise Unsupported("it has no list of modules each of which is called once")
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    embedded = {p for module in embeddings for p in module.parameters()}
    own = [p for p in model.parameters() if p not in embedded]
    inside = {p for call in layers for p in call.module.parameters()}
    share = sum(p.nbytes for p in own if p in inside) / max(1, sum(p.nbytes for p in own))
    if own and share < _LEAST_SHARE:
        raise Unsupported(f"its lists of modules hold only {share:.0%} of its parameters")
