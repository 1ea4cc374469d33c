"""The tensors that each piece of a recorded run takes from those before it and makes for others.

The pieces are the layers, in order, and those of the gaps between them in which anything happens.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from executor.cutting.flow import Flow, Key
from executor.cutting.parts import Dims, OneSize, Unsupported
from executor.cutting.record import Leaf, Op, Record


class Place(NamedTuple):
    """A layer, or the gap before the layer of that index; the last gap is behind all."""

    kind: Literal["gap", "layer"]
    number: int


class Needs:
    """The tensors at each boundary; without `has_loss` the model's outputs are not wanted."""

    def __init__(self, flow: Flow, has_loss: bool) -> None:
        self.flow, self.has_loss = flow, has_loss
        self.layers, self.count = flow.layers, len(flow.layers)
        self._run = flow.record

    def places(self) -> list[Place]:
        """The pieces in the order in which they run."""
        running = self._running()
        found: list[Place] = []
        for index in range(self.count):
            found += [Place("gap", index)] if index in running else []
            found.append(Place("layer", index))
        return [*found, Place("gap", self.count)]

    def boundaries(self, places: Sequence[Place]) -> list[list[Key]]:
        """The tensors handed on behind each piece, in the order in which it is made."""
        uses = [self.uses(place) for place in places]
        made: list[Key] = []
        found = []
        for position, place in enumerate(places):
            made += self._makes(place)
            later = {key for use in uses[position + 1 :] for key in use}
            found.append([key for key in made if key in later])
        if {key for use in uses for key in use} - set(made):
            raise Unsupported("a value leaves a module otherwise than as its output")
        return found

    def uses(self, place: Place) -> list[Key]:
        """Keys that a piece takes from the boundary before it."""
        if place.kind == "layer":
            given = self.layers[place.number].given
            keys = [self.key(leaf) for leaf in given if leaf.is_tensor]
            return list(dict.fromkeys(key for key in keys if key))
        gap = place.number
        if gap == 0:
            return []
        own, redone = self.ops_of(gap)
        found = self.flow.sources([*own, *redone], before=gap)
        if gap == self.count:
            ends = [self.flow.key(leaf) for leaf in self._outputs()]
            found |= {k for k in ends if k and k.kind == "made" and self._before(k, gap)}
        else:
            found |= self._inputs_read(gap)
        return sorted(found)

    def key(self, leaf: Leaf) -> Key | None:
        """The key of a tensor that a layer is given; None for a parameter or buffer."""
        if self.flow.held(leaf):
            return None
        key = self.flow.key(leaf)
        if key is None:
            raise Unsupported("a module is given a tensor of which nobody knows where it is from")
        return key

    def ops_of(self, gap: int) -> tuple[list[Op], list[Op]]:
        """The gap's own ops, and the free ops before it that run again with it."""
        if gap == self.count:
            wanted = self._outputs()
        else:
            call = self.layers[gap]
            wanted = [call.given[key.leaf] for key in self.flow.fresh(gap)]
        return self.flow.ops(gap), self.flow.redone(gap, wanted)

    def _running(self) -> set[int]:
        """Gaps that make something, or have to happen; the first and the last always do."""
        ran = {0, self.count} | {g for g in range(1, self.count) if not self._hands_on(g)}
        units = {unit.number: gap for gap, us in enumerate(self.flow.units) for unit in us}
        layers = [Place("layer", index) for index in range(self.count)]
        while True:
            places = [*layers, *(Place("gap", gap) for gap in ran)]
            keys = {key for place in places for key in self.uses(place) if key.kind != "input"}
            more = {units[key.number] for key in keys if key.number in units}
            if more <= ran:
                return ran
            ran |= more

    def _hands_on(self, gap: int) -> bool:
        """True if all that the gap does is to give the next layer what is there already, and the
        model's code cannot do anything else there for other values."""
        ops, layer = self.flow.ops(gap), self.layers[gap]
        made: set[int] = set()
        for op in ops:
            made |= op.writes - op.reads
        happens = any(op.draws or op.writes - made for op in ops)
        told = [op for op in self.flow.before(gap + 1) if op.told is not None]
        decides = any(not op.chooses or op in self.flow.free[gap] for op in told)
        numbers = any(type(leaf.value) in (int, float, complex) for leaf in layer.given)
        known = numbers and any(
            op.told is not None and op.time < layer.start for op in self._run.ops
        )
        return not (self.flow.fresh(gap) or happens or decides or known)

    def _before(self, key: Key, gap: int) -> bool:
        return self.flow.gap(self._run.calls[key.number].end - 1) < gap

    def _outputs(self) -> list[Leaf]:
        return [leaf for leaf in self._run.output if leaf.is_tensor] if self.has_loss else []

    def _inputs_read(self, gap: int) -> set[Key]:
        """Inputs that the model's code looks at on its way through a gap in the middle."""
        read = self.flow.storages([*self.flow.before(gap), *self.flow.ops(gap)])
        return {
            Key("input", 0, place)
            for place, leaf in enumerate(self._run.inputs)
            if leaf.is_tensor and leaf.storage in read
        }

    def _makes(self, place: Place) -> list[Key]:
        """Keys that a piece can add to the boundary."""
        kind, index = place
        known = self.flow.leaf_of
        calls = [self.layers[index]] if kind == "layer" else self.flow.units[index]
        numbers = {call.number for call in calls}
        numbers |= {call.number for call in self.flow.leaks[index]} if kind == "layer" else set()
        own = [key for key in known if key.number in numbers and key.kind in ("made", "left")]
        given = self.flow.fresh(index) if kind == "gap" and index < self.count else []
        inputs = [key for key in known if key.kind == "input" and place == ("gap", 0)]
        return [*inputs, *given, *own]


