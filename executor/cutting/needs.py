"""The slices of a recorded run, and the tensors that each takes from those before it.

A slice is of layers, in order, and of those gaps between them in which anything happens.
"""

from collections.abc import Sequence
from itertools import chain

from torch import Tensor, nn

from executor.cutting.flow import Flow, Place, storages
from executor.cutting.parts import Dims, Key, OneSize
from executor.cutting.record import Leaf, Record


def groups(flow: Flow) -> list[list[Place]]:
    """The places of each slice, in the order in which they run: all layers, the first and the last
    gap, and gaps that make something or have to happen. Those without parameters run with the one
    after them, the last with the one before it."""
    pairs = [(Place("gap", index), Place("layer", index)) for index in range(flow.count)]
    every = [*chain.from_iterable(pairs), Place("gap", flow.count)]
    makers = {flow.maker[key] for place in every for key in uses(flow, place)}
    makers |= {every[0], every[-1]}
    found: list[list[Place]] = [[]]
    for place in every:
        if place.kind == "layer" or place in makers or not _hands_on(flow, place.number):
            found[-1].append(place)
            if _learns(flow, place):
                found.append([])
    rest = found.pop()
    if found:
        found[-1] += rest
    return found


def _learns(flow: Flow, place: Place) -> bool:
    """True if there are parameters in the place."""
    own = flow.layers[place.number].module.parameters() if place.kind == "layer" else ()
    used = flow.used(flow.again(place)).values()
    return any(isinstance(tensor, nn.Parameter) for tensor in (*own, *used))


def boundaries(flow: Flow, slices: Sequence[Sequence[Place]]) -> list[list[Key]]:
    """The tensors handed on behind each slice, in the order in which they are made."""
    used = [{key for place in one for key in uses(flow, place)} for one in slices]
    made: list[Key] = []
    found = []
    for position, places in enumerate(slices):
        made += [key for key, maker in flow.maker.items() if maker in places]
        later = {key for keys in used[position + 1 :] for key in keys}
        found.append([key for key in made if key in later])
    return found


def uses(flow: Flow, place: Place) -> list[Key]:
    """Keys that a place takes from those before it."""
    kind, index = place
    if kind == "layer":
        keys = map(flow.key, flow.layers[index].given)
        return list(dict.fromkeys(key for key in keys if key))
    if index == 0:
        return []
    found = flow.sources(flow.again(place), before=index)
    if index < flow.count:  # the last gap is given the batch
        read = storages([*flow.before(index), *flow.ops(index)])
        inputs = (key for key in flow.maker if key.kind == "input")
        found |= {key for key in inputs if flow.leaf_of[key].storage in read}
    return sorted(found)


def _hands_on(flow: Flow, gap: int) -> bool:
    """True if all that the gap does is to give the next layer what is there already, and the
    model's code cannot do anything else there for other values."""
    ops, layer = flow.ops(gap), flow.layers[gap]
    made: set[int] = set()
    for op in ops:
        made |= op.writes - op.reads
    happens = any(op.draws or op.writes - made for op in ops)
    told = [op for op in flow.before(gap + 1) if op.told is not None]
    decides = any(not op.chooses or op in flow.free[gap] for op in told)
    numbers = any(type(leaf.value) in (int, float, complex) for leaf in layer.given)
    known = numbers and any(op.told is not None and op.time < layer.start for op in flow.record.ops)
    return not (flow.fresh(gap) or happens or decides or known)


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

    def dims(self, leaf: Leaf) -> Dims:
        """The tensor's sizes, of one sample where they grow."""
        grows = self._noted.get(str(leaf.at), self._usual(leaf.value))
        return tuple(
            (int(size) // self.samples, True) if dim in grows else (int(size), False)
            for dim, size in enumerate(leaf.value.shape)
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

    def dims(self, leaf: Leaf) -> Dims:
        """OneSize for sizes that do not grow in proportion to the batch."""
        shape, other = leaf.value.shape, self._twin(leaf.at).value.shape
        sizes = list(enumerate(zip(shape, other, strict=False)))
        grows = tuple(dim for dim, (size, less) in sizes if size != less)
        each = [(shape[dim] // self.samples, dim) for dim in grows]
        even = all(
            (size * self.samples, size * self._fewer) == (shape[dim], other[dim])
            for size, dim in each
        )
        if len(shape) != len(other) or not even:
            raise OneSize("a tensor's size is not in proportion to the batch")
        if grows != self._usual(leaf.value):
            self._noted[str(leaf.at)] = grows
        return super().dims(leaf)

    def _twin(self, key: Key) -> Leaf:
        """The tensor as it was with fewer samples: of the same call of the same module."""
        if key.kind == "input":
            return self._small.inputs[key.leaf]
        call = self._large.calls[key.number]
        calls, twins = (
            [c for c in run.calls.values() if c.module is call.module]
            for run in (self._large, self._small)
        )
        if len(twins) == len(calls):
            twin = twins[calls.index(call)]
            if (twin.given_tree, twin.made_tree) == (call.given_tree, call.made_tree):
                return (twin.made if key.kind == "made" else twin.given)[key.leaf]
        raise OneSize("it calls its modules otherwise for another batch size")
