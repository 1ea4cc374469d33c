"""The flow of values in a recorded run, once it is known which calls are the layers.

The run is gap 0, layer 0, gap 1, layer 1, ... gap n. In a gap there are *units*, calls of modules
that hold no layer, and free ops between them, which the model's own code runs.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from torch import Tensor

from executor.cutting.parts import Key, Unsupported
from executor.cutting.record import Call, Leaf, Op, Record


class Place(NamedTuple):
    """A layer, or the gap before the layer of that index; the last gap is behind all."""

    kind: Literal["gap", "layer"]
    number: int


class Flow:
    """The makers and users of each tensor; without `has_loss` the model's outputs are not used.

    `layers` are the calls of layers in order; `units` by gap. Keys stand for tensors that some
    piece makes: `maker` says which, `leaf_of` has the tensor as it was when it was recorded.
    """

    def __init__(self, record: Record, layers: Sequence[Call], has_loss: bool) -> None:
        self.record, self.has_loss = record, has_loss
        self.layers, self.count = list(layers), len(layers)
        self._ends = [call.end for call in layers]
        units = units_of(record, layers)
        self.units: list[list[Call]] = [[] for _ in range(self.count + 1)]
        for call in units:
            self.units[self.gap(call.start)].append(call)
        self._ops = record.ops if has_loss else record.ops[:-1]
        nodes = {call.number for call in (*layers, *units)}
        self.free: list[list[Op]] = [[] for _ in self.units]
        self.within: dict[int, list[Op]] = {number: [] for number in nodes}
        for op in self._ops:
            node = next((p for p in op.parents if p in nodes), None)
            if node is None:
                self.free[self.gap(op.time)].append(op)
            else:
                self.within[node].append(op)
        self.maker: dict[Key, Place] = {}
        self.leaf_of: dict[Key, Leaf] = {}
        self._known: dict[tuple[int, int], Key] = {}
        self._of_object: dict[int, list[tuple[int, Key]]] = {}
        for handed in sorted(self._handed(), key=itemgetter(0)):
            self._add(*handed)
        self.leaks = self._leaks()

    def gap(self, time: int) -> int:
        """In which gap, or before the end of which layer, something happened."""
        return bisect(self._ends, time)

    def key(self, leaf: Leaf) -> Key | None:
        """The tensor's key, if some piece or call can hand it over."""
        return self._known.get(leaf.identity)

    def held(self, leaf: Leaf) -> str | None:
        """The name of the parameter or buffer that the leaf is."""
        named = self.record.held.get(leaf.storage, ())
        return next((name for name, tensor in named if tensor is leaf.value), None)

    def used(self, ops: Iterable[Op]) -> dict[str, Tensor]:
        """The parameters and buffers that ops read or write, by name, in the model's order.

        Of several in one storage those that were given themselves; all, if only views of it were.
        """
        ops = list(ops)
        touched, given = storages(ops), {tensor for op in ops for tensor in op.given}
        found: dict[str, Tensor] = {}
        for storage, named in self.record.held.items():
            if storage in touched:
                found |= dict([(n, t) for n, t in named if id(t) in given] or named)
        return found

    def ops(self, gap: int) -> list[Op]:
        """All ops in a gap, also those in its units."""
        inner = [op for unit in self.units[gap] for op in self.within[unit.number]]
        return self.free[gap] + inner

    def fresh(self, gap: int) -> list[Key]:
        """Arguments of the layer behind the gap that are made by free ops in it."""
        return [k for k, place in self.maker.items() if place == ("gap", gap) and k.kind == "given"]

    def again(self, place: Place) -> list[Op]:
        """The ops that run whenever the place does."""
        if place.kind == "layer":
            return self.within[self.layers[place.number].number]
        return [*self.ops(place.number), *self.redone(place.number)]

    def before(self, gap: int) -> list[Op]:
        """Free ops before a gap, in order."""
        return [op for ops in self.free[:gap] for op in ops]

    def redone(self, gap: int) -> list[Op]:
        """Free ops before the gap whose results it needs, or by which the model's code finds its
        way; they run again whenever it does. Unsupported when what it needs is drawn."""
        need = {storage for op in self.ops(gap) for storage in op.reads}
        need |= {self.leaf_of[key].storage for key in self.fresh(gap)}
        earlier = self.before(gap)
        values = _upstream(earlier, need)
        if any(op.draws for op in values):
            raise Unsupported("it draws random numbers outside of its modules and keeps the result")
        told = [op for op in earlier if op.told is not None]
        way = _upstream(earlier, {storage for op in told for storage in op.reads})
        return sorted({*values, *told, *way}, key=lambda op: op.time)

    def fixed(self, gap: int) -> dict[int, Any]:
        """Numbers that free ops tell the model's code and that must be the same in each run, by
        their place among all that are told: choices (bools) that it makes in this gap, and what
        comes of draws until the gap ends. Unsupported for anything else of draws."""
        drawn: set[int] = set()
        found: dict[int, Any] = {}
        count = 0
        for op in self.before(gap + 1):
            random = op.draws or bool(op.reads & drawn)
            drawn |= op.writes if random else set()
            if op.told == () and random:
                raise Unsupported("its code goes by the values of random numbers")
            if op.told:
                if random or (op.chooses and op in self.free[gap]):
                    found[count] = op.told[0]
                count += 1
        return found

    def sources(self, ops: Iterable[Op], before: int) -> set[Key]:
        """Keys of tensors given to ops that calls made before the gap `before`."""
        found = set()
        for op in ops:
            for tensor in op.given & self._of_object.keys():
                times = self._of_object[tensor]
                place = bisect(times, op.time, key=lambda entry: entry[0]) - 1
                if place >= 0:
                    found.add(times[place][1])
        return {k for k in found if k.kind in ("made", "left") and self.maker[k].number < before}

    def _handed(self) -> Iterator[tuple[int, Leaf, Place]]:
        """When which leaf is handed over by which piece."""
        for leaf in self.record.inputs:
            yield 0, leaf, Place("gap", 0)
        for gap, units in enumerate(self.units):
            for unit in units:
                yield from _made(unit, Place("gap", gap))
        for index, layer in enumerate(self.layers):
            for leaf in layer.given:
                yield layer.start, leaf, Place("gap", index)
            yield from _made(layer, Place("layer", index))

    def _add(self, time: int, leaf: Leaf, place: Place) -> None:
        if not leaf.is_tensor or leaf.identity in self._known or self.held(leaf):
            return
        self._known[leaf.identity] = leaf.at
        self.maker[leaf.at], self.leaf_of[leaf.at] = place, leaf
        self._of_object.setdefault(id(leaf.value), []).append((time, leaf.at))

    def _leaks(self) -> list[list[Call]]:
        """For each layer the calls inside of it whose outputs others use too, to whom a hook may
        have given them; those become keys."""
        layer_of = {call.number: index for index, call in enumerate(self.layers)}
        last: dict[int, int] = {}  # when an op outside of all layers was given the tensor
        for op in self._ops:
            if not layer_of.keys() & set(op.parents):
                last |= dict.fromkeys(op.given, op.time)
        found: list[dict[int, Call]] = [{} for _ in self.layers]
        for call in self.record.once.values():
            around = [layer_of[number] for number in call.parents if number in layer_of]
            for leaf in call.made if around else ():
                # Before the call's end, a tensor that is gone had the same id.
                used = leaf.is_tensor and last.get(id(leaf.value), 0) >= call.end
                if used and id(leaf.value) not in self._of_object:
                    self._add(call.end, leaf, Place("layer", around[0]))
                    found[around[0]][call.end] = call
        return [[calls[end] for end in sorted(calls)] for calls in found]


def _made(call: Call, place: Place) -> Iterator[tuple[int, Leaf, Place]]:
    for leaf in (*call.made, *call.left):
        yield call.end, leaf, place


def units_of(record: Record, layers: Sequence[Call]) -> list[Call]:
    """The calls between layers: those that hold no layer and are in none, nor in one another."""
    numbers = {call.number for call in layers}
    around = {parent for call in layers for parent in call.parents}
    units: dict[int, Call] = {}
    for number, call in record.calls.items():
        inner = {*numbers, *units} & set(call.parents)
        if number not in numbers and number not in around and not inner:
            units[number] = call
    return list(units.values())


def storages(ops: Iterable[Op]) -> set[int]:
    """Storages that ops read and write."""
    return {storage for op in ops for storage in op.reads | op.writes}


def _upstream(earlier: Sequence[Op], need: set[int]) -> list[Op]:
    """Those of the ops, which are in order, on whose results the needed storages depend."""
    found = []
    for op in reversed(earlier):
        if op.writes & need:
            need = need | op.reads
            found.append(op)
    return found
