"""Makes the slices of a recorded run, once it is known what goes into and out of each."""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from executor.cutting.flow import Flow, Place
from executor.cutting.needs import Growth, boundaries, groups
from executor.cutting.parts import Dummy, Form, Held, Key, Live, Script, Stop, Stub, constant
from executor.cutting.record import Call, Leaf
from executor.cutting.shells import bytes_of, shell_of
from executor.cutting.slices import Slice

Keys = tuple[Key, ...]


class Builder:
    """Builds slices of the model from a run whose tensors grow as `growth` says."""

    def __init__(self, model: nn.Module, flow: Flow, growth: Growth) -> None:
        self._model, self._flow, self._growth = model, flow, growth
        self._inputs = tuple(leaf.at for leaf in flow.record.inputs)
        self._paths = {module: path for path, module in model.named_modules()}

    def slices(self) -> list[nn.Module]:
        """All of them, in order; none of a model without parameters."""
        every = groups(self._flow)
        ends = [self._inputs, *map(tuple, boundaries(self._flow, every))]
        return [self._slice(*one) for one in zip(every, ends, ends[1:], strict=False)]

    def _slice(self, places: Sequence[Place], before: Keys, after: Keys) -> Slice:
        flow, begin, end = self._flow, places[0], places[-1]
        gaps = [place.number for place in places if place.kind == "gap"]
        layers = [flow.layers[place.number] for place in places if place.kind == "layer"]
        again = [op for place in places for op in flow.again(place)]
        used, own = flow.used(again), {id(t) for x in layers for t in _tensors(x.module)}
        if not gaps and len(layers) == 1:
            return self._alone(begin, before, after, used, own)
        dead = flow.before(begin.number + (begin.kind == "layer"))
        writes = {storage for op in [*dead, *again] for storage in op.writes}
        first, last = begin == ("gap", 0), end == ("gap", flow.count)
        inputs: Sequence[Any] = self._inputs
        if not (first or last):
            inputs = [self._origin("the model", leaf, before) for leaf in flow.record.inputs]
        stubs, live = self._stubs(begin, before), self._live_turns(places, before)
        stop = self._stop(end.number, before, writes) if end.kind == "gap" and not last else ()
        given = [part for turn in stubs for made in (turn, *turn.inside) for part in made.parts]
        given += [*inputs, *(part for turn in live for part in turn.parts or ())]
        script = Script(
            self._label(places),
            self._label([Place("gap", gaps[0])] if gaps else places),
            before,
            after,
            tuple(key for key, leaf in self._leaves(given).items() if leaf.storage in writes),
            tuple(sorted([*stubs, *live, *stop], key=attrgetter("number"))),
            begins=flow.layers[begin.number - 1].number if begin.kind == "gap" else -1,
            ends=layers[-1].number if end.kind == "layer" else -1,
            inputs=tuple(inputs),
            inputs_tree=flow.record.inputs_tree,
            last=last,
            samples=self._samples([*inputs, *before]),
            quiet=any(op.draws for op in dead),
            fixed={count: value for gap in gaps for count, value in flow.fixed(gap).items()},
            has_loss=flow.has_loss,
            picked=tuple(used.keys() - flow.used(op for op in again if not op.picks).keys()),
        )
        looked_at = flow.used(dead)  # buffers, by the code before the slice
        own |= {id(t) for t in used.values()}
        own |= set(map(id, looked_at.values())).intersection(map(id, self._model.buffers()))
        return Slice(shell_of(self._model, own), script, {})

    def _alone(
        self, layer: Place, before: Keys, after: Keys, used: Mapping[str, Tensor], own: set[int]
    ) -> Slice:
        """One layer, without the model's code; parameters that it uses may be elsewhere."""
        call, label = self._flow.layers[layer.number], self._label([layer])
        turn = self._live(layer.number, before, {m: p for p, m in call.module.named_modules()})
        parts = turn.parts or ()
        changed = [parts[leaf.at.leaf] for leaf in call.left]
        clones = tuple(part for part in changed if isinstance(part, Key))
        script = Script(label, label, before, after, clones, (turn,), ends=call.number)
        names = [part.name for part in parts if isinstance(part, Held)]
        foreign = {name: tensor for name, tensor in used.items() if id(tensor) not in own}
        foreign |= {name: attrgetter(name)(self._model) for name in names}
        return Slice(call.module, script, foreign)

    def _label(self, places: Sequence[Place]) -> str:
        """The largest of its layers; where it is in the model, if it has none."""
        layers = [self._flow.layers[p.number].module for p in places if p.kind == "layer"]
        if layers:
            largest = max(layers, key=bytes_of)
            return f"{self._paths[largest]} ({type(largest).__name__})"
        gap = places[0].number
        beside = self._paths[self._flow.layers[max(0, gap - 1)].module]
        return f"{'after' if gap else 'before'} {beside}"

    def _stubs(self, begin: Place, before: Keys) -> list[Stub]:
        """The calls before a place: what of their outputs is needed the boundary has."""
        flow, found = self._flow, list[Stub]()
        for layer, leaks in zip(flow.layers[: begin.number], flow.leaks, strict=False):
            inside = tuple(self._stub(inner, before) for inner in leaks)
            found.append(self._stub(layer, before, inside))
        units = flow.units[: begin.number + (begin.kind == "layer")]
        return found + [self._stub(unit, before) for several in units for unit in several]

    def _stub(self, call: Call, before: Keys, inside: tuple[Stub, ...] = ()) -> Stub:
        path = self._paths[call.module]
        parts = tuple(self._origin(path, leaf, before) for leaf in call.made)
        return Stub(path, call.number, Form.of(path, call.made, call.made_tree), parts, inside)

    def _live_turns(self, places: Sequence[Place], before: Keys) -> list[Live]:
        """The calls in a slice."""
        found: list[Live] = []
        for place in places:
            if place.kind == "layer":
                found.append(self._live(place.number, before if place == places[0] else None))
                continue
            for unit in self._flow.units[place.number]:
                path = self._paths[unit.module]
                found.append(Live(path, unit.number, Form.of(path, unit.made, unit.made_tree)))
        return found

    def _live(
        self, index: int, before: Keys | None, paths: Mapping[nn.Module, str] | None = None
    ) -> Live:
        """A layer that runs. `before`: the slice begins with it; `paths`: of its own modules, if
        it is all that there is."""
        call, named = self._flow.layers[index], paths or self._paths
        path = self._paths[call.module]
        parts = [self._origin(path, x, before) for x in call.given] if before is not None else None
        return Live(
            named[call.module],
            call.number,
            Form.of(path, call.made, call.made_tree),
            given=Form.of(path, call.given, call.given_tree),
            parts=None if parts is None else tuple(parts),
            inside=tuple((named[x.module], x.number) for x in self._flow.leaks[index]),
        )

    def _stop(self, index: int, before: Keys, writes: Collection[int]) -> tuple[Stop]:
        """The call of the layer behind a slice."""
        layer = self._flow.layers[index]
        path = self._paths[layer.module]
        pairs = [(x.at.leaf, self._flow.key(x)) for x in layer.given if x.storage not in writes]
        same = tuple((place, key) for place, key in pairs if key and key in before)
        form = Form.of(path, layer.given, layer.given_tree)
        return (Stop(path, layer.number, form, same),)

    def _origin(self, where: str, leaf: Leaf, before: Keys) -> Any:
        """Where a leaf comes from."""
        if not leaf.is_tensor:
            return constant(where, leaf.value)
        if name := self._flow.held(leaf):
            return Held(name)
        key = self._flow.key(leaf)
        return key if key in before else Dummy(leaf.value.dtype, self._growth.dims(leaf))

    def _leaves(self, parts: Sequence[Any]) -> dict[Key, Leaf]:
        """The tensors among these that some place makes, by their keys."""
        keys = [part for part in parts if isinstance(part, Key)]
        return {key: self._flow.leaf_of[key] for key in keys if key in self._flow.leaf_of}

    def _samples(self, parts: Sequence[Any]) -> tuple[Key, int] | None:
        """A tensor among these that shows how large the batch is, and its values a sample."""
        for key, leaf in self._leaves(parts).items() if self._growth.any_size else ():
            grows = [size for size, grows in self._growth.dims(leaf) if grows]
            if len(grows) == 1 and leaf.value.numel():
                return key, leaf.value.numel() // self._growth.samples
        return None


def _tensors(module: nn.Module) -> tuple[Tensor, ...]:
    return *module.parameters(), *module.buffers()
