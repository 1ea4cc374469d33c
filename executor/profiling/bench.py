"""One layer set up on a device, so that everything a run does with it can be repeated and timed."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from executor.devices import Device, aligned
from executor.numerics import (
    HooksRefused,
    LentGenerator,
    PackError,
    RandomMode,
    Snapshot,
    Value,
    detached,
    hold,
    mapped,
    no_draws,
    read_grads,
    tensors_of,
    write_grads,
)
from executor.optim import Recipe
from executor.profiling.links import busy
from executor.shards import Graph, Shard, backward_input, backward_weights
from executor.workload import Batch, Ending, Task
from profiles.codec import align


@dataclass(frozen=True)
class Case:
    """One layer at one microbatch size. `batch` is given for the last layer only.

    x, any pytree, and batch are where the layer will compute, or on the host; tensors of x that
    need gradients say so.
    """

    task: Task
    layer: nn.Module
    x: Any
    batch: Batch | None
    first: bool
    microbatch: int
    recipe: Recipe | None = None  # of the task's optimizers, for the layer's own parameters


class Bench:
    """A case set up on a device: a one-layer shard bound to views of one slab.

    `made` is the layer's output beside the slab, without its graph.

    Invariant: every method leaves the boundary x as it was, so that all can be repeated.
    """

    def __init__(self, case: Case, device: Device, shard: Shard | None = None) -> None:
        """`shard`: the layer, if `on_device` put it there already."""
        self.case, self.device = case, device
        self.shard = shard or on_device(case, device)
        x = hold(moved(case.x, device.where))
        self.batch = None if case.batch is None else Batch(*moved(tuple(case.batch), device.where))
        self.made = made = first_output(self.shard, device, x, self._inputs)[0]
        # Any dy of these shapes costs the same; the output itself is at hand.
        y = hold(made) if case.batch is None else None
        self.in_bytes = x.layout.boundary_bytes
        self.out_bytes = y.layout.boundary_bytes if y else _bytes(made)
        sizes = [self.in_bytes, y.layout.boundary_bytes if y else 0]
        slab = aligned(self.shard.grad_bytes + 2 * sum(sizes), device.where)
        grads, held, self.out, dx, dy = torch.split(slab, [self.shard.grad_bytes, *sizes, *sizes])
        self.grads = grads
        x.layout.write(held, x.tensors)
        self.x = x.layout.held(held)
        self.dx = None if case.first else dx
        self.dy: Mapping[int, Tensor] | None = None
        self.layout = y.layout if y else None
        if y:
            needed = {n: t.detach() for n, t in enumerate(y.tensors) if y.layout.needs[n]}
            self.dy = read_grads(dy, write_grads(dy, needed))
        self.state = device.source.get()
        self.draws: bool | None = None  # until counted
        self.alone = False

    @property
    def _inputs(self) -> Any:
        return self.batch.inputs if self.batch else None

    def forward(self) -> None:
        """A forward without a graph."""
        with self._random() or nullcontext():
            if self.layout is None:  # which the last layer of a task never does by itself
                with self.shard.bare(), self.shard.buffers.kept(snapshot=True):
                    self.shard.run(self.x, self._inputs, grads=True)
            else:
                self.shard.forward(self.x, self.out, self.layout)

    def _random(self) -> RandomMode | LentGenerator | None:
        """The source of random numbers that a run would use."""
        source = self.device.source
        if self.draws is False:
            return None
        alone = (self.alone and self.draws) or not source.shared
        return LentGenerator(self.state, source) if alone else RandomMode(self.state)

    def recompute_backward(self, recomputed: Callable[[], None] = lambda: None) -> Tensor:
        """Calls `recomputed` halfway; returns the generator's state at that point."""
        shard, mode = self.shard, self._random()
        before = None if self.batch else shard.buffers.now()
        with mode or nullcontext():
            graph = shard.graph(self.x, batch=self.batch, before=before)
        recomputed()
        with no_draws() if self.draws is None and self.device.source.shared else nullcontext():
            shard.backward(graph, self.grads, dy=self.dy, dx=self.dx)
        return mode.state if mode else self.state

    def pack_backward(self, saved: Tensor, packed: Callable[[], None]) -> None:
        """A forward that packs its graph into `saved`, and the backward from there; calls `packed`
        in between. Not for the last layer of a task, which is never packed."""
        shard = self.shard
        with self._random() or nullcontext():
            _, graph = shard.forward_graph(self.x, self.out, saved=saved)
        packed()
        shard.move(graph, self.x, saved)
        shard.backward(graph, self.grads, dy=self.dy, dx=self.dx)

    def halves(self, mark: Callable[[], object] = lambda: None) -> None:
        """A forward, then a backward in two parts; calls `mark` before, between and behind them."""
        left = self.first_half(mark)
        mark()
        backward_weights(self.shard, left, self.grads)
        mark()

    def first_half(self, mark: Callable[[], object] = lambda: None) -> Graph:
        """A forward, and the first part of its backward, which begins after a call of `mark`; what
        that leaves."""
        before = None if self.batch else self.shard.buffers.now()
        with self._random() or nullcontext():
            graph = self.shard.graph(self.x, batch=self.batch, before=before, halves=True)
        mark()
        return backward_input(self.shard, graph, dy=self.dy, dx=self.dx)[1]

    @property
    def splits(self) -> bool:
        """True if there is a gradient of the input, and both parts give the bits of the whole.

        Where the input needs none, as above layers that learn nothing, the first part would do
        all. Compared are kernels that always give the same bits: attention's fastest backward on
        a GPU does not, whole or in parts."""
        if self.dx is None or not any(self.x.layout.needs):
            return False
        with same_kernels():
            self.recompute_backward()
            whole = self.grads.clone(), self.dx.clone()
            self.halves()
            return torch.equal(whole[0], self.grads) and torch.equal(whole[1], self.dx)

    def graph(self) -> Any:
        """A forward that keeps its graph: the output, or the loss of the last layer."""
        with self.shard.buffers.kept(snapshot=False):
            if self.batch is not None:
                return self.shard.losses(self.x, self.batch, grads=True)
            return self.shard.run(self.x, grads=True)

    def packed_bytes(self) -> int | None:
        """Bytes of what such a graph keeps beside parameters and x, and of the output.

        In a shard the output is the next layer's input, which that one does not count. None for
        a layer that cannot be packed.
        """
        packing = self.shard.packing(self.x.tensors, None)
        try:
            with packing.hooks():
                for tensor in tensors_of(self.graph()):
                    packing.pack(tensor.detach())
        except PackError:
            return None
        return packing.bytes


