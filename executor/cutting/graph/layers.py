"""Layers from the model's graph of tensor operations, as torch.export sees it in training.

The operations stay in their order, so cutting the list in two anywhere gives two layers; what the
second needs of the first is the boundary. It is cut where that is small.
"""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from functools import wraps
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map
from torch.utils._sympy.numbers import int_oo

from executor.cutting.calling import arguments, isolated, replaced
from executor.cutting.graph.segment import Code, Line, Segment, cuts, last_changes, nodes_in
from executor.cutting.parts import Unsupported
from executor.workload import loss_in

_SIZE = torch.ops.aten.sym_size.int
_Size = torch.SymInt | torch.SymBool | torch.SymFloat | int | bool | float


def cut(model: nn.Module, inputs: Any, has_loss: bool) -> tuple[list[nn.Module], bool]:
    """The layers, and whether they are made for any batch size rather than for that of `inputs`.

    Unsupported, or whatever torch.export raises, when the model has no such graph.
    """
    forward = model.forward

    @wraps(forward)
    def loss_only(*args: Any, **kwargs: Any) -> Any:
        return loss_in(forward(*args, **kwargs))  # what else the model returns may be no pytree

    with nullcontext() if has_loss else replaced("forward", {model: loss_only}):
        try:
            exported, any_size = _exported(model, inputs, dynamic=True), True
        except Exception:
            exported, any_size = _exported(model, inputs, dynamic=False), False
    graph = _Graph(model, exported)
    return graph.layers(), any_size and graph.any_size()


def _exported(model: nn.Module, inputs: Any, *, dynamic: bool) -> ExportedProgram:
    args, kwargs = arguments(inputs)
    shapes = None
    if dynamic:
        given = kwargs or args
        shapes = tree_map(lambda x: {0: Dim.AUTO} if isinstance(x, Tensor) else None, given)
    told = io.StringIO()  # of what fails torch prints the whole graph
    with isolated(model), warnings.catch_warnings(), redirect_stderr(told):
        warnings.simplefilter("ignore")  # of attributes that the trace sets and resets
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)


