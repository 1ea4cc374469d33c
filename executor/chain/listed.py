"""Which calls of a recorded run are the layers: those of the modules in the model's own lists."""

from collections import Counter
from collections.abc import Callable, Sequence

from torch import nn

from executor.chain.flow import OneSize, Unsupported, units_of
from executor.chain.record import Call, Record

_LEAST_SHARE = 0.3  # of the parameters outside embeddings that must be in listed modules

Listing = Callable[[nn.Module, Record], list[Call]]


def opened(model: nn.Module, run: Record) -> list[Call]:
    """The calls of the modules in the model's outermost lists, each called once.

    A list is an nn.ModuleList or a plain nn.Sequential. Inside a listed module that holds more
    than half of the model's parameters, its own lists count.
    """
    return _listed(model, run, bytes_of(model) / 2)


def unopened(model: nn.Module, run: Record) -> list[Call]:
    """The same with every listed module whole."""
    return _listed(model, run, bytes_of(model))


def children(model: nn.Module, run: Record) -> list[Call]:
    """The calls of the modules that the model itself is made of, each called once."""
    once = _once(run)
    while len(parts := [child for child in model.children() if bytes_of(child)]) == 1:
        (model,) = parts
    return [once[child] for child in parts if child in once]


def _listed(model: nn.Module, run: Record, most: float) -> list[Call]:
    """`most`: bytes of parameters, beyond which a listed module's own lists count."""
    once = _once(run)

    def inside(module: nn.Module) -> list[Call]:
        found: list[Call] = []
        for child in module.children():
            members = list(child.children())
            if _is_list(child) and members and all(member in once for member in members):
                for member in members:
                    found += (bytes_of(member) > most and inside(member)) or [once[member]]
            else:
                found += inside(child)
        return found

    calls = {call.number: call for call in inside(model)}
    return [c for c in calls.values() if not calls.keys() & set(c.parents)]


def _once(run: Record) -> dict[nn.Module, Call]:
    """The calls of modules that are called once."""
    counts = Counter(call.module for call in run.calls)
    return {call.module: call for call in run.calls if counts[call.module] == 1}


def twins(large: Record, small: Record, layers: Sequence[Call]) -> dict[int, Call]:
    """For the number of each call in the large run, but those inside of layers and of modules
    between them, the same call in the small one. OneSize when the model runs otherwise with
    another batch size."""
    modules = {call.module for call in layers}
    outer = [_outer(large, layers), _outer(small, [c for c in small.calls if c.module in modules])]
    if len(outer[0]) != len(outer[1]):
        raise OneSize("it calls its modules otherwise for another batch size")
    for left, right in zip(*outer, strict=True):
        same = left.module is right.module and left.given_tree == right.given_tree
        if not same or left.made_tree != right.made_tree:
            raise OneSize("it calls its modules otherwise for another batch size")
    return {left.number: right for left, right in zip(*outer, strict=True)}


def _outer(run: Record, layers: Sequence[Call]) -> list[Call]:
    nodes = {call.number for call in (*layers, *units_of(run, layers))}
    return [call for call in run.calls if not nodes & set(call.parents)]


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's parameters, each once."""
    return sum(p.nbytes for p in module.parameters())


def _is_list(module: nn.Module) -> bool:
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return plain or isinstance(module, nn.ModuleList)


def check_share(model: nn.Module, layers: Sequence[Call]) -> None:
    """Unsupported for layers that are none, or only a small part of the model."""
    if not layers:
        raise Unsupported("it has no list of modules each of which is called once")
    embedded = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    own = {id(p): p.nbytes for p in model.parameters() if id(p) not in embedded}
    inside = {id(p) for call in layers for p in call.module.parameters()} & own.keys()
    share = sum(own[p] for p in inside) / max(1, sum(own.values()))
    if own and share < _LEAST_SHARE:
        raise Unsupported(f"its lists of modules hold only {share:.0%} of its parameters")
