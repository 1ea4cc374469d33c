"""Values in messages: tensors, plain data with tensors in it, and how values lie in their bytes.

Nothing is imported, called or loaded because a message names it: types are looked up among those
that this process has.
"""

import sys
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec, is_namedtuple_class, tree_flatten

from executor.errors import RunError
from executor.numerics import Grads, Layout, Spec, TensorPlace
from executor.replay import Facts, Norming
from executor.workload import Content, Share
from plans.ops import parse_id

Plain = Any  # what msgpack has: None, numbers, texts, bytes, lists, dicts with texts as keys

_PLAIN = (type(None), bool, int, float, str, bytes)
_, _LEAF = tree_flatten(None)
_DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """A task's state beside the host store, see `distributed.state`."""

    task: str
    step: int
    rng: bytes
    scale: Plain
    shards: dict[int, Plain]


def pack(value: Any) -> Plain:
    """Plain data with tensors in it, as msgpack can have it; RunError for anything else."""
    if isinstance(value, Tensor):
        flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        return ["tensor", str(value.dtype), list(value.shape), flat.numpy().tobytes()]
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return ["tuple" if isinstance(value, tuple) else "list", [pack(one) for one in value]]
    if isinstance(value, dict):
        return ["dict", [[pack(key), pack(one)] for key, one in value.items()]]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    raise RunError(f"a {type(value).__name__} cannot go from one process to another")


def unpack(value: Plain) -> Any:
    """The value that `pack` was given."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "tensor":
        dtype, shape, content = rest
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        if flat is None:
            return torch.empty(shape, dtype=_dtype(dtype))
        return flat.view(_dtype(dtype)).reshape(shape)
    if kind == "dict":
        return {unpack(key): unpack(one) for key, one in rest[0]}
    if kind == "complex":
        return complex(*rest)
    items = [unpack(one) for one in rest[0]]
    return tuple(items) if kind == "tuple" else items


def pack_spec(spec: Spec) -> Plain:
    return [str(spec.dtype), list(spec.shape), list(spec.stride)]


def unpack_spec(plain: Plain) -> Spec:
    dtype, shape, stride = plain
    return Spec(_dtype(dtype), tuple(shape), tuple(stride))


def pack_layout(layout: Layout) -> Plain:
    """A layout as msgpack can have it; RunError for constants that have no form in a message."""
    leaves = None
    if layout.leaves is not None:
        leaves = [
            one.number if isinstance(one, TensorPlace) else [_constant(one[1])]
            for one in layout.leaves
        ]
    tree = None if layout.tree is None else [pack_tree(layout.tree)]
    return [[pack_spec(spec) for spec in layout.specs], list(layout.needs), leaves, tree]


def unpack_layout(plain: Plain) -> Layout:
    specs, needs, leaves, tree = plain
    return Layout(
        tuple(unpack_spec(spec) for spec in specs),
        tuple(needs),
        None if leaves is None else tuple(_known(one) for one in leaves),
        None if tree is None else unpack_tree(tree[0]),
    )


def pack_tree(tree: TreeSpec) -> Plain:
    """The structure of a value as msgpack can have it; RunError for a container that another
    process cannot find by its name."""
    if tree.is_leaf():
        return None
    kind, context = tree.type, tree.context
    if kind is namedtuple:
        kind, context = context, None
    name = [kind.__module__, kind.__qualname__]
    if _container(*name) is not kind:
        raise RunError(
            f"a {kind.__qualname__} between layers cannot go from one process to another: it is "
            f"not {kind.__qualname__} of the module {kind.__module__}; define it there, or build "
            "with a --layout of as many devices as a process has"
        )
    return [name, pack(context), [pack_tree(one) for one in tree.children()]]


def unpack_tree(plain: Plain) -> TreeSpec:
    """The structure that `pack_tree` was given; RunError for a container that is not known here."""
    if plain is None:
        return _LEAF
    name, context, children = plain
    kind, parts = _container(*name), [unpack_tree(one) for one in children]
    if kind is None:
        raise _unknown(".".join(name))
    if is_namedtuple_class(kind):
        return TreeSpec(namedtuple, kind, parts)
    return TreeSpec(kind, unpack(context), parts)


def _container(module: str, name: str) -> Any:
    """The container of this name in a module that is loaded; None where there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    known = isinstance(found, type) and (found in SUPPORTED_NODES or is_namedtuple_class(found))
    return found if known else None


def pack_facts(facts: Facts) -> Plain:
    norming = facts.norming
    return [
        str(facts.op),
        facts.buffer,
        facts.evaluates,
        None if facts.absent is None else sorted(facts.absent),
        _content(facts.content),
        None if facts.grads is None else [[n, pack_spec(spec)] for n, spec in facts.grads],
        None if norming is None else _norming(norming),
    ]


def unpack_facts(plain: Plain) -> Facts:
    op, buffer, evaluates, absent, content, grads, norming = plain
    found: Grads | None = None
    if grads is not None:
        found = tuple((n, unpack_spec(spec)) for n, spec in grads)
    return Facts(
        parse_id(op),
        buffer,
        evaluates,
        None if absent is None else frozenset(absent),
        _contained(content),
        found,
        None if norming is None else _normed(norming),
    )


def _content(content: Content | None) -> Plain:
    if content is None:
        return None
    return [[pack_layout(layout) for layout in content.layouts], *content.share]


def _contained(plain: Plain) -> Content | None:
    if plain is None:
        return None
    layouts, *share = plain
    return Content(tuple(unpack_layout(layout) for layout in layouts), Share(*share))


def _norming(norming: Norming) -> Plain:
    noted = [[shard, list(numbers)] for shard, numbers in norming.noted.items()]
    return [norming.step, noted, str(norming.dtype), pack(_dict(norming.scale))]


def _normed(plain: Plain) -> Norming:
    step, noted, dtype, scale = plain
    return Norming(step, dict(map(tuple, noted)), _dtype(dtype), unpack(scale))


def _dict(value: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
    return None if value is None else dict(value)


def _constant(value: Any) -> Plain:
    if isinstance(value, torch.dtype):
        return ["dtype", str(value)]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    return pack(value)


def _known(plain: Plain) -> Any:
    if isinstance(plain, int):
        return TensorPlace(plain)
    (value,) = plain
    if isinstance(value, list) and value[0] == "dtype":
        value = _dtype(value[1])
    elif isinstance(value, list) and value[0] == "device":
        value = torch.device(value[1])
    else:
        value = unpack(value)
    return type(value), value


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise _unknown(name)
    return _DTYPES[name]


def _unknown(name: str) -> RunError:
    return RunError(f"another process sends a {name}, which this one does not have")