class _Graph:
    """The exported operations in a row, and which of their values are needed where."""

    def __init__(self, model: nn.Module, exported: ExportedProgram) -> None:
        self.exported = exported
        nodes = list(exported.graph.nodes)
        self.body = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
        self.modules = {path for path, _ in model.named_modules() if path}
        kinds = {spec.arg.name: spec.kind for spec in exported.graph_signature.input_specs}
        given = [n for n in nodes if n.op == "placeholder"]
        self.inputs = [n for n in given if kinds[n.name] == InputKind.USER_INPUT]
        self.held = self._held(model, {node.name: node for node in given})
        self.end = nodes[-1].args[0], exported.call_spec.out_spec

    def layers(self) -> list[nn.Module]:
        across = self._across()
        edges = [0, *cuts(self._line(across)), len(self.body)]
        if len(edges) < 3:
            raise Unsupported("its graph has no place to cut")
        found: list[nn.Module] = []
        given: Sequence[fx.Node] = self.inputs
        for start, end in pairwise(edges):
            made = across[end] if end < len(self.body) else []
            found.append(self._segment(start, end, given, made))
            given = made
        return found

    def any_size(self) -> bool:
        """True if the batch may have any size: the inputs show one, and no operation was chosen
        by how large it is."""
        sizes = [size for node in self.inputs for size in getattr(_value(node), "shape", ())]
        symbols = [size.node.expr for size in sizes if type(size) is not int]
        ranges = [self.exported.range_constraints.get(symbol) for symbol in symbols]
        free = [r is None or (r.upper == int_oo and r.lower <= 2) for r in ranges]
        return bool(free) and all(free)

    def _held(self, model: nn.Module, given: Mapping[str, fx.Node]) -> dict[fx.Node, Tensor]:
        """Parameters, buffers and constant tensors by their placeholders."""
        own: dict[str, Any] = dict(self.exported.constants)
        own |= dict(model.named_parameters(remove_duplicate=False))
        own |= dict(model.named_buffers(remove_duplicate=False))
        specs = self.exported.graph_signature.input_specs
        held = (spec for spec in specs if spec.kind != InputKind.USER_INPUT)
        return {given[spec.arg.name]: own[str(spec.target)] for spec in held}

    def _across(self) -> list[list[fx.Node]]:
        """By operation the tensors made before it (or inputs) and used from there on, in order."""
        last = {node: i for i, n in enumerate(self.body) for node in n.all_input_nodes}
        last |= dict.fromkeys(nodes_in(self.end[0]), len(self.body))
        found: list[list[fx.Node]] = []
        alive = [node for node in self.inputs if node in last]
        for index, node in enumerate(self.body):
            alive = [n for n in alive if last[n] >= index]
            found.append([n for n in alive if not _is_size(n)])
            if node in last:
                alive.append(node)
        return found

    def _line(self, across: Sequence[Sequence[fx.Node]]) -> Line:
        """The weight of each operation, and the cost of a cut before it."""
        met: set[fx.Node] = set()
        weights: list[float] = []
        parameters: list[int] = []
        total = sum(t.nbytes for t in self.held.values() if isinstance(t, nn.Parameter)) or 1
        for node in self.body:
            own = [n for n in node.all_input_nodes if n in self.held and n not in met]
            met |= set(own)
            mine = [self.held[n] for n in own if isinstance(self.held[n], nn.Parameter)]
            weights.append(sum(p.nbytes for p in mine) / total + 1 / len(self.body))
            parameters.append(len(mine))
        return Line(weights, parameters, [*self._widths(across), None])

    def _widths(self, across: Sequence[Sequence[fx.Node]]) -> Iterator[int | None]:
        """Bytes across a cut before each operation; None where there may be none: where an
        operation after it changes a tensor, or something else than tensors goes across."""
        changed = last_changes(self.body)
        for index, nodes in enumerate(across):
            settled = all(changed.get(n, -1) < index for n in nodes)
            tensors = bool(nodes) and all(isinstance(_value(n), Tensor) for n in nodes)
            there = index and settled and tensors
            yield sum(_bytes(_value(n)) for n in nodes) if there else None

    def _segment(
        self, start: int, end: int, given: Sequence[fx.Node], made: Sequence[fx.Node]
    ) -> Segment:
        body = self.body[start:end]
        wanted, tree = self.end if end == len(self.body) else (list(made), None)
        used = {*nodes_in(wanted), *(n for node in body for n in node.all_input_nodes)}
        held = [node for node in self.held if node in used]
        graph = fx.Graph()
        values = {node: graph.placeholder(f"held{n}") for n, node in enumerate(held)}
        device = graph.placeholder("device")
        values |= {node: graph.placeholder(f"given{n}") for n, node in enumerate(given)}

        def value(node: fx.Node) -> fx.Node:
            """The node in the new graph, to which sizes and graphs come when they are needed."""
            if node in values:
                return values[node]
            if not (_is_size(node) or node.op == "get_attr"):
                raise Unsupported("its graph goes by a tensor's values where no tensor shows them")
            if node.target is _SIZE and node.args[0] not in values:
                tensor, dim = _with_size(_value(node), given)
                values[node] = graph.call_function(_SIZE, (values[tensor], dim))
            else:
                values[node] = graph.node_copy(node, value)
            return values[node]

        for node in body:
            if not _is_size(node):
                values[node] = graph.node_copy(node, value)
                if node.kwargs.get("device") is not None:
                    values[node].update_kwarg("device", device)
        graph.output(map_arg(wanted, value))
        code = Code(fx.GraphModule(self.exported.graph_module, graph), tree)
        return Segment(self._label(start, end), code, [self.held[node] for node in held])

    def _label(self, start: int, end: int) -> str:
        """The modules in which its first and its last operation are."""
        paths = [p for p in map(_path, self.body[start:end]) if p in self.modules]
        if not paths:
            return f"ops {start} to {end}"
        return paths[0] if paths[0] == paths[-1] else f"{paths[0]} .. {paths[-1]}"


def _value(node: fx.Node) -> Any:
    """The value that the node had in the export, a tensor without memory."""
    return node.meta.get("val")


def _is_size(node: fx.Node) -> bool:
    return isinstance(_value(node), _Size)


def _with_size(size: Any, given: Sequence[fx.Node]) -> tuple[fx.Node, int]:
    """A tensor of the boundary and a dimension of it that has this size."""
    for node in given:
        for dim, own in enumerate(getattr(_value(node), "shape", ())):
            if str(own) == str(size):
                return node, dim
    raise Unsupported("a size is needed where no tensor shows it")


def _path(node: fx.Node) -> str:
    """The innermost module of the model that the operation is in."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _bytes(value: Tensor) -> int:
    sizes = (size if isinstance(size, int) else size.node.hint for size in value.shape)
    return prod(map(int, sizes)) * value.dtype.itemsize
