"""The code of a model between two of its layers, as a layer: its own code, without what was before.

Modules called before the gap are not run again: they return what the boundary has of their outputs,
and zeros where nobody uses the values. From there on the model runs as it is, until it calls the
layer after the gap.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from executor.cutting.calling import call
from executor.cutting.parts import (
    Action,
    Const,
    Dummy,
    Fresh,
    Held,
    Left,
    Live,
    Part,
    Same,
    Script,
    Slot,
    Stop,
    expect,
    packed,
    unpacked,
)
from executor.cutting.pieces import Owner, apply_to, settle
from executor.cutting.record import SCALAR, intercepted, plainly
from executor.errors import WorkloadError
from executor.numerics import OpMode, same
from executor.workload import loss_in

_END = "its end"
_MASKS = (
    "A Hugging Face model looks whether attention_mask is all ones: pad to a length that no sample "
    "fills, or leave the mask out of all batches; a decoder does not look with "
    'attn_implementation="eager" in its config'
)


class Gap(Owner):
    """The model's code between two layers, before the first, or after the last."""

    def __init__(self, label: str, shell: nn.Module, script: Script) -> None:
        """`shell`: the model's modules with the parameters and buffers that the gap uses."""
        super().__init__()
        self.label = label
        self.takes_inputs = script.last
        self.shell = shell
        self._script = script

    def forward(self, value: Any, inputs: Any = None) -> Any:
        script = self._script
        given = value if script.first else inputs
        values = tree_leaves(value) if script.first else unpacked(value)
        where, batch = device_of(value), _size(script, values, given)
        settle(self.shell, where)
        replay = _Replay(self.label, self.shell, script, values, batch, where)
        ended, output = replay.run(replay.inputs(given))
        if ended != script.last:
            raise WorkloadError(f"{self.label}: the model ends before its next layer")
        if ended:
            return output if script.has_loss else loss_in(output)
        kept = replay.kept
        return packed([values[o.place] if isinstance(o, Slot) else kept[o] for o in script.out])

    @property
    def chooses(self) -> bool:
        """True if the model's code goes by values here, which must be as they were."""
        return bool(self._script.fixed)

    def extra_repr(self) -> str:
        """The number of calls before the gap ends."""
        return f"{len(self._script.actions)} calls"

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> "Gap":
        apply_to(self.shell, fn, recurse)
        return self


