"""Layers from the model's graph of tensor operations, as torch.export sees it in training.

The operations stay in their order, so cutting the list in two anywhere gives two layers; what the
second needs of the first is the boundary. It is cut where that is small.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map
from torch.utils._sympy.numbers import int_oo

from executor.cutting import Unsupported, arguments, isolated
from executor.cutting.graph.segment import (
    Code,
    Line,
    Ref,
    Segment,
    cuts,
    dropping,
    last_changes,
    refs_in,
    roots,
)
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
    """The exported operations in a row, and what of them is needed where."""

    def __init__(self, model: nn.Module, exported: ExportedProgram) -> None:
        self.nodes = [n for n in exported.graph.nodes if n.op != "output"]
        self.place = {node: number for number, node in enumerate(self.nodes)}
        self.exported = exported
        self.modules = {path for path, _ in model.named_modules() if path}
        self.held = self._held(model)
        kinds = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
        self.inputs = [
            self.place[n]
            for n in self.nodes
            if n.op == "placeholder" and kinds[n.name].kind == InputKind.USER_INPUT
        ]
        self.body = [n for n in self.nodes if n.op not in ("placeholder", "get_attr")]
        for node in self.body:
            if node.op != "call_function":
                raise Unsupported(f"its graph has a {node.op}")
        self.output = self._output()
        self.parts = {
            self.place[n]: _attribute(exported.graph_module, str(n.target))
            for n in self.nodes
            if n.op == "get_attr"
        }
        self.any_size = self._any_size()
        self.uses = {self.place[n]: [self.place[i] for i in n.all_input_nodes] for n in self.body}

    def layers(self) -> list[nn.Module]:
        line = self._line()
        edges = [0, *cuts(line), len(self.body)]
        if len(edges) < 3:
            raise Unsupported("its graph has no place to cut")
        found: list[nn.Module] = []
        given: list[int | None] = list(self.inputs)
        for start, end in pairwise(edges):
            made = self._live(end) if end < len(self.body) else []
            found.append(self._segment(start, end, given, made))
            given = list(made)
        return found

    def _any_size(self) -> bool:
        """True if the batch may have any size: the inputs show one, and no operation was chosen
        by how large it is."""
        values = [self.nodes[place].meta.get("val") for place in self.inputs]
        sizes = [size for value in values for size in getattr(value, "shape", ())]
        symbols = [size.node.expr for size in sizes if type(size) is not int]
        ranges = [self.exported.range_constraints.get(symbol) for symbol in symbols]
        free = [r is None or (r.upper == int_oo and r.lower <= 2) for r in ranges]
        return bool(free) and all(free)

    def _held(self, model: nn.Module) -> dict[int, Tensor]:
        """Parameters, buffers and constant tensors by the place of their placeholder."""
        own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        own |= dict(model.named_buffers(remove_duplicate=False))
        found: dict[int, Tensor] = {}
        by_name = {node.name: node for node in self.nodes}
        for spec in self.exported.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                continue
            tensor = own.get(str(spec.target))
            if tensor is None:
                tensor = self.exported.constants.get(str(spec.target))
            if not isinstance(tensor, Tensor):
                raise Unsupported(f"its graph needs {spec.target}, which is no tensor")
            found[self.place[by_name[spec.arg.name]]] = tensor
        return found

    def _output(self) -> tuple[Any, TreeSpec]:
        (end,) = (n for n in self.exported.graph.nodes if n.op == "output")
        specs = self.exported.graph_signature.output_specs
        if any(spec.kind != OutputKind.USER_OUTPUT for spec in specs):
            raise Unsupported("its graph returns changed buffers")
        spec = self.exported.call_spec.out_spec
        assert spec is not None
        return self._refs(end.args[0]), spec

    def _refs(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return Ref(self.place[value])
        if isinstance(value, dict):
            return {key: self._refs(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._refs(item) for item in value]
        return value

    def _is_size(self, place: int) -> bool:
        """True if a value is a size, which each segment finds from its own tensors."""
        return isinstance(self.nodes[place].meta.get("val"), _Size)

    def _live(self, end: int) -> list[int]:
        """Places of the tensors made before body index `end` (or inputs) and used from there on."""
        before = {self.place[n] for n in self.body[:end]} | set(self.inputs)
        used = {p for n in self.body[end:] for p in self.uses[self.place[n]]}
        used |= {leaf.place for leaf in tree_leaves(self.output[0]) if isinstance(leaf, Ref)}
        return sorted(p for p in used & before if not self._is_size(p))

    def _line(self) -> Line:
        """The weight of each operation, and the cost of a cut before it."""
        first_use: set[int] = set()
        weights: list[float] = []
        parameters: list[int] = []
        total = sum(t.nbytes for t in self.held.values() if isinstance(t, nn.Parameter)) or 1
        for node in self.body:
            own = [p for p in self.uses[self.place[node]] if p in self.held and p not in first_use]
            first_use |= set(own)
            mine = [self.held[p] for p in own if isinstance(self.held[p], nn.Parameter)]
            weights.append(sum(p.nbytes for p in mine) / total + 1 / len(self.body))
            parameters.append(len(mine))
        return Line(weights, parameters, self._widths())

    def _widths(self) -> list[int | None]:
        """Bytes across a cut before each operation; None where there may be none."""
        live: list[int | None] = [None] * (len(self.body) + 1)
        last = self._last_uses()
        origin = roots(self.body)
        source = [origin.get(node, node) for node in self.nodes]
        changed = last_changes(self.body, origin)
        alive: set[int] = {p for p in self.inputs if p in last}
        for index, node in enumerate(self.body):
            tensors = [p for p in alive if not self._is_size(p) and last[p] >= index]
            settled = all(changed.get(source[p], -1) < index for p in tensors)
            if index and settled and self._are_tensors(tensors):
                live[index] = sum(_bytes(self.nodes[p].meta.get("val")) for p in tensors)
            place = self.place[node]
            if place in last:
                alive.add(place)
            alive = {p for p in alive if last[p] > index}
        return live

    def _last_uses(self) -> dict[int, int]:
        """By place, the last body index that uses it; beyond the end for outputs."""
        last: dict[int, int] = {}
        for index, node in enumerate(self.body):
            last |= dict.fromkeys(self.uses[self.place[node]], index)
        for leaf in tree_leaves(self.output[0]):
            if isinstance(leaf, Ref):
                last[leaf.place] = len(self.body)
        return last

    def _are_tensors(self, places: Sequence[int]) -> bool:
        """True if these can be a boundary: at least one tensor, and no lists of them."""
        values = [self.nodes[place].meta.get("val") for place in places]
        return bool(values) and all(isinstance(value, Tensor) for value in values)

    def _segment(self, start: int, end: int, given: list[int | None], made: list[int]) -> "Segment":
        last = end == len(self.body)
        nodes = [self.place[n] for n in self.body[start:end] if not self._is_size(self.place[n])]
        ends = self.output if last else None
        wanted = list(made) + [r.place for r in tree_leaves(ends) if isinstance(r, Ref)]
        codes = self._codes(nodes, [p for p in given if p is not None], wanted)
        used = {r.place for code in codes for r in refs_in((code.args, code.kwargs))}
        used |= set(wanted)
        held = {p: t for p, t in self.held.items() if p in used}
        parts = {p: part for p, part in self.parts.items() if p in used}
        return Segment(
            self._label(start, end),
            codes,
            [p if p in used else None for p in given],
            made,
            held,
            parts,
            ends,
            first=start == 0,
        )

    def _codes(self, nodes: list[int], given: list[int], wanted: list[int]) -> list[Code]:
        """The operations in order, sizes before their first use."""
        done: set[int] = set()
        order: list[tuple[int, Any, Any, Any]] = []

        def need(place: int) -> None:
            if place in done or not self._is_size(place) or place in given:
                return
            done.add(place)
            node = self.nodes[place]
            source = node.all_input_nodes
            if node.target is torch.ops.aten.sym_size.int and self.place[source[0]] not in have:
                tensor, dim = self._with_size(node.meta["val"], given)
                order.append((place, node.target, (Ref(tensor), dim), {}))
                return
            for other in source:
                need(self.place[other])
            order.append((place, node.target, self._refs(node.args), self._refs(node.kwargs)))

        have = set(given) | set(self.held)
        for place in nodes:
            for other in self.uses[place]:
                need(other)
            node = self.nodes[place]
            order.append((place, node.target, self._refs(node.args), self._refs(node.kwargs)))
            have.add(place)
        for place in wanted:
            need(place)
        return dropping(order, set(wanted) | set(self.held) | set(self.parts))

    def _with_size(self, size: Any, given: Sequence[int]) -> tuple[int, int]:
        """A tensor of the boundary and a dimension of it that has this size."""
        for place in given:
            value = self.nodes[place].meta.get("val")
            for dim, own in enumerate(getattr(value, "shape", ())):
                if str(own) == str(size):
                    return place, dim
        raise Unsupported("a size is needed where no tensor shows it")

    def _label(self, start: int, end: int) -> str:
        """The modules in which its first and its last operation are."""
        paths = [p for p in map(_path, self.body[start:end]) if p in self.modules]
        if not paths:
            return f"ops {start} to {end}"
        return paths[0] if paths[0] == paths[-1] else f"{paths[0]} .. {paths[-1]}"


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


def _attribute(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name)
    if not isinstance(found, nn.Module):
        raise Unsupported(f"its graph needs {path}, which is no graph")
    return found
