"""Layers from the model's graph of tensor operations, as torch.export sees it in training.

The operations stay in their order, so cutting the list in two anywhere gives two layers; what the
second needs of the first is the boundary. It is cut where that is small.
"""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import wraps
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import TreeSpec, tree_map
from torch.utils._sympy.numbers import int_oo

from executor.cutting.calling import arguments, isolated
from executor.cutting.graph.segment import (
    Line,
    Listing,
    Segment,
    cuts,
    dropping,
    last_changes,
    nodes_in,
    roots,
)
from executor.cutting.parts import Unsupported
from executor.workload import loss_in

_Size = torch.SymInt | torch.SymBool | torch.SymFloat | int | bool | float


def cut(model: nn.Module, inputs: Any, has_loss: bool) -> tuple[list[nn.Module], bool]:
    """The layers, and whether they are made for any batch size rather than for that of `inputs`.

    Unsupported, or whatever torch.export raises, when the model has no such graph.
    """
    with nullcontext() if has_loss else _loss_only(model):
        try:
            exported, any_size = _exported(model, inputs, dynamic=True), True
        except Exception:
            exported, any_size = _exported(model, inputs, dynamic=False), False
    graph = _Graph(model, exported)
    return graph.layers(), any_size and graph.any_size


@contextmanager
def _loss_only(model: nn.Module) -> Iterator[None]:
    """Let the model return its loss and nothing else: what else it returns may be no pytree."""
    forward, own = model.forward, "forward" in vars(model)

    @wraps(forward)
    def loss(*args: Any, **kwargs: Any) -> Any:
        return loss_in(forward(*args, **kwargs))

    model.forward = loss
    try:
        yield
    finally:
        del model.forward
        if own:
            model.forward = forward


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
        self.order = {node: number for number, node in enumerate(nodes)}
        self.body = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
        for node in self.body:
            if node.op != "call_function":
                raise Unsupported(f"its graph has a {node.op}")
        self.modules = {path for path, _ in model.named_modules() if path}
        kinds = {spec.arg.name: spec.kind for spec in exported.graph_signature.input_specs}
        given = [n for n in nodes if n.op == "placeholder"]
        self.inputs = [n for n in given if kinds[n.name] == InputKind.USER_INPUT]
        self.held = self._held(model, {node.name: node for node in given})
        self.graphs = {
            n: _graph_of(exported.graph_module, str(n.target)) for n in nodes if n.op == "get_attr"
        }
        self.end = self._end(nodes[-1])
        self.any_size = self._any_size()

    def layers(self) -> list[nn.Module]:
        edges = [0, *cuts(self._line()), len(self.body)]
        if len(edges) < 3:
            raise Unsupported("its graph has no place to cut")
        found: list[nn.Module] = []
        given: Sequence[fx.Node] = self.inputs
        for start, end in pairwise(edges):
            made = self._live(end) if end < len(self.body) else []
            found.append(self._segment(start, end, given, made))
            given = made
        return found

    def _any_size(self) -> bool:
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
        found: dict[fx.Node, Tensor] = {}
        for spec in self.exported.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                continue
            tensor = own.get(str(spec.target))
            if not isinstance(tensor, Tensor):
                raise Unsupported(f"its graph needs {spec.target}, which is no tensor")
            found[given[spec.arg.name]] = tensor
        return found

    def _end(self, output: fx.Node) -> tuple[Any, TreeSpec]:
        specs = self.exported.graph_signature.output_specs
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in specs):
            raise Unsupported("its graph returns changed buffers")
        tree = self.exported.call_spec.out_spec
        assert tree is not None
        return output.args[0], tree

    def _live(self, end: int) -> list[fx.Node]:
        """Tensors made before body index `end` (or inputs) and used from there on."""
        before = {*self.body[:end], *self.inputs}
        used = {node for n in self.body[end:] for node in n.all_input_nodes}
        used |= set(nodes_in(self.end[0]))
        return sorted((n for n in used & before if not _is_size(n)), key=self.order.__getitem__)

    def _line(self) -> Line:
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
        return Line(weights, parameters, self._widths())

    def _widths(self) -> list[int | None]:
        """Bytes across a cut before each operation; None where there may be none: where an
        operation after it changes a tensor, or something else than tensors goes across."""
        widths: list[int | None] = [None] * (len(self.body) + 1)
        last = {node: i for i, n in enumerate(self.body) for node in n.all_input_nodes}
        last |= dict.fromkeys(nodes_in(self.end[0]), len(self.body))
        origin = roots(self.body)
        changed = last_changes(self.body, origin)
        alive = {node for node in self.inputs if node in last}
        for index, node in enumerate(self.body):
            alive = {n for n in alive if last[n] >= index}
            across = [n for n in alive if not _is_size(n)]
            settled = all(changed.get(origin.get(n, n), -1) < index for n in across)
            tensors = bool(across) and all(isinstance(_value(n), Tensor) for n in across)
            if index and settled and tensors:
                widths[index] = sum(_bytes(_value(n)) for n in across)
            if node in last:
                alive.add(node)
        return widths

    def _segment(
        self, start: int, end: int, given: Sequence[fx.Node], made: Sequence[fx.Node]
    ) -> Segment:
        ends = self.end if end == len(self.body) else None
        wanted = [*made, *nodes_in(ends and ends[0])]
        order = self._ordered([n for n in self.body[start:end] if not _is_size(n)], given, wanted)
        used = {*wanted, *(n for _, _, args, kwargs in order for n in nodes_in(args, kwargs))}
        codes = dropping(order, {*wanted, *self.held, *self.graphs})
        taken = [node if node in used else None for node in given]
        return Segment(
            self._label(start, end),
            Listing(codes, taken, made, ends, start == 0),
            {node: tensor for node, tensor in self.held.items() if node in used},
            {node: graph for node, graph in self.graphs.items() if node in used},
        )

    def _ordered(
        self, nodes: Sequence[fx.Node], given: Sequence[fx.Node], wanted: Sequence[fx.Node]
    ) -> list[tuple[fx.Node, Any, Any, Any]]:
        """The operations in order, sizes, which each segment finds from its own tensors, before
        their first use."""
        done: set[fx.Node] = set()
        order: list[tuple[fx.Node, Any, Any, Any]] = []
        have = {*given, *self.held}

        def need(node: fx.Node) -> None:
            if node in done or not _is_size(node) or node in given:
                return
            done.add(node)
            source = node.all_input_nodes
            if node.target is torch.ops.aten.sym_size.int and source[0] not in have:
                order.append((node, node.target, _with_size(node.meta["val"], given), {}))
                return
            for other in source:
                need(other)
            order.append((node, node.target, node.args, node.kwargs))

        for node in nodes:
            for other in node.all_input_nodes:
                need(other)
            order.append((node, node.target, node.args, node.kwargs))
            have.add(node)
        for node in wanted:
            need(node)
        return order

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


def _bytes(value: Any) -> int:
    if not isinstance(value, Tensor):
        return 0
    count = value.dtype.itemsize
    for size in value.shape:
        count *= int(size) if isinstance(size, int) else int(size.node.hint)
    return count


def _graph_of(root: nn.Module, path: str) -> nn.Module:
    found = attrgetter(path)(root)
    if not isinstance(found, nn.Module):
        raise Unsupported(f"its graph needs {path}, which is no graph")
    return found
