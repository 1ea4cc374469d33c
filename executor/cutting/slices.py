"""A slice of a model as a layer: the model's own forward, of which only that slice computes.

Modules called before the slice are not run again: they return what the boundary has of their
outputs, and zeros where nobody uses the values. From there on the model runs as it is, until the
slice ends: behind a layer, or where the model calls the next one. A slice that is one layer is
called without the model's code.
"""

import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only, tree_structure, tree_unflatten

from executor.cutting.calling import call, replaced
from executor.cutting.parts import (
    Dummy,
    Form,
    Fresh,
    Held,
    Key,
    Live,
    Script,
    Stop,
    Stub,
    Turn,
    packed,
)
from executor.cutting.record import SCALAR, intercepted, plainly
from executor.cutting.shells import Owner, device_of, hold, settle
from executor.errors import WorkloadError
from executor.numerics import OpMode, same
from executor.workload import loss_in

_END = Turn("its end", -1, Form.of("", [], tree_structure(())))
_MASKS = (
    "A Hugging Face model looks whether attention_mask is all ones: pad to a length that no sample "
    "fills, or leave the mask out of all batches; a decoder does not look with "
    'attn_implementation="eager" in its config'
)


class Slice(Owner):
    """A part of the model's forward between two boundaries."""

    def __init__(self, shell: nn.Module, script: Script, foreign: Mapping[str, Tensor]) -> None:
        """`shell`: the model's modules with the parameters and buffers that the slice uses, or its
        only layer, which may use `foreign` ones as well."""
        super().__init__()
        self.label = script.label
        self.takes_inputs = script.last
        self.shell = shell
        self._script = script
        self._foreign = dict(zip(foreign, hold(self, foreign.values()), strict=True))

    def forward(self, value: Any, inputs: Any = None) -> Any:
        script = self._script
        values: dict[Key, Any] = dict(zip(script.before, tree_leaves(value), strict=True))
        if script.last:
            values |= dict(zip(script.inputs, tree_leaves(inputs), strict=True))
        run = _Run(self, script, values)
        try:
            output = run.layer() if script.alone else run.model()
        except _Reached:
            return packed([values[key] for key in script.after])
        if not script.last:
            raise WorkloadError(f"{script.code}: the model ends before its next layer")
        # Metrics of evaluations want all of it.
        return output if script.has_loss or not self.training else loss_in(output)

    def held(self, name: str) -> Any:
        """The parameter or buffer that the model calls so."""
        own = self._foreign.get(name)
        return attrgetter(name)(self.shell) if own is None else getattr(self, own)

    @property
    def chooses(self) -> bool:
        """True if the model's code goes by values here, which must be as they were."""
        return bool(self._script.fixed)

    @property
    def picked_parameters(self) -> frozenset[int] | None:
        """The ids of the parameters that autocast leaves as they are: of which rows are taken. None
        for a layer, whose modules say so."""
        picked = self._script.picked
        return None if picked is None else frozenset(id(self.held(name)) for name in picked)

    def extra_repr(self) -> str:
        """The number of calls before the slice ends."""
        return f"{len(self._script.turns)} calls"


