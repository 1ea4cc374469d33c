"""Makes the pieces of a recorded run, once it is known what goes into and out of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from executor.chain.constants import constants, lasting
from executor.chain.flow import Key, OneSize, Unsupported
from executor.chain.gap import Gap, Script
from executor.chain.needs import Needs, Place
from executor.chain.parts import (
    Action,
    Dummy,
    Held,
    Inner,
    Left,
    Live,
    Part,
    Same,
    Slot,
    Stop,
    Take,
)
from executor.chain.pieces import Step
from executor.chain.record import Call, Leaf, Record
from executor.chain.shell import shell_of

Dims = tuple[tuple[int, bool], ...]


class Builder:
    """Builds pieces; `small` is the same run as that of `needs` with fewer samples, `twins` its
    calls by the numbers of those in the other."""

    def __init__(
        self, model: nn.Module, needs: Needs, small: Record, twins: Mapping[int, Call]
    ) -> None:
        self._model, self._needs, self._small, self._twins = model, needs, small, twins
        self._flow, self._layers = needs.flow, needs.layers
        self._run = needs.flow.record
        self._paths = {module: path for path, module in model.named_modules()}
        self._sizes = samples_of(self._run), samples_of(small)

    def piece(self, place: Place, before: list[Key], after: list[Key]) -> nn.Module:
        """The piece between these boundaries."""
        make = self._gap if place.kind == "gap" else self._step
        return make(place.number, before, after)

    def _step(self, index: int, before: list[Key], after: list[Key]) -> Step:
        call = self._layers[index]
        path = self._paths[call.module]
        parts = tuple(self._argument(call, place, before) for place in range(len(call.given)))
        assert call.made_tree is not None
        return Step(
            f"{path} ({type(call.module).__name__})",
            call.module,
            parts,
            call.given_tree,
            (call.made_tree, constants(path, call.made)),
            tuple(self._handed_on(call, self._flow.leaks[index], key, before) for key in after),
            self._foreign(call, parts),
            [inner.module for inner in self._flow.leaks[index]],
        )

    def _argument(self, call: Call, place: int, before: list[Key]) -> Part:
        leaf = call.given[place]
        if not leaf.is_tensor:
            return lasting(self._paths[call.module], leaf.value)
        key = self._needs.key(leaf)
        if key is None:
            return Held(self._flow.held(leaf) or "")
        changed = leaf.version != call.given_after[place].version
        return Slot(before.index(key), changed)

    def _handed_on(
        self, call: Call, leaks: Sequence[Call], key: Key, before: list[Key]
    ) -> Take | Inner | Slot:
        """Where a layer has what the boundary after it needs."""
        for number, inner in enumerate(leaks):
            if key.number == inner.number:
                return Inner(number, key.leaf)
        if key.number == call.number and key.kind == "made":
            return Take(key.leaf, 0)
        if key.number == call.number and key.kind == "left":
            own = self._needs.key(call.given[key.leaf])
            assert own is not None
            return Slot(before.index(own))
        return Slot(before.index(key))

    def _foreign(self, call: Call, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Parameters and buffers that a layer uses but does not hold."""
        inside = {id(t) for t in (*call.module.parameters(), *call.module.buffers())}
        used = self._flow.used(self._flow.within[call.number])
        names = {part.name for part in parts if isinstance(part, Held)}
        named = [pair for held in self._run.held.values() for pair in held]
        given = {name: tensor for name, tensor in named if name in names}
        return {name: tensor for name, tensor in used.items() if id(tensor) not in inside} | given

    def _gap(self, gap: int, before: list[Key], after: list[Key]) -> Gap:
        own, redone = self._needs.ops_of(gap)
        dead = self._flow.before(gap)
        writes = {s for op in [*dead, *own] for s in op.writes}
        if gap and {s for op in dead for s in op.writes} & self._run.held.keys():
            raise Unsupported("it changes a buffer outside of its modules")
        buffers = {id(b) for b in self._model.buffers()}
        looked_at = {n for n, t in self._flow.used(dead).items() if id(t) in buffers}
        owned = {*self._flow.used([*own, *redone]), *looked_at}
        last = gap == self._needs.count
        label = (
            f"after {self._paths[self._layers[gap - 1].module]}"
            if gap
            else f"before {self._paths[self._layers[0].module]}"
        )
        script = Script(
            self._actions(gap, before, after, writes),
            tuple(self._input(gap, place, before, writes) for place in self._input_places()),
            self._run.inputs_tree,
            first=gap == 0,
            last=last,
            out=tuple(self._out(gap, place, before, after) for place in range(len(after))),
            batch=self._batch(before),
            quiet=any(op.draws for op in dead),
            fixed=self._flow.fixed(gap),
            has_loss=self._needs.has_loss,
        )
        return Gap(label, shell_of(self._model, owned), script)

    def _out(self, gap: int, place: int, before: list[Key], after: list[Key]) -> int | Slot:
        """Where a gap has what is at this place of the boundary after it."""
        key = after[place]
        made = key.kind in ("made", "left") and key.number in {
            unit.number for unit in self._flow.units[gap]
        }
        if made and key.kind == "left":
            raise Unsupported("a module between layers changes its input in place")
        if made or (gap < self._needs.count and key in self._flow.fresh(gap)):
            return place
        return Slot(key.leaf if gap == 0 else before.index(key))

    def _actions(
        self, gap: int, before: list[Key], after: list[Key], writes: set[int]
    ) -> tuple[tuple[str, Action], ...]:
        """What the calls of modules do, each with its module's path, in the order of the calls."""
        nodes: list[tuple[Call, Action]] = []
        for index in range(gap):
            nodes += [(u, self._left(u, before, writes)) for u in self._flow.units[index]]
            layer = self._layers[index]
            inside = tuple(
                (self._paths[inner.module], self._left(inner, before, writes))
                for inner in self._flow.leaks[index]
            )
            left = self._left(layer, before, writes)
            nodes.append((layer, replace(left, last=index == gap - 1, inside=inside)))
        for unit in self._flow.units[gap]:
            assert unit.made_tree is not None
            kept = constants(self._paths[unit.module], unit.made)
            nodes.append((unit, Live(_takes("made", unit, after), unit.made_tree, kept)))
        if gap < self._needs.count:
            layer = self._layers[gap]
            nodes.append((layer, self._stop(gap, layer, before, after, writes)))
        nodes.sort(key=lambda node: node[0].start)
        return tuple((self._paths[call.module], action) for call, action in nodes)

    def _stop(
        self, gap: int, layer: Call, before: list[Key], after: list[Key], writes: set[int]
    ) -> Stop:
        """The call of the layer behind the gap."""
        same = []
        for place, leaf in enumerate(layer.given):
            key = self._flow.key(leaf) if leaf.is_tensor else None
            if key is not None and leaf.storage not in writes:
                if gap == 0 and key.kind == "input":
                    same.append((place, key.leaf))
                elif key in before:
                    same.append((place, before.index(key)))
        kept = constants(self._paths[layer.module], layer.given)
        return Stop(_takes("given", layer, after), layer.given_tree, kept, tuple(same))

    def _left(self, call: Call, before: list[Key], writes: set[int]) -> Left:
        """The call as one that was before: what of its outputs is needed the boundary has."""
        given = {leaf.key: place for place, leaf in enumerate(call.given) if leaf.is_tensor}
        parts: list[Part] = []
        for place, leaf in enumerate(call.made):
            key = self._flow.key(leaf) if leaf.is_tensor else None
            if not leaf.is_tensor:
                parts.append(lasting(self._paths[call.module], leaf.value))
            elif name := self._flow.held(leaf):
                parts.append(Held(name))
            elif key is not None and key in before:
                parts.append(Slot(before.index(key), leaf.storage in writes))
            elif leaf.key in given:
                parts.append(Same(given[leaf.key]))
            else:
                parts.append(self._dummy(leaf, self._twin(call.number).made[place]))
        assert call.made_tree is not None
        return Left(tuple(parts), call.made_tree)

    def _twin(self, number: int) -> Call:
        """The call of this number as it was with fewer samples."""
        if number in self._twins:
            return self._twins[number]
        module = self._run.calls[number].module
        same = [call for call in self._small.calls if call.module is module]
        if len(same) != 1:
            raise OneSize("it calls its modules otherwise for another batch size")
        return same[0]

    def _input_places(self) -> range:
        return range(len(self._run.inputs))

    def _input(self, gap: int, place: int, before: list[Key], writes: set[int]) -> Part:
        """What the model is called with."""
        leaf, key = self._run.inputs[place], Key("input", 0, place)
        if not leaf.is_tensor:
            return lasting("the model", leaf.value)
        if gap in (0, self._needs.count):
            return Slot(place, leaf.storage in writes)
        if key in before:
            return Slot(before.index(key), leaf.storage in writes)
        return self._dummy(leaf, self._small.inputs[place])

    def _dummy(self, large: Leaf, small: Leaf) -> Dummy:
        return Dummy(large.value.dtype, self._dims(large, small))

    def _dims(self, large: Leaf, small: Leaf) -> Dims:
        """How each size grows with the batch. OneSize where it does so otherwise than in
        proportion."""
        many, few = self._sizes
        if large.value.dim() != small.value.dim():
            raise OneSize("a tensor has other dimensions for another batch size")
        dims = []
        for a, b in zip(large.value.shape, small.value.shape, strict=True):
            if a != b and (a % many or a // many * few != b):
                raise OneSize("a tensor's size is not in proportion to the batch")
            dims.append((int(a), False) if a == b else (int(a) // many, True))
        return tuple(dims)

    def _batch(self, before: list[Key]) -> tuple[int, int] | None:
        """A tensor of the boundary that shows how large the batch is, and its values a sample."""
        many, few = self._sizes
        for place, key in enumerate(before if many != few else ()):
            large = self._flow.leaf_of[key]
            grows = [size for size, grows in self._dims(large, self._small_leaf(key)) if grows]
            if len(grows) == 1 and large.value.numel():
                return place, large.value.numel() // many
        return None

    def _small_leaf(self, key: Key) -> Leaf:
        if key.kind == "input":
            return self._small.inputs[key.leaf]
        call = self._twin(key.number)
        return (call.made if key.kind == "made" else call.given)[key.leaf]


def samples_of(run: Record) -> int:
    """How many samples a run had."""
    return next(len(leaf.value) for leaf in run.inputs if leaf.is_tensor)


def _takes(kind: str, call: Call, after: list[Key]) -> tuple[Take, ...]:
    """What of a call's outputs or arguments goes into the boundary."""
    return tuple(
        Take(key.leaf, place)
        for place, key in enumerate(after)
        if (key.kind, key.number) == (kind, call.number)
    )
