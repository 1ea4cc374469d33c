"""What a layer costs: times and bytes, through the shard code that a run uses.

Times and bytes come from separate runs, because the memory meter slows a layer down.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from executor.device import aligned
from executor.flat import spec_of, view
from executor.layer_check import output
from executor.link_profiler import busy
from executor.meter import MemoryMeter
from executor.packing import PackError
from executor.rng import LentGenerator, RandomMode, count_draws, no_draws
from executor.shard import Shard
from executor.workload import Task
from profiles.codec import align
from profiles.schema import LayerCost, Time

ENOUGH_NS = 100_000_000  # a measurement of FEWEST samples or more ends after so long
FEWEST = 3
CACHE_BYTES = 32 << 20  # as large as the caches that cores share
STATE_ROOM = 16  # no optimizer keeps more bytes of state per byte of gradient

NO_TIME = Time(0, 0, 0, 1)


@dataclass(frozen=True)
class Case:
    """One layer at one microbatch size. `targets` is given for the last layer only."""

    task: Task
    layer: nn.Module
    x: Tensor
    targets: Tensor | None
    first: bool


class Memory(NamedTuple):
    """The byte counts of a LayerCost, and its draws."""

    saved: int
    packed: int | None
    forward_peak: int
    backward_peak: int
    draws: int | None


class UpdateCost(NamedTuple):
    """One optimizer step of some parameters.

    peak_bytes: the most alive at once beside state_bytes, which the first step makes anew: layer
    by layer, or else what it makes counts as well.
    """

    state_bytes: int
    peak_bytes: int
    time: Time


class Bench:
    """A case set up on a device: a one-layer shard bound to views of one slab.

    Invariant: every method leaves the boundary x as it was, so that all can be repeated.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        loss = case.task.loss if case.targets is not None else None
        self.shard = Shard([case.layer], case.task.optimizer, loss)
        y = output(case.layer, case.x)
        sizes = [align(case.x.nbytes), align(y.nbytes)]
        slab = aligned(self.shard.param_bytes + self.shard.grad_bytes + 2 * sum(sizes))
        places = [self.shard.param_bytes, self.shard.grad_bytes, *sizes, *sizes]
        params, grads, x, self.out, dx, dy = torch.split(slab, places)
        self.shard.write_params(params)
        self.shard.bind_grads(grads)
        self.x = view(x, spec_of(case.x)).copy_(case.x)
        self.dx = None if case.first else dx
        # Any dy of this shape costs the same; the output itself is at hand.
        self.dy = None if case.targets is not None else view(dy, spec_of(y)).copy_(y)
        self.state = torch.default_generator.get_state()
        self.draws: bool | None = None  # until counted
        self.alone = False

    def output(self) -> Tensor:
        """The layer's output as a tensor beside the slab."""
        return output(self.case.layer, self.x)

    def forward(self) -> None:
        with self._random() or nullcontext():
            self.shard.forward(self.x, self.out)

    def _random(self) -> RandomMode | LentGenerator | None:
        """What a run would use."""
        if self.draws is False:
            return None
        return LentGenerator(self.state) if self.alone and self.draws else RandomMode(self.state)

    def recompute_backward(self, recomputed: Callable[[], None] = lambda: None) -> Tensor:
        """Calls `recomputed` halfway; returns the generator's state at that point."""
        shard, mode = self.shard, self._random()
        with mode or nullcontext():
            graph = shard.graph(self.x, dx=self.dx is not None, targets=self.case.targets)
        recomputed()
        with no_draws() if self.draws is None else nullcontext():
            shard.backward(graph, dy=self.dy, dx=self.dx)
        return mode.state if mode else self.state

    def graph(self) -> Tensor:
        """A forward that keeps its graph: the output, or the loss of the last layer."""
        leaf = self.x.data
        if self.dx is not None:
            leaf.requires_grad_()
        y: Tensor = self.case.layer(leaf)
        return y if self.case.targets is None else self.case.task.loss(y, self.case.targets)

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