class _Replay:
    """One run of the model's code in a gap. `kept`: values made on the way, by their place."""

    def __init__(
        self,
        label: str,
        shell: nn.Module,
        script: Script,
        values: Sequence[Tensor],
        batch: int,
        where: torch.device,
    ) -> None:
        self.kept: dict[int, Tensor] = {}
        self._batch, self._where = batch, where
        self._label, self._shell, self._script, self._values = label, shell, script, values
        self._mode = Quiet(label, script.fixed, dead=script.quiet)
        self._turns = iter(script.actions)

    def inputs(self, given: Any) -> Any:
        """The model's arguments: the batch, or what the boundary has of it."""
        parts, tree = self._script.inputs, self._script.inputs_tree
        if given is None:
            return tree_unflatten([self._part(part, ()) for part in parts], tree)
        leaves, tree = tree_flatten(given)
        apart = [isinstance(part, Slot) and part.clone for part in parts]
        if not any(apart):
            return given
        return tree_unflatten(
            [leaf.clone() if own else leaf for leaf, own in zip(leaves, apart, strict=True)], tree
        )

    def run(self, inputs: Any) -> tuple[bool, Any]:
        """Run the model; True and its output if it came to its end."""
        modules = {path: self._shell.get_submodule(path) for path, _ in self._script.actions}
        watched = self._script.quiet or self._script.fixed  # a mode costs some µs per op
        with intercepted({m: partial(self._called, path, m) for path, m in modules.items()}):
            try:
                with self._mode if watched else nullcontext():
                    output = call(self._shell, inputs)
            except _Reached:
                return False, None
        if self._script.last:
            self._turn(_END)
        return True, output

    def _called(self, path: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Instead of the call of a module: what its turn says."""
        if self._mode.inside:
            return plainly(module, *args, **kwargs)
        action = self._turn(path)
        if isinstance(action, Left):
            own = tree_leaves((args, kwargs))
            for inner, returned in action.inside:
                self._hooked(inner, tree_unflatten(self._parts(returned, ()), returned.tree))
            parts = self._parts(action, own)
            if action.last:
                self._mode.dead = False
            return tree_unflatten(parts, action.tree)
        if isinstance(action, Stop):
            self._stop(action, path, (args, kwargs))
            raise _Reached
        assert action is not None
        self._mode.inside = True
        try:
            result = plainly(module, *args, **kwargs)
        finally:
            self._mode.inside = False
        self._keep(action, f"gets from {path}", result)
        return result

    def _parts(self, left: Left, own: Sequence[Any]) -> list[Any]:
        return [self._part(part, own) for part in left.parts]

    def _hooked(self, path: str, output: Any) -> None:
        """Let the hooks of a module inside one that does not run see what it returned."""
        module = self._shell.get_submodule(path)
        own = vars(module).get("forward")
        module.forward = lambda: output
        try:
            module()
        finally:
            del module.forward
            if own is not None:
                module.forward = own

    def _turn(self, path: str) -> Action | None:
        """The action of this call; WorkloadError when it is another's turn."""
        before, action = next(self._turns, (_END, None))
        if before != path:
            raise WorkloadError(
                f"{self._label}: the model comes to {path} where it came to {before}; a "
                "timetable needs the same calls for every batch"
            )
        return action

    def _keep(self, action: Live | Stop, what: str, value: Any) -> None:
        leaves, tree = tree_flatten(value)
        expect(self._label, what, leaves, tree, action.tree, action.constants)
        self.kept.update((take.place, leaves[take.leaf]) for take in action.takes)

    def _stop(self, stop: Stop, path: str, value: Any) -> None:
        self._keep(stop, f"calls {path} with", value)
        leaves = tree_leaves(value)
        for leaf, place in stop.same:
            if leaves[leaf] is not self._values[place]:
                raise WorkloadError(
                    f"{self._label}: the model gives {path} a tensor that it changes for some "
                    "batches only; change it inside one of its modules, or with torch.where"
                )

    def _part(self, part: Part, own: Sequence[Any]) -> Any:
        """A leaf of what the model is given, or a module returns that was given `own`."""
        match part:
            case Slot(place, clone):
                return self._values[place].clone() if clone else self._values[place]
            case Dummy():
                return part.at(self._batch, self._where)
            case Same(place):
                return own[place]
            case Held(name):
                return attrgetter(name)(self._shell)
            case Fresh():
                return part.made()
            case Const(value):
                return value


class _Reached(BaseException):
    """The next layer is called; not an Exception, which the model might catch."""


def _size(script: Script, values: Sequence[Tensor], given: Any) -> int:
    """The number of samples."""
    if given is not None:
        return next((len(x) for x in tree_leaves(given) if isinstance(x, Tensor)), 1)
    if script.batch is None:
        return 1
    place, per_sample = script.batch
    return values[place].numel() // per_sample


class Quiet(OpMode):
    """While `dead`, code is run only to get past it and draws no random numbers.

    `fixed` are numbers that the model's code goes by and that must be as they were, by their place
    among all that it gets from tensors outside of modules that run (`inside`): all pieces must go
    the same way, also those with nothing in them to look at it.
    """

    def __init__(self, label: str, fixed: Mapping[int, Any], *, dead: bool) -> None:
        super().__init__()
        self.dead = dead
        self.inside = False
        self._label, self._fixed, self._count = label, fixed, 0

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
                f"{self._label}: the model's own code goes by a value that is {number!r} and was "
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


def device_of(value: Any) -> torch.device:
    """The device of the first tensor; the CPU where there is none."""
    tensors = (x.device for x in tree_leaves(value) if isinstance(x, Tensor))
    return next(tensors, torch.device("cpu"))


def _mapped(value: Any, where: Any) -> Any:
    """The same structure with tensors of zeros on `where` in place of its tensors."""
    leaves, tree = tree_flatten(value)
    bare = [
        torch.zeros_like(x, device=where, requires_grad=False) if isinstance(x, Tensor) else x
        for x in leaves
    ]
    return tree_unflatten(bare, tree)
