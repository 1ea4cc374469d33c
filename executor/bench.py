"""One layer set up on a device, so that everything a run does with it can be repeated and timed."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from executor.device import Device, aligned
from executor.errors import WorkloadError
from executor.flat import spec_of, view
from executor.link_profiler import busy
from executor.packing import PackError
from executor.rng import LentGenerator, RandomMode, no_draws
from executor.shard import Shard
from executor.workload import Task
from profiles.codec import align


@dataclass(frozen=True)
class Case:
    """One layer at one microbatch size. `targets` is given for the last layer only.

    x and targets are where the layer will compute, or on the host.
    """

    task: Task
    layer: nn.Module
    x: Tensor
    targets: Tensor | None
    first: bool


class Bench:
    """A case set up on a device: a one-layer shard bound to views of one slab.

    Invariant: every method leaves the boundary x as it was, so that all can be repeated.
    """

    def __init__(self, case: Case, device: Device, shard: Shard | None = None) -> None:
        """`shard`: the layer, if `on_device` put it there already."""
        self.case, self.device = case, device
        self.shard = shard or on_device(case, device)
        x = case.x.to(device.where)
        self.targets = None if case.targets is None else case.targets.to(device.where)
        y = self._output(x)
        sizes = [align(x.nbytes), align(y.nbytes)]
        slab = device.empty(self.shard.grad_bytes + 2 * sum(sizes))
        grads, held, self.out, dx, dy = torch.split(slab, [self.shard.grad_bytes, *sizes, *sizes])
        self.grads = grads
        self.shard.bind_grads(grads)
        self.x = view(held, spec_of(x)).copy_(x)
        self.dx = None if case.first else dx
        # Any dy of this shape costs the same; the output itself is at hand.
        self.dy = None if case.targets is not None else view(dy, spec_of(y)).copy_(y)
        self.state = device.source.get()
        self.draws: bool | None = None  # until counted
        self.alone = False

    def output(self) -> Tensor:
        """The layer's output as a tensor beside the slab."""
        return self._output(self.x)

    def _output(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.shard.run(x)

    def forward(self) -> None:
        """A forward without a graph."""
        with self._random() or nullcontext():
            self.shard.forward(self.x, self.out)

    def _random(self) -> RandomMode | LentGenerator | None:
        """What a run would use."""
        source = self.device.source
        if self.draws is False:
            return None
        alone = (self.alone and self.draws) or not source.shared
        return LentGenerator(self.state, source) if alone else RandomMode(self.state)

    def recompute_backward(self, recomputed: Callable[[], None] = lambda: None) -> Tensor:
        """Calls `recomputed` halfway; returns the generator's state at that point."""
        shard, mode = self.shard, self._random()
        with mode or nullcontext():
            graph = shard.graph(self.x, dx=self.dx is not None, targets=self.targets)
        recomputed()
        with no_draws() if self.draws is None and self.device.source.shared else nullcontext():
            shard.backward(graph, dy=self.dy, dx=self.dx)
        return mode.state if mode else self.state

    def graph(self) -> Tensor:
        """A forward that keeps its graph: the output, or the loss of the last layer."""
        leaf = self.x.data
        if self.dx is not None:
            leaf.requires_grad_()
        return (
            self.shard.run(leaf) if self.targets is None else self.shard.losses(leaf, self.targets)
        )

    def packed_bytes(self) -> int | None:
        """Bytes of what such a graph keeps beside parameters and x, and of the output.

        In a shard the output is the next layer's input, which that one does not count. None for
        a layer that cannot be packed.
        """
        packing = self.shard.packing(self.x, None)
        try:
            with packing.hooks():
                packing.pack(self.graph().detach())
        except PackError:
            return None
        return packing.bytes


def on_device(case: Case, device: Device) -> Shard:
    """The case's layer as a shard on the device, its parameters there.

    The layer's own parameters move into host memory of their flat layout.
    """
    task = case.task
    loss = task.loss if case.targets is not None else None
    home = Shard([case.layer], task.optimizer, loss, 1, task.precision, first=case.first)
    host = aligned(home.param_bytes)
    home.write_params(host)
    shard = home.replica(device.where)
    shard.bind_params(device.empty(home.param_bytes).copy_(host))
    return shard


@contextmanager
def loaded(bench: Bench, load: int) -> Iterator[None]:
    """Let `load - 1` threads do the same kind of work on copies, as other devices would."""
    with ExitStack() as stack:
        for _ in range(load - 1):
            twin = Bench(replace(bench.case, layer=copy.deepcopy(bench.case.layer)), bench.device)
            twin.draws = bench.draws

            def work(twin: Bench = twin) -> None:
                twin.forward()
                twin.recompute_backward()

            stack.enter_context(busy(work))
        yield


def checked_output(shard: Shard, device: Device, x: Tensor) -> Tensor:
    """The layer's output, after a recomputation that changed nothing; WorkloadError otherwise."""
    with torch.no_grad():
        state, buffers = device.source.get(), _buffers(shard)
        first = shard.run(x.clone())
        device.source.set(state)
        again = x.clone()
        second = shard.run(again)
    if not _same(again, x):
        raise WorkloadError("changes its input in place; use inplace=False")
    for name, value in _buffers(shard).items():
        if name not in buffers or not _same(value, buffers[name]):
            raise WorkloadError(
                f"changes its buffer {name} in a forward, and recomputing would change it twice; "
                "use a layer without running statistics, such as LayerNorm or GroupNorm"
            )
    if not _same(first, second):
        raise WorkloadError(
            "gives another output when it is recomputed with the same random state; "
            "let it draw from torch's default generator only"
        )
    return first


def _buffers(shard: Shard) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in shard.named_buffers()}


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal values, nan being equal to nan."""
    if left.shape != right.shape or not left.is_floating_point():
        return torch.equal(left, right)
    return torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