def layer_cost(case: Case, load: int, samples: int) -> tuple[LayerCost, Tensor]:
    """The case's bytes and times while `load` devices compute, and the layer's output."""
    bench = Bench(case)
    memory = _memory(bench)
    bench.draws, bench.alone = memory.draws != 0, load == 1
    with loaded(bench, load):
        (forward,) = timed(lambda: _elapsed(bench.forward), samples)
        both, backward = timed(lambda: _halves(bench), samples)
    y = bench.output()
    return LayerCost(
        microbatch=len(case.x),
        in_bytes=align(case.x.nbytes),
        out_bytes=align(y.nbytes),
        saved_bytes=memory.saved,
        forward_peak_bytes=memory.forward_peak,
        backward_peak_bytes=memory.backward_peak,
        rng_draws=memory.draws,
        forward=forward,
        recompute_backward=both,
        backward=backward,
        offload_bytes=memory.packed,
    ), y


def _memory(bench: Bench) -> Memory:
    """Run each half once under the meter, and count what the forward draws."""
    with MemoryMeter() as forward:
        bench.forward()
    torch.default_generator.set_state(bench.state)
    packed = bench.packed_bytes()
    torch.default_generator.set_state(bench.state)
    with MemoryMeter() as graph:
        kept = bench.graph()
    saved = graph.live_bytes
    del kept
    end = torch.default_generator.get_state()
    with MemoryMeter() as backward:
        again = bench.recompute_backward()
    draws = count_draws(bench.state, end) if torch.equal(again, end) else None
    return Memory(saved, packed, forward.peak_bytes, backward.peak_bytes, draws)


def update_cost(
    case: Case, parameters: Sequence[nn.Parameter], load: int, samples: int
) -> UpdateCost:
    """An optimizer step of `parameters`, those of the case's layer that count in it.

    The parameters themselves stay as they are: the step runs on copies, with real gradients.
    """
    if not any(p.requires_grad for p in parameters):
        return UpdateCost(0, 0, NO_TIME)
    bench = Bench(case)
    bench.recompute_backward()
    twins = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in parameters]
    shard = Shard([nn.ParameterList(twins)], case.task.optimizer)
    params, grads = aligned(shard.param_bytes), aligned(shard.grad_bytes)
    state = aligned(STATE_ROOM * shard.grad_bytes)
    shard.write_params(params)
    shard.bind_grads(grads)
    for twin, parameter in zip(twins, parameters, strict=True):
        if twin.grad is not None and parameter.grad is not None:
            twin.grad.copy_(parameter.grad)

    def update() -> None:
        shard.update(params, grads, state)

    with MemoryMeter() as first:
        update()
    with MemoryMeter() as later:
        update()
    piecewise = shard.optimizer is not None and shard.optimizer.piecewise
    made = shard.state_bytes if piecewise else 0
    peak = max(first.peak_bytes - made, later.peak_bytes)
    with loaded(bench, load):
        (duration,) = timed(lambda: _elapsed(update), samples)
    return UpdateCost(shard.state_bytes, peak, duration)


@contextmanager
def loaded(bench: Bench, load: int) -> Iterator[None]:
    """Let `load - 1` threads do the same kind of work on copies, as other devices would."""
    with ExitStack() as stack:
        for _ in range(load - 1):
            twin = Bench(replace(bench.case, layer=copy.deepcopy(bench.case.layer)))
            twin.draws = bench.draws

            def work(twin: Bench = twin) -> None:
                twin.forward()
                twin.recompute_backward()

            stack.enter_context(busy(work))
        yield


def timed(sample: Callable[[], tuple[int, ...]], most: int) -> tuple[Time, ...]:
    """The spread of each duration (ns) that `sample` gives, after one call to warm up.

    It is called `most` times, and less often where its first duration is long. In a run other
    shards were in the caches since this one was last there, so they are filled with something
    else before every sample.
    """
    sample()
    crowd = torch.zeros(CACHE_BYTES, dtype=torch.uint8)
    rows: list[tuple[int, ...]] = []
    while len(rows) < most and (len(rows) < FEWEST or sum(r[0] for r in rows) < ENOUGH_NS):
        crowd.add_(1)
        rows.append(sample())
    spread = np.percentile(np.array(rows) / 1000, [10, 50, 90], axis=0).round()
    return tuple(Time(int(mid), int(low), int(top), len(rows)) for low, mid, top in spread.T)


def _elapsed(work: Callable[[], object]) -> tuple[int]:
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start,)


def _halves(bench: Bench) -> tuple[int, int]:
    """How long recomputation and backward last, and backward alone."""
    marks: list[int] = []
    start = time.perf_counter_ns()
    bench.recompute_backward(lambda: marks.append(time.perf_counter_ns()))
    end = time.perf_counter_ns()
    return end - start, end - marks[0]
