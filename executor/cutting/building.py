"""Makes the pieces of a recorded run, once it is known what goes into and out of each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from executor.cutting.flow import Key
from executor.cutting.gap import Gap
from executor.cutting.needs import Growth, Needs, Place
from executor.cutting.parts import (
    Action,
    Dummy,
    Held,
    Inner,
    Left,
    Live,
    Part,
    Same,
    Script,
    Slot,
    Stop,
    Take,
    Unsupported,
    constants,
    lasting,
)
from executor.cutting.pieces import Step, shell_of
from executor.cutting.record import Call, Leaf


class Builder:
    """Builds pieces of the run that `needs` is of, whose tensors grow as `growth` says."""

    def __init__(self, model: nn.Module, needs: Needs, growth: Growth) -> None:
        self._model, self._needs, self._growth = model, needs, growth
        self._flow, self._layers = needs.flow, needs.layers
        self._run = needs.flow.record
        self._paths = {module: path for path, module in model.named_modules()}

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
            (call.made_tree, constants(path, _values(call.made))),
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
        """The place where a layer has what the boundary after it needs."""
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
        """The place where a gap has what is at this place of the boundary after it."""
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
        """The actions of modules' calls, each with its module's path, in the order of the calls."""
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
            kept = constants(self._paths[unit.module], _values(unit.made))
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
        kept = constants(self._paths[layer.module], _values(layer.given))
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
                parts.append(self._dummy(Key("made", call.number, place), leaf))
        assert call.made_tree is not None
        return Left(tuple(parts), call.made_tree)

    def _input_places(self) -> range:
        return range(len(self._run.inputs))

    def _input(self, gap: int, place: int, before: list[Key], writes: set[int]) -> Part:
        """A leaf of the model's arguments."""
        leaf, key = self._run.inputs[place], Key("input", 0, place)
        if not leaf.is_tensor:
            return lasting("the model", leaf.value)
        if gap in (0, self._needs.count):
            return Slot(place, leaf.storage in writes)
        if key in before:
            return Slot(before.index(key), leaf.storage in writes)
        return self._dummy(key, leaf)

    def _dummy(self, key: Key, leaf: Leaf) -> Dummy:
        return Dummy(leaf.value.dtype, self._growth.dims(key, leaf.value))

    def _batch(self, before: list[Key]) -> tuple[int, int] | None:
        """A tensor of the boundary that shows how large the batch is, and its values a sample."""
        for place, key in enumerate(before if self._growth.any_size else ()):
            tensor = self._flow.leaf_of[key].value
            grows = [size for size, grows in self._growth.dims(key, tensor) if grows]
            if len(grows) == 1 and tensor.numel():
                return place, tensor.numel() // self._growth.samples
        return None


def _values(leaves: Sequence[Leaf]) -> list[Any]:
    return [leaf.value for leaf in leaves]


def _takes(kind: str, call: Call, after: list[Key]) -> tuple[Take, ...]:
    """The leaves of a call's outputs or arguments that go into the boundary."""
    return tuple(
        Take(key.leaf, place)
        for place, key in enumerate(after)
        if (key.kind, key.number) == (kind, call.number)
    )