@contextmanager
def same_kernels() -> Iterator[None]:
    """Kernels that give the same bits each time, as far as there are some."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(max(before, 1))
    try:
        with warnings.catch_warnings():  # of kernels that there are no such ones for
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_deterministic_debug_mode(before)


def on_device(case: Case, device: Device) -> Shard:
    """The case's layer as a shard on the device, its parameters there.

    The layer's own parameters move into host memory of their flat layout.
    """
    task = case.task
    ending = Ending(task.loss) if case.batch is not None else None
    home = Shard([case.layer], task.optimizer, ending, task.precision, first=case.first)
    host = aligned(home.param_bytes)
    home.write_params(host)
    shard = home.replica(device.where, apart=device.spec.kind != "cpu")
    shard.parameters.bind(aligned(home.param_bytes, device.where).copy_(host))
    return shard


def moved(value: Any, where: torch.device) -> Any:
    """The value on a device; its tensors say still which of them need gradients."""
    return mapped(lambda t: t.detach().to(where).requires_grad_(t.requires_grad), value)


def _bytes(value: Any) -> int:
    """Bytes of the tensors of a model's output, as far as they can be seen."""
    return sum(align(tensor.nbytes) for tensor in tensors_of(value))


@contextmanager
def loaded(load: int, case: Case, device: Device, draws: bool | None = None) -> Iterator[None]:
    """Let `load - 1` threads do the same kind of work on copies, as other devices would."""
    with ExitStack() as stack:
        for _ in range(load - 1):
            twin = Bench(replace(case, layer=copy.deepcopy(case.layer)), device)
            twin.draws = draws

            def work(twin: Bench = twin) -> None:
                twin.forward()
                twin.recompute_backward()

            stack.enter_context(busy(work))
        yield


def first_output(shard: Shard, device: Device, x: Value, inputs: Any) -> tuple[Any, Snapshot]:
    """The layer's output as a first forward makes it, without its graph, and what buffers that it
    changed were before."""
    state = device.source.get()
    try:
        return _bare_output(shard, x, inputs)
    except HooksRefused:
        device.source.set(state)
        return _bare_output(shard, x, inputs)


def _bare_output(shard: Shard, x: Value, inputs: Any) -> tuple[Any, Snapshot]:
    with shard.buffers.kept(snapshot=True) as before, shard.bare():
        output = detached(shard.run(x, inputs, grads=True))
    return output, tuple(before)
