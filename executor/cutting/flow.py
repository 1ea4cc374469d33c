"""The flow of values in a recorded run, once it is known which calls are the layers.

The run is gap 0, layer 1, gap 1, ... layer n, gap n. In a gap there are *units*, calls of modules
that hold no layer, and free ops between them, which the model's own code runs.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

from executor.cutting.parts import Unsupported
from executor.cutting.record import Call, Leaf, Op, Record


class Key(NamedTuple):
    """A tensor that goes from one piece to another: leaf `leaf` of the batch's inputs, of what
    the call `number` returned, was given, or left changed in what it was given."""

    kind: Literal["input", "made", "given", "left"]
    number: int
    leaf: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {self.leaf}"


class Flow:
    """The makers and users of each tensor.

    `layers` are the calls of layers in order; `units` by gap. Keys stand for tensors that some
    piece makes; `leaf_of` has the tensor as it was when it was recorded.
    """

    def __init__(self, record: Record, layers: Sequence[Call]) -> None:
        self.record = record
        self.layers = list(layers)
        self._ends = [call.end for call in layers]
        units = units_of(record, layers)
        self.units: list[list[Call]] = [[] for _ in range(len(layers) + 1)]
        for call in units:
            self.units[self.gap(call.start)].append(call)
        nodes = {call.number for call in (*layers, *units)}
        self.free: list[list[Op]] = [[] for _ in self.units]
        self.within: dict[int, list[Op]] = {number: [] for number in nodes}
        for op in record.ops:
            node = next((p for p in op.parents if p in nodes), None)
            if node is None:
                self.free[self.gap(op.time)].append(op)
            else:
                self.within[node].append(op)
        self.leaf_of: dict[Key, Leaf] = {}
        self._known: dict[tuple[int, int], Key] = {}
        self._of_object: dict[int, list[tuple[int, Key]]] = {}
        self._register(units)
        self.leaks = self._leaks()

    def gap(self, time: int) -> int:
        """In which gap, or before the end of which layer, something happened."""
        return bisect(self._ends, time)

    def key(self, leaf: Leaf) -> Key | None:
        """The tensor's key, if some piece or call can hand it over."""
        return self._known.get(leaf.key)

    def held(self, leaf: Leaf) -> str | None:
        """The name of the parameter or buffer that the leaf is."""
        named = self.record.held.get(leaf.storage, ())
        return next((name for name, tensor in named if tensor is leaf.value), None)

    def used(self, ops: Iterable[Op]) -> dict[str, Tensor]:
        """The parameters and buffers that ops read or write, by name, in the model's order.

        Of several in one storage those that were given themselves; all, if only views of it were.
        """
        ops = list(ops)
        touched, given = self.storages(ops), {tensor for op in ops for tensor in op.given}
        found: dict[str, Tensor] = {}
        for storage, named in self.record.held.items():
            if storage in touched:
                found |= dict([(n, t) for n, t in named if id(t) in given] or named)
        return found

    def ops(self, gap: int) -> list[Op]:
        """All ops in a gap, also those in its units."""
        inner = [op for unit in self.units[gap] for op in self.within[unit.number]]
        return self.free[gap] + inner

    def fresh(self, layer: int) -> list[Key]:
        """Arguments of layer `layer` (from 0) that are made by free ops in the gap before it."""
        call = self.layers[layer]
        keys = (self.key(leaf) for leaf in call.given if leaf.is_tensor)
        return sorted({k for k in keys if k and (k.kind, k.number) == ("given", call.number)})

    def before(self, gap: int) -> list[Op]:
        """Free ops before a gap, in order."""
        return [op for ops in self.free[:gap] for op in ops]

    def redone(self, gap: int, wanted: Iterable[Leaf]) -> list[Op]:
        """Free ops before the gap whose results it needs, or by which the model's code finds its
        way; they run again whenever it does. Unsupported when what it needs is drawn."""
        need = {storage for op in self.ops(gap) for storage in op.reads}
        need |= {leaf.storage for leaf in wanted}
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
                here = op in self.free[gap]
                found |= {count: op.told[0]} if random or (here and op.chooses) else {}
                count += 1
        return found

    def sources(self, ops: Iterable[Op], before: int) -> set[Key]:
        """Keys of tensors given to ops that calls made before the gap `before`."""
        found = set()
        for op in ops:
            for tensor in op.given & self._of_object.keys():
                times = self._of_object[tensor]
                place = bisect(times, op.time, key=lambda entry: entry[0]) - 1
                if place >= 0 and self.gap(times[place][0] - 1) < before:
                    found.add(times[place][1])
        return {key for key in found if key.kind in ("made", "left")}

    def storages(self, ops: Iterable[Op]) -> set[int]:
        """Storages that ops read and write."""
        return {storage for op in ops for storage in op.reads | op.writes}

    def _leaks(self) -> list[list[Call]]:
        """For each layer the calls inside of it whose outputs others use too, to whom a hook may
        have given them; those become keys."""
        inner: dict[int, tuple[Call, int, int]] = {}
        place = {call.number: index for index, call in enumerate(self.layers)}
        counts = Counter(call.module for call in self.record.calls)
        for call in (call for call in self.record.calls if counts[call.module] == 1):
            for layer in place.keys() & set(call.parents):
                for number, leaf in enumerate(call.made):
                    if leaf.is_tensor and id(leaf.value) not in self._of_object:
                        inner.setdefault(id(leaf.value), (call, number, place[layer]))
        last: dict[int, int] = {}  # when an op outside of all layers was given the tensor
        for op in self.record.ops:
            if not place.keys() & set(op.parents):
                last |= dict.fromkeys(op.given, op.time)
        outputs = {id(leaf.value) for leaf in self.record.output}
        found: list[list[Call]] = [[] for _ in self.layers]
        for tensor, (call, number, layer) in inner.items():
            # Before the call's end, a tensor that is gone had the same id.
            if last.get(tensor, 0) < call.end and tensor not in outputs:
                continue
            self._add(Key("made", call.number, number), call.made[number], call.end)
            found[layer] += [call] if call not in found[layer] else []
        return [sorted(calls, key=lambda call: call.end) for calls in found]

    def _register(self, units: Sequence[Call]) -> None:
        for position, leaf in enumerate(self.record.inputs):
            self._add(Key("input", 0, position), leaf, 0)
        ends = [(call.end, "end", call) for call in (*units, *self.layers)]
        starts = [(call.start, "start", call) for call in self.layers]
        for time, what, call in sorted(ends + starts, key=lambda event: event[0]):
            if what == "start":
                for position, leaf in enumerate(call.given):
                    self._add(Key("given", call.number, position), leaf, time)
                continue
            for position, leaf in enumerate(call.made):
                self._add(Key("made", call.number, position), leaf, time)
            for position, leaf in enumerate(call.given_after):
                if leaf.version != call.given[position].version:
                    self._add(Key("left", call.number, position), leaf, time)

    def _add(self, key: Key, leaf: Leaf, time: int) -> None:
        if not isinstance(leaf.value, Tensor) or leaf.key in self._known or self.held(leaf):
            return
        self._known[leaf.key] = key
        self.leaf_of[key] = leaf
        self._of_object.setdefault(id(leaf.value), []).append((time, key))


def units_of(record: Record, layers: Sequence[Call]) -> list[Call]:
    """The calls between layers: those that hold no layer and are in none, nor in one another."""
    numbers = {call.number for call in layers}
    around = {parent for call in layers for parent in call.parents}
    units: dict[int, Call] = {}
    for call in record.calls:
        inner = numbers & set(call.parents) or set(units) & set(call.parents)
        if call.number not in numbers and call.number not in around and not inner:
            units[call.number] = call
    return list(units.values())


def _upstream(earlier: Sequence[Op], need: set[int]) -> list[Op]:
    """Those of the ops, which are in order, on whose results the needed storages depend."""
    found = []
    for op in reversed(earlier):
        if op.writes & need:
            need = need | op.reads
            found.append(op)
    return found