Noted = tuple[tuple[str, tuple[int, ...]], ...]


class Growth:
    """Dimensions of a recorded run's tensors that grow with the batch.

    They are those `noted` of the tensor's key by an earlier cut; all others have the first one, if
    it is as large as the batch. With None nothing grows.
    """

    def __init__(self, samples: int, noted: Noted | None) -> None:
        self.samples = samples
        self.any_size = noted is not None
        self._noted = dict(noted or ())

    @property
    def noted(self) -> Noted | None:
        """All that a later run needs beside its own tensors."""
        return tuple(sorted(self._noted.items())) if self.any_size else None

    def dims(self, key: Key, tensor: Tensor) -> Dims:
        """The tensor's sizes, of one sample where they grow."""
        grows = self._noted.get(str(key), self._usual(tensor))
        return tuple(
            (int(size) // self.samples, True) if dim in grows else (int(size), False)
            for dim, size in enumerate(tensor.shape)
        )

    def _usual(self, tensor: Tensor) -> tuple[int, ...]:
        first = tensor.dim() > 0 and len(tensor) == self.samples
        return (0,) if self.any_size and first else ()


class Compared(Growth):
    """The same, found by a second run, `small`, with fewer samples; all that is unusual is noted
    when it is asked for."""

    def __init__(self, large: Record, small: Record, samples: tuple[int, int]) -> None:
        super().__init__(samples[0], ())
        self._large, self._small, self._fewer = large, small, samples[1]

    def dims(self, key: Key, tensor: Tensor) -> Dims:
        """OneSize for sizes that do not grow in proportion to the batch."""
        other = self._twin(key).value
        if tensor.dim() != other.dim():
            raise OneSize("a tensor has other dimensions for another batch size")
        pairs = list(enumerate(zip(tensor.shape, other.shape, strict=True)))
        if any(a != b and not self._in_proportion(a, b) for _, (a, b) in pairs):
            raise OneSize("a tensor's size is not in proportion to the batch")
        grows = tuple(dim for dim, (a, b) in pairs if a != b)
        if grows != self._usual(tensor):
            self._noted[str(key)] = grows
        return super().dims(key, tensor)

    def _in_proportion(self, size: int, other: int) -> bool:
        each, rest = divmod(size, self.samples)
        return rest == 0 and each * self._fewer == other

    def _twin(self, key: Key) -> Leaf:
        """The tensor as it was with fewer samples: of the same call of the same module."""
        if key.kind == "input":
            return self._small.inputs[key.leaf]
        call = self._large.calls[key.number]
        calls, twins = (
            [c for c in run.calls if c.module is call.module] for run in (self._large, self._small)
        )
        if len(twins) == len(calls):
            twin = twins[calls.index(call)]
            if (twin.given_tree, twin.made_tree) == (call.given_tree, call.made_tree):
                return (twin.made if key.kind == "made" else twin.given)[key.leaf]
        raise OneSize("it calls its modules otherwise for another batch size")
