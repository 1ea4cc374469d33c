"""One run of a model, written down: which modules were called with what, and which ops ran where.

Values are known by their storages, numbered in the order in which they first appear, so that a
view, or a tensor changed in place, is the same value. Where values leave tensors for Python, its
code may go on by them; that is noted as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from executor.cutting.calling import call, replaced
from executor.cutting.parts import Fresh, Key, Kind
from executor.numerics import OpMode

SCALAR = torch.ops.aten._local_scalar_dense.default  # behind .item(), bool(), float(), if

PICKS = (torch.ops.aten.embedding.default, torch.ops.aten._embedding_bag.default)
_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)  # which show no op


@dataclass(frozen=True, eq=False)
class Leaf:
    """A leaf of arguments or outputs as it was at that moment; `storage` is -1 for no tensor.
    A cache is known by what it was when it was seen first."""

    at: Key
    value: Any
    version: int = 0
    storage: int = -1

    @property
    def identity(self) -> tuple[int, int]:
        """Tensors are the same value when they are the same object, not changed in between."""
        return id(self.value), self.version

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)


@dataclass(frozen=True, eq=False)
class Call:
    """A module's call. `parents`: numbers of the calls around it, outermost first. `left`: those of
    the given tensors that it changed in place, as they were afterwards."""

    number: int
    module: nn.Module
    parents: tuple[int, ...]
    start: int
    end: int
    given: list[Leaf]
    given_tree: TreeSpec
    made: list[Leaf]
    made_tree: TreeSpec
    left: list[Leaf]


@dataclass(frozen=True, eq=False)
class Op:
    """A tensor operation at `time`, inside the calls `parents`; storages it read and changed or
    made, and the ids of the tensors it was given. `told`: values of tensors that Python's code
    knows by it, the number if it is one; None for ordinary ones. `picks`: it takes rows of a
    table as they are."""

    time: int
    parents: tuple[int, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    given: frozenset[int]
    draws: bool
    told: tuple[Any, ...] | None = None
    picks: bool = False

    @property
    def chooses(self) -> bool:
        """True if what it told is a yes or no."""
        return self.told is not None and [type(value) for value in self.told] == [bool]


@dataclass(frozen=True, eq=False)
class Record:
    """All calls, by number, and ops of one run, in order; calls and ops share one clock. The last
    op reads the model's outputs. `held`: parameters and buffers by storage."""

    calls: dict[int, Call]
    ops: list[Op]
    inputs: list[Leaf]
    inputs_tree: TreeSpec
    held: dict[int, list[tuple[str, Tensor]]]

    @cached_property
    def once(self) -> dict[nn.Module, Call]:
        """The calls of modules that are called once."""
        counts = Counter(call.module for call in self.calls.values())
        return {call.module: call for call in self.calls.values() if counts[call.module] == 1}


class _Ops(OpMode):
    """Notes every op that runs while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.inside: list[int] = []
        self.tick = count(1).__next__
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # no other storage gets the address of one that is referred to
        self._caches: dict[int, tuple[Any, Fresh]] = {}

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

    def leaves(self, kind: Kind, number: int, values: Sequence[Any]) -> list[Leaf]:
        """The leaves of a call's arguments or outputs, or of the model's inputs, as they are."""
        return [self._leaf(Key(kind, number, place), x) for place, x in enumerate(values)]

    def _leaf(self, at: Key, value: Any) -> Leaf:
        if isinstance(value, Tensor):
            return Leaf(at, value, value._version, self.number(value))
        if id(value) not in self._caches and (fresh := Fresh.of(value)):
            self._caches[id(value)] = value, fresh
        return Leaf(at, self._caches.get(id(value), (value, value))[1])

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _tensors((args, kwargs))
        reads = frozenset(map(self.number, given))
        result = func(*args, **kwargs)
        writes = set(map(self.number, _tensors(result)))
        if not func._schema.is_mutable:  # a view changes nothing
            writes -= reads
        else:
            writes |= set(map(self.number, _tensors(aliased(func, args, kwargs, written=True))))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        told, ids = _told(func, args, result), frozenset(map(id, given))
        inside, changes = tuple(self.inside), frozenset(writes)
        picks = func in PICKS
        self.ops.append(Op(self.tick(), inside, reads, changes, ids, draws, told, picks))
        return result

    def read(self, tensors: Sequence[Tensor], told: tuple[Any, ...] | None = None) -> None:
        """Note that tensors are read otherwise than by an op of torch's."""
        reads, ids = frozenset(map(self.number, tensors)), frozenset(map(id, tensors))
        inside = tuple(self.inside)
        self.ops.append(Op(self.tick(), inside, reads, frozenset(), ids, draws=False, told=told))


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
            self._ops.read(args[:1], told=())
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
        kinds = {index.dtype for index in _tensors(args[1])}
        return () if kinds & {torch.bool, torch.uint8} else None
    return ()


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def record(model: nn.Module, inputs: Any) -> Record:
    """Run the model once on `inputs` with gradients on and note everything; raises what it does.

    The caller sees to it that buffers and random numbers are afterwards as before.
    """
    ops = _Ops()
    calls: dict[int, Call] = {}
    leaves, tree = tree_flatten(inputs)
    held: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        held.setdefault(ops.number(tensor), []).append((name, tensor))
    given = ops.leaves("input", 0, leaves)
    with _noted(model, ops, calls), ops, _Reads(ops):
        output = call(model, inputs)
    ops.read(_tensors(output))
    return Record(dict(sorted(calls.items())), ops.ops, given, tree, held)


@contextmanager
def _noted(model: nn.Module, ops: _Ops, calls: dict[int, Call]) -> Iterator[None]:
    """Note the calls of all modules inside the model, before and after their own hooks."""
    numbers = count()

    def around(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        number, parents, start = next(numbers), tuple(ops.inside), ops.tick()
        leaves, tree = tree_flatten((args, kwargs))
        given = ops.leaves("given", number, leaves)
        ops.inside.append(number)
        try:
            result = plainly(module, *args, **kwargs)
        finally:
            ops.inside.pop()
        returned, made_tree = tree_flatten(result)
        made = ops.leaves("made", number, returned)
        after = ops.leaves("left", number, leaves)
        left = [now for now, was in zip(after, given, strict=True) if now.version != was.version]
        calls[number] = Call(
            number, module, parents, start, ops.tick(), given, tree, made, made_tree, left
        )
        return result

    inside = [module for module in model.modules() if module is not model]
    with intercepted({module: partial(around, module) for module in inside}):
        yield


def intercepted(calls: Mapping[nn.Module, Callable[..., Any]]) -> AbstractContextManager[None]:
    """While active, calling one of these modules calls its function instead, hooks and all.

    torch keeps a place for this, where a module's compiled form goes.
    """
    return replaced("_compiled_call_impl", calls)


def plainly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module that is intercepted, hooks and all."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def aliased(
    function: Callable[..., Any] | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    written: bool,
) -> list[Any]:
    """Leaves of the arguments that the op changes in place or, unless `written`, whose memory its
    result may be in; none for what has no schema."""
    schema = getattr(function, "_schema", None)
    found: list[Any] = []
    for position, argument in enumerate(schema.arguments if schema else ()):
        alias = argument.alias_info
        if alias is not None and (alias.is_write or not written):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tree_leaves(given)
    return found
