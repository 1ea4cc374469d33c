"""One run of a model, written down: which modules were called with what, and which ops ran where.

Values are known by their storages, numbered in the order in which they first appear, so that a
view, or a tensor changed in place, is the same value. Where values leave tensors for Python, its
code may go on by them; that is noted as well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from executor.cutting.calling import call
from executor.cutting.parts import Fresh
from executor.numerics import OpMode

SCALAR = torch.ops.aten._local_scalar_dense.default  # behind .item(), bool(), float(), if
Function = Callable[..., Any] | str

_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)  # which show no op


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf of arguments or outputs as it was at that moment; `storage` is -1 for no tensor.
    A cache is known by what it was when it was seen first."""

    value: Any
    version: int = 0
    storage: int = -1

    @property
    def key(self) -> tuple[int, int]:
        """Tensors are the same value when they are the same object, not changed in between."""
        return id(self.value), self.version

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)


@dataclass(eq=False)
class Call:
    """A module's call. `parents`: numbers of the calls around it, outermost first."""

    number: int
    module: nn.Module
    parents: tuple[int, ...]
    start: int
    given: list[Leaf]
    given_tree: TreeSpec
    end: int = -1
    made: list[Leaf] = field(default_factory=list)
    made_tree: TreeSpec | None = None
    given_after: list[Leaf] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Op:
    """A tensor operation at `time`, inside the calls `parents`; storages it read and changed or
    made, and the ids of the tensors it was given. `told`: values of tensors that Python's code
    knows by it, the number if it is one; None for ordinary ones."""

    time: int
    parents: tuple[int, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    given: frozenset[int]
    draws: bool
    told: tuple[Any, ...] | None = None

    @property
    def chooses(self) -> bool:
        """True if what it told is a yes or no."""
        return self.told is not None and [type(value) for value in self.told] == [bool]


@dataclass(eq=False)
class Record:
    """All calls and ops of one run, in order; calls and ops share one clock."""

    calls: list[Call]
    ops: list[Op]
    inputs: list[Leaf]
    inputs_tree: TreeSpec
    output: list[Leaf]
    held: dict[int, list[tuple[str, Tensor]]]  # by storage: the model's parameters and buffers


class _Ops(OpMode):
    """Notes every op that runs while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.inside: list[int] = []
        self._clock = 0
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # no other storage gets the address of one that is referred to
        self._caches: dict[int, tuple[Any, Fresh]] = {}

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage."""
        try:
            storage: Any = tensor.untyped_storage()
            key = int(storage._cdata)
        except (RuntimeError, NotImplementedError):
            storage, key = None, -id(tensor)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            kept = tensor if storage is None else StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._met.append(kept)
        return self._numbers[key]

    def leaf(self, value: Any) -> Leaf:
        if isinstance(value, Tensor):
            return Leaf(value, value._version, self.number(value))
        if id(value) in self._caches:
            return Leaf(self._caches[id(value)][1])
        fresh = Fresh.of(value)
        if fresh is None:
            return Leaf(value)
        self._caches[id(value)] = value, fresh
        return Leaf(fresh)

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        reads = frozenset(self.number(x) for x in given)
        result = func(*args, **kwargs)
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        writes = {self.number(x) for x in made}
        if not func._schema.is_mutable:  # a view changes nothing
            writes -= reads
        else:
            writes |= {self.number(x) for x in changed(func, args, kwargs) if _is_tensor(x)}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        ids = frozenset(map(id, given))
        told = _told(func, args, result)
        self.ops.append(
            Op(self.tick(), tuple(self.inside), reads, frozenset(writes), ids, draws, told)
        )
        return result

    def tell(self, tensor: Tensor) -> None:
        """Note that Python's code reads a tensor's values."""
        reads, ids = frozenset({self.number(tensor)}), frozenset({id(tensor)})
        inside = tuple(self.inside)
        self.ops.append(Op(self.tick(), inside, reads, frozenset(), ids, draws=False, told=()))


class _Reads(TorchFunctionMode):
    """Notes what goes from tensors to lists and arrays, of which the dispatcher sees nothing."""

    def __init__(self, ops: _Ops) -> None:
        super().__init__()
        self._ops = ops

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _READS:
            self._ops.tell(args[0])
        return func(*args, **(kwargs or {}))


def _told(func: Any, args: tuple[Any, ...], result: Any) -> tuple[Any, ...] | None:
    """The values of tensors that Python's code knows by this op: a number, or something (empty)."""
    if func is SCALAR:
        return (result,)
    if torch.Tag.data_dependent_output in func.tags:
        return ()
    if torch.Tag.dynamic_output_shape not in func.tags:
        return None
    if func is torch.ops.aten.index.Tensor:  # by numbers, its size says nothing of them
        kinds = {index.dtype for index in args[1] if _is_tensor(index)}
        return () if kinds & {torch.bool, torch.uint8} else None
    return ()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def record(model: nn.Module, inputs: Any) -> Record:
    """Run the model once on `inputs` with gradients on and note everything; raises what it does.

    The caller sees to it that buffers and random numbers are afterwards as before.
    """
    ops = _Ops()
    calls: list[Call] = []
    leaves, tree = tree_flatten(inputs)
    held: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        held.setdefault(ops.number(tensor), []).append((name, tensor))
    given = [ops.leaf(x) for x in leaves]
    with _noted(model, ops, calls), ops, _Reads(ops):
        output = call(model, inputs)
    made = [ops.leaf(x) for x in tree_leaves(output)]
    return Record(calls, ops.ops, given, tree, made, held)


@contextmanager
def _noted(model: nn.Module, ops: _Ops, calls: list[Call]) -> Iterator[None]:
    """Note the calls of all modules inside the model, before and after their own hooks."""

    def around(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        given = [ops.leaf(x) for x in leaves]
        this = Call(len(calls), module, tuple(ops.inside), ops.tick(), given, tree)
        calls.append(this)
        ops.inside.append(this.number)
        try:
            result = plainly(module, *args, **kwargs)
        finally:
            ops.inside.pop()
        made, this.made_tree = tree_flatten(result)
        this.made = [ops.leaf(x) for x in made]
        this.given_after = [ops.leaf(x) for x in leaves]
        this.end = ops.tick()
        return result

    inside = [module for module in model.modules() if module is not model]
    with intercepted({module: partial(around, module) for module in inside}):
        yield


@contextmanager
def intercepted(calls: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """While active, calling one of these modules calls its function instead, hooks and all.

    torch keeps a place for this, where a module's compiled form goes.
    """
    before = {module: module.__dict__.get("_compiled_call_impl") for module in calls}
    try:
        for module, function in calls.items():
            module._compiled_call_impl = function
        yield
    finally:
        for module, compiled in before.items():
            module.__dict__.pop("_compiled_call_impl", None)
            if compiled is not None:
                module._compiled_call_impl = compiled


def plainly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module that is intercepted, hooks and all."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def changed(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Leaves of the arguments that the op changes in place; none for what has no schema."""
    return _aliased(function, args, kwargs, written=True)


def shown(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Leaves of the arguments whose memory the result may be in."""
    return _aliased(function, args, kwargs, written=False)


def _aliased(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], *, written: bool
) -> list[Any]:
    schema = getattr(function, "_schema", None)
    found: list[Any] = []
    for position, argument in enumerate(schema.arguments if schema else ()):
        alias = argument.alias_info
        if alias is not None and (alias.is_write or not written):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tree_leaves(given)
    return found
