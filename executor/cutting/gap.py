"""The code of a model between two of its layers, as a layer: its own code, without what was before.

Modules called before the gap are not run again: they return what the boundary has of their outputs,
and zeros where nobody uses the values. From there on the model runs as it is, until it calls the
layer after the gap.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only, tree_structure, tree_unflatten

from executor.cutting.calling import call, replaced
from executor.cutting.parts import Form, GapScript, Key, Left, Sources, Stop, Turn, packed
from executor.cutting.pieces import Owner, settle
from executor.cutting.record import SCALAR, intercepted, plainly
from executor.errors import WorkloadError
from executor.numerics import OpMode, same
from executor.workload import loss_in

_END = Turn("its end", -1, Form.of("", [], tree_structure(())))
_MASKS = (
    "A Hugging Face model looks whether attention_mask is all ones: pad to a length that no sample "
    "fills, or leave the mask out of all batches; a decoder does not look with "
    'attn_implementation="eager" in its config'
)


class Gap(Owner):
    """The model's code between two layers, before the first, or after the last."""

    def __init__(self, shell: nn.Module, script: GapScript) -> None:
        """`shell`: the model's modules with the parameters and buffers that the gap uses."""
        super().__init__()
        self.label = script.label
        self.takes_inputs = script.last
        self.shell = shell
        self._script = script

    def forward(self, value: Any, inputs: Any = None) -> Any:
        script = self._script
        values: dict[Key, Any] = dict(zip(script.before, tree_leaves(value), strict=True))
        if script.last:
            values |= dict(zip(script.inputs, tree_leaves(inputs), strict=True))
        try:
            output = _Replay(self.shell, script, values).run()
        except _Reached:
            return packed([values[key] for key in script.after])
        if not script.last:
            raise WorkloadError(f"{self.label}: the model ends before its next layer")
        return output if script.has_loss else loss_in(output)

    @property
    def chooses(self) -> bool:
        """True if the model's code goes by values here, which must be as they were."""
        return bool(self._script.fixed)

    @property
    def picked_parameters(self) -> frozenset[int]:
        """The ids of the parameters that autocast leaves as they are: of which rows are taken."""
        return frozenset(id(attrgetter(name)(self.shell)) for name in self._script.picked)

    def extra_repr(self) -> str:
        """The number of calls before the gap ends."""
        return f"{len(self._script.turns)} calls"


class _Replay:
    """One run of the model's code in a gap. `values`: the boundary's, and those that the next
    boundary needs, as they are made."""

    def __init__(self, shell: nn.Module, script: GapScript, values: dict[Key, Any]) -> None:
        where = device_of(list(values.values()))
        settle(shell, where)
        key, per_sample = script.samples or (None, 1)
        samples = values[key].numel() // per_sample if key else 1
        self._sources = Sources(
            values, lambda name: attrgetter(name)(shell), script.clones, samples, where
        )
        self._shell, self._script, self._values = shell, script, values
        self._mode = Quiet(script.label, script.fixed, dead=script.quiet)
        self._turns = iter(script.turns)

    def run(self) -> Any:
        """The model's output; _Reached where it calls the next layer."""
        script = self._script
        inputs = tree_unflatten(map(self._sources.leaf, script.inputs), script.inputs_tree)
        modules = {turn.path: self._shell.get_submodule(turn.path) for turn in script.turns}
        watched = script.quiet or script.fixed  # a mode costs some µs per op
        calls = {m: partial(self._called, path, m) for path, m in modules.items()}
        with intercepted(calls), self._mode if watched else nullcontext():
            output = call(self._shell, inputs)
        if script.last:
            self._turn(_END.path)
        return output

    def _called(self, path: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Instead of the call of a module: what its turn says."""
        if self._mode.inside:
            return plainly(module, *args, **kwargs)
        turn = self._turn(path)
        if isinstance(turn, Left):
            for inner in turn.inside:
                self._hooked(inner)
            returned = self._returned(turn, tree_leaves((args, kwargs)))
            if turn.last:
                self._mode.dead = False
            return returned
        if isinstance(turn, Stop):
            self._stop(turn, (args, kwargs))
            raise _Reached
        self._mode.inside = True
        try:
            result = plainly(module, *args, **kwargs)
        finally:
            self._mode.inside = False
        made = turn.form.leaves(f"{self._script.label} gets from {path}", result)
        own = tree_leaves((args, kwargs))
        self._values |= self._script.wanted(turn.number, made=made, left=own)
        return result

    def _returned(self, turn: Left, own: Sequence[Any] = ()) -> Any:
        leaves = [self._sources.leaf(part, own) for part in turn.parts]
        return tree_unflatten(leaves, turn.form.tree)

    def _hooked(self, turn: Left) -> None:
        """Let the hooks of a module inside one that does not run see what it returned."""
        module, output = self._shell.get_submodule(turn.path), self._returned(turn)
        with replaced("forward", {module: lambda: output}):
            module()

    def _turn(self, path: str) -> Turn:
        """The next turn, of this path; WorkloadError when it is another's."""
        turn = next(self._turns, _END)
        if turn.path != path:
            raise WorkloadError(
                f"{self._script.label}: the model comes to {path} where it came to {turn.path}; a "
                "timetable needs the same calls for every batch"
            )
        return turn

    def _stop(self, stop: Stop, given: Any) -> None:
        label = self._script.label
        leaves = stop.form.leaves(f"{label} calls {stop.path} with", given)
        for leaf, key in stop.same:
            if leaves[leaf] is not self._values[key]:
                raise WorkloadError(
                    f"{label}: the model gives {stop.path} a tensor that it changes for some "
                    "batches only; change it inside one of its modules, or with torch.where"
                )
        self._values |= self._script.wanted(stop.number, given=leaves)


class _Reached(BaseException):
    """The next layer is called; not an Exception, which the model might catch."""


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
    return tree_map_only(
        Tensor, lambda x: torch.zeros_like(x, device=where, requires_grad=False), value
    )
