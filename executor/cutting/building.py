"""Makes the pieces of a recorded run, once it is known what goes into and out of each."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from executor.cutting.flow import Flow, Place
from executor.cutting.gap import Gap
from executor.cutting.needs import Growth
from executor.cutting.parts import (
    Dummy,
    Form,
    GapScript,
    Held,
    Key,
    Left,
    Part,
    Same,
    StepScript,
    Stop,
    Turn,
    constant,
)
from executor.cutting.pieces import Step, shell_of
from executor.cutting.record import Call, Leaf

Keys = tuple[Key, ...]


class Builder:
    """Builds pieces of the model from a run whose tensors grow as `growth` says."""

    def __init__(self, model: nn.Module, flow: Flow, growth: Growth) -> None:
        self._model, self._flow, self._growth = model, flow, growth
        self._inputs = tuple(leaf.at for leaf in flow.record.inputs)
        self._paths = {module: path for path, module in model.named_modules()}

    def pieces(
        self, places: Sequence[Place], boundaries: Sequence[Sequence[Key]]
    ) -> list[nn.Module]:
        """The pieces, each with the boundary behind it."""
        ends = [self._inputs, *map(tuple, boundaries)]
        return [
            (self._gap if place.kind == "gap" else self._step)(place.number, before, after)
            for place, (before, after) in zip(places, pairwise(ends), strict=True)
        ]

    def _step(self, index: int, before: Keys, after: Keys) -> Step:
        call, leaks = self._flow.layers[index], self._flow.leaks[index]
        path, inside = self._paths[call.module], {m: p for p, m in call.module.named_modules()}
        parts = tuple(self._part(path, leaf, before) for leaf in call.given)
        changed = [parts[leaf.at.leaf] for leaf in call.left]
        script = StepScript(
            f"{path} ({type(call.module).__name__})",
            before,
            after,
            tuple(part for part in changed if isinstance(part, Key)),
            number=call.number,
            parts=parts,
            tree=call.given_tree,
            made=_form(path, call.made, call.made_tree),
            inside=tuple((inside[inner.module], inner.number) for inner in leaks),
        )
        return Step(call.module, script, self._foreign(call, parts))

    def _foreign(self, call: Call, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Parameters and buffers that a layer uses but does not hold."""
        inside = {id(t) for t in (*call.module.parameters(), *call.module.buffers())}
        used = self._flow.used(self._flow.within[call.number])
        names = [part.name for part in parts if isinstance(part, Held)]
        given = {name: attrgetter(name)(self._model) for name in names}
        return {name: tensor for name, tensor in used.items() if id(tensor) not in inside} | given

    def _gap(self, gap: int, before: Keys, after: Keys) -> Gap:
        flow = self._flow
        own, dead = flow.ops(gap), flow.before(gap)
        buffers = {id(b) for b in self._model.buffers()}
        looked_at = {n for n, t in flow.used(dead).items() if id(t) in buffers}
        again = [*own, *flow.redone(gap)]
        used = flow.used(again)
        owned = {*used, *looked_at}
        picked = used.keys() - flow.used(op for op in again if not op.picks).keys()
        writes = {storage for op in [*dead, *own] for storage in op.writes}
        first, last = gap == 0, gap == flow.count
        inputs: tuple[Part, ...] = self._inputs
        if not (first or last):
            inputs = tuple(self._part("the model", leaf, before) for leaf in flow.record.inputs)
        left = self._left_before(gap, before)
        returned = [p for turn in left for made in (turn, *turn.inside) for p in made.parts]
        given = self._leaves([*inputs, *returned])
        script = GapScript(
            f"{'before' if first else 'after'} {self._paths[flow.layers[max(0, gap - 1)].module]}",
            before,
            after,
            tuple(key for key, leaf in given.items() if leaf.storage in writes),
            turns=tuple(sorted([*left, *self._own(gap, before, writes)], key=attrgetter("number"))),
            inputs=inputs,
            inputs_tree=flow.record.inputs_tree,
            last=last,
            samples=self._samples([*inputs, *before]),
            quiet=any(op.draws for op in dead),
            fixed=flow.fixed(gap),
            has_loss=flow.has_loss,
            picked=tuple(sorted(picked)),
        )
        return Gap(shell_of(self._model, owned), script)

    def _left_before(self, gap: int, before: Keys) -> list[Left]:
        """The calls before the gap: what of their outputs is needed the boundary has."""
        found: list[Left] = []
        for index in range(gap):
            found += [self._left(unit, before) for unit in self._flow.units[index]]
            layer = self._left(self._flow.layers[index], before)
            inside = tuple(self._left(inner, before) for inner in self._flow.leaks[index])
            found.append(replace(layer, last=index == gap - 1, inside=inside))
        return found

    def _left(self, call: Call, before: Keys) -> Left:
        turn = self._turn(call)
        parts = (self._part(turn.path, leaf, before, call.given) for leaf in call.made)
        return Left(turn.path, turn.number, turn.form, tuple(parts))

    def _turn(self, call: Call) -> Turn:
        path = self._paths[call.module]
        return Turn(path, call.number, _form(path, call.made, call.made_tree))

    def _own(self, gap: int, before: Keys, writes: set[int]) -> list[Turn]:
        """The calls in the gap, and that of the layer behind it."""
        found = [self._turn(unit) for unit in self._flow.units[gap]]
        for layer in self._flow.layers[gap : gap + 1]:
            path = self._paths[layer.module]
            whole = [leaf for leaf in layer.given if leaf.storage not in writes]
            pairs = [(leaf.at.leaf, self._flow.key(leaf)) for leaf in whole]
            same = [(place, key) for place, key in pairs if key and key in before]
            form = _form(path, layer.given, layer.given_tree)
            found.append(Stop(path, layer.number, form, tuple(same)))
        return found

    def _part(self, where: str, leaf: Leaf, before: Keys, own: Sequence[Leaf] = ()) -> Part:
        """Where a leaf comes from: an output maybe from the call's `own` arguments."""
        if not leaf.is_tensor:
            return constant(where, leaf.value)
        if name := self._flow.held(leaf):
            return Held(name)
        key = self._flow.key(leaf)
        if key in before:
            return key
        handed_on = [place for place, given in enumerate(own) if given.identity == leaf.identity]
        if handed_on:
            return Same(handed_on[-1])
        return Dummy(leaf.value.dtype, self._growth.dims(leaf))

    def _leaves(self, parts: Sequence[Part]) -> dict[Key, Leaf]:
        """The tensors among these that some piece makes, by their keys."""
        keys = [part for part in parts if isinstance(part, Key)]
        return {key: self._flow.leaf_of[key] for key in keys if key in self._flow.leaf_of}

    def _samples(self, parts: Sequence[Part]) -> tuple[Key, int] | None:
        """A tensor among these that shows how large the batch is, and its values a sample."""
        for key, leaf in self._leaves(parts).items() if self._growth.any_size else ():
            grows = [size for size, grows in self._growth.dims(leaf) if grows]
            if len(grows) == 1 and leaf.value.numel():
                return key, leaf.value.numel() // self._growth.samples
        return None


def _form(path: str, leaves: Sequence[Leaf], tree: TreeSpec) -> Form:
    return Form.of(path, [leaf.value for leaf in leaves], tree)
