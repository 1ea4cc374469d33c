"""Which calls of a recorded run are the layers: those of the modules in the model's own lists."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from executor.chain.flow import OneSize, Unsupported
from executor.chain.record import Call, Record

_LEAST_SHARE = 0.3  # of the parameters outside embeddings that must be in listed modules


def listed(model: nn.Module, run: Record) -> list[Call]:
    """The calls of the modules in the model's outermost lists, each called once, in order.

    A list is an nn.ModuleList or a plain nn.Sequential. Inside a listed module that holds more
    than half of the model's parameters, its own lists count. Unsupported when there are fewer
    than two, or when they hold only a small part of the model.
    """
    counts = Counter(call.module for call in run.calls)
    once = {call.module: call for call in run.calls if counts[call.module] == 1}
    half = bytes_of(model) / 2

    def inside(module: nn.Module) -> list[Call]:
        found: list[Call] = []
        for child in module.children():
            members = list(child.children())
            if _is_list(child) and members and all(member in once for member in members):
                for member in members:
                    found += (bytes_of(member) > half and inside(member)) or [once[member]]
            else:
                found += inside(child)
        return found

    calls = {call.number: call for call in inside(model)}
    outer = [c for c in calls.values() if not calls.keys() & set(c.parents)]
    if len(outer) < 2:
        raise Unsupported("it has no list of modules each of which is called once")
    _check_share(model, outer)
    return sorted(outer, key=lambda call: call.start)


def check_alike(large: Record, small: Record) -> None:
    """OneSize when the model runs otherwise with another batch size."""
    if len(large.calls) != len(small.calls):
        raise OneSize("it calls its modules otherwise for another batch size")
    for left, right in zip(large.calls, small.calls, strict=True):
        same = left.module is right.module and left.given_tree == right.given_tree
        if not same or left.made_tree != right.made_tree:
            raise OneSize("it calls its modules otherwise for another batch size")


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's parameters, each once."""
    return sum(p.nbytes for p in module.parameters())


def _is_list(module: nn.Module) -> bool:
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return plain or isinstance(module, nn.ModuleList)


def _check_share(model: nn.Module, layers: Sequence[Call]) -> None:
    embedded = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    own = {id(p): p.nbytes for p in model.parameters() if id(p) not in embedded}
    inside = {id(p) for call in layers for p in call.module.parameters()} & own.keys()
    share = sum(own[p] for p in inside) / max(1, sum(own.values()))
    if own and share < _LEAST_SHARE:
        raise Unsupported(f"its lists of modules hold only {share:.0%} of its parameters")