class _Run:
    """One run of a slice. `values`: the boundary's, and those that the next boundary needs, as they
    are made."""

    def __init__(self, own: Slice, script: Script, values: dict[Key, Any]) -> None:
        self._own, self._script, self._values = own, script, values
        self._where = device_of(list(values.values()))
        key, per_sample = script.samples or (None, 1)
        self._samples = values[key].numel() // per_sample if key else 1
        self._mode = Quiet(script.code, script.fixed, dead=script.quiet)
        self._turns = iter(script.turns)
        self._inside: dict[str, int] = {}  # of the layer that runs

    def layer(self) -> Any:
        """Run the slice's only layer; _Reached behind it."""
        return self._called("", self._own.shell)

    def model(self) -> Any:
        """The model's output; _Reached where the slice ends before it does."""
        script, shell = self._script, self._own.shell
        assert script.inputs_tree is not None
        settle(shell, self._where)
        inputs = tree_unflatten(map(self._leaf, script.inputs), script.inputs_tree)
        live = [turn for turn in script.turns if isinstance(turn, Live)]
        paths = [turn.path for turn in script.turns]
        paths += [path for turn in live for path, _ in turn.inside]
        modules = {path: shell.get_submodule(path) for path in paths}
        watched = script.quiet or script.fixed  # a mode costs some µs per op
        calls = {m: partial(self._called, path, m) for path, m in modules.items()}
        with intercepted(calls), self._mode if watched else nullcontext():
            output = call(shell, inputs)
        if script.last:
            self._turn(_END.path)
        return output

    def _called(self, path: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Instead of the call of a module: what its turn says."""
        if self._mode.inside:
            result = plainly(module, *args, **kwargs)
            if path in self._inside:
                self._note(self._inside[path], made=tree_leaves(result))
            return result
        turn = self._turn(path)
        if isinstance(turn, Stub):
            for inner in turn.inside:
                self._hooked(inner)
            returned = self._returned(turn)
            self._mode.dead &= turn.number != self._script.begins
            return returned
        if isinstance(turn, Stop):
            self._stop(turn, (args, kwargs))
            raise _Reached
        assert isinstance(turn, Live)
        return self._live(turn, module, args, kwargs)

    def _live(self, turn: Live, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call in the slice; _Reached behind its last layer."""
        if turn.given is None:
            own = tree_leaves((args, kwargs))
        elif turn.parts is None:
            own = turn.given.leaves(f"{self._script.code} calls {turn.path} with", (args, kwargs))
        else:
            self._mode.dead = False
            own = [self._leaf(part) for part in turn.parts]
            args, kwargs = tree_unflatten(own, turn.given.tree)
        self._mode.inside, self._inside = True, dict(turn.inside)
        try:
            if self._script.alone:
                inner = {module.get_submodule(path): path for path in self._inside}
                with intercepted({m: partial(self._called, p, m) for m, p in inner.items()}):
                    result = module(*args, **kwargs)
            else:
                result = plainly(module, *args, **kwargs)
        finally:
            self._mode.inside = False
        made = turn.form.leaves(f"{turn.path or self._script.label} returned", result)
        self._note(turn.number, given=own, made=made, left=own)
        if turn.number == self._script.ends:
            raise _Reached
        return result

    def _note(self, number: int, **leaves: Any) -> None:
        self._values |= self._script.wanted(number, **leaves)

    def _leaf(self, part: Any) -> Any:
        """A leaf of a call."""
        match part:
            case Key():
                value = self._values[part]
                return value.clone() if part in self._script.clones else value
            case Held(name):
                return self._own.held(name)
            case Dummy(dtype, dims):
                shape = [size * self._samples if grows else size for size, grows in dims]
                return torch.zeros(shape, dtype=dtype, device=self._where)
            case Fresh(pickled):
                return pickle.loads(pickled)
        return part

    def _returned(self, turn: Stub) -> Any:
        return tree_unflatten(map(self._leaf, turn.parts), turn.form.tree)

    def _hooked(self, turn: Stub) -> None:
        """Let the hooks of a module inside one that does not run see what it returned."""
        module, output = self._own.shell.get_submodule(turn.path), self._returned(turn)
        with replaced("forward", {module: lambda: output}):
            module()

    def _turn(self, path: str) -> Turn:
        """The next turn, of this path; WorkloadError when it is another's."""
        turn = next(self._turns, _END)
        if turn.path != path:
            raise WorkloadError(
                f"{self._script.code}: the model comes to {path} where it came to {turn.path}; a "
                "timetable needs the same calls for every batch"
            )
        return turn

    def _stop(self, stop: Stop, given: Any) -> None:
        code = self._script.code
        leaves = stop.form.leaves(f"{code} calls {stop.path} with", given)
        for leaf, key in stop.same:
            if leaves[leaf] is not self._values[key]:
                raise WorkloadError(
                    f"{code}: the model gives {stop.path} a tensor that it changes for some "
                    "batches only; change it inside one of its modules, or with torch.where"
                )
        self._note(stop.number, given=leaves)


class _Reached(BaseException):
    """The slice ends; not an Exception, which the model might catch."""


class Quiet(OpMode):
    """While `dead`, code is run only to get past it and draws no random numbers.

    `fixed` are numbers that the model's code goes by and that must be as they were, by their place
    among all that it gets from tensors outside of modules that run (`inside`): all slices must go
    the same way, also those with nothing in them to look at it.
    """

    def __init__(self, code: str, fixed: Mapping[int, Any], *, dead: bool) -> None:
        super().__init__()
        self.dead = dead
        self.inside = False
        self._code, self._fixed, self._count = code, fixed, 0

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.dead and torch.Tag.nondeterministic_seeded in func.tags:
            return _undrawn(func, args, kwargs)
        result = func(*args, **kwargs)
        if func is SCALAR and not self.inside:
            self._compare(result)
        return result

    def _compare(self, number: Any) -> None:
        fixed = self._fixed.get(self._count, number)
        self._count += 1
        if not same(number, fixed):
            raise WorkloadError(
                f"{self._code}: the model's own code goes by a value that is {number!r} and was "
                f"{fixed!r}; decide inside one of its modules, or with torch.where. {_MASKS}"
            )


def _undrawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros of the shapes that an op which draws would give."""
    if func._schema.is_mutable:
        return args[0]
    where = kwargs.get("device") or device_of((args, kwargs))
    bare = _mapped((args, kwargs), "meta")
    if "device" in kwargs:
        bare[1]["device"] = torch.device("meta")
    return _mapped(func(*bare[0], **bare[1]), where)


def _mapped(value: Any, where: Any) -> Any:
    """The same structure with tensors of zeros on `where` in place of its tensors."""
    return tree_map_only(
        Tensor, lambda x: torch.zeros_like(x, device=where, requires_grad=False), value
    )
