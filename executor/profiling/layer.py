"""Measures times and bytes of a layer through the shard code that a run uses.

Times and bytes come from separate runs, because the memory meter slows a layer down.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from executor.devices import CpuDevice, Device, Meter, Queue, aligned, apart, until
from executor.numerics import CpuMeter, needs_norms
from executor.optim import Recipe
from executor.profiling.bench import Bench, Case, loaded
from executor.profiling.links import copying
from executor.shards import Shard
from profiles.schema import LayerCost, Time

ENOUGH_NS = 100_000_000  # a measurement of FEWEST samples or more ends after so long
FEWEST = 3
CROWD_BYTES = 64 << 20  # as large as the caches that cores share
STATE_ROOM = 16  # no optimizer keeps more bytes of state per byte of gradient

NO_TIME = Time(0, 0, 0, 1)


@dataclass(frozen=True)
class Lab:
    """Where and how is measured: ops of the calling thread go to `queue` of `device`, while `load`
    devices compute; `samples` of each time, fewer where one is long. `slowdown`: times are told so
    many times as long as they were. `alone`: a run has no other device that draws."""

    device: Device
    queue: Queue
    load: int
    samples: int
    slowdown: int = 1
    alone: bool = True

    @property
    def crowded(self) -> bool:
        """True if copies and updates on the host share the cores with what computes."""
        return self.device.spec.emulation is not None


class Memory(NamedTuple):
    """The byte counts of a LayerCost, and its draws."""

    saved: int
    packed: int | None
    forward_peak: int
    backward_peak: int
    draws: int | None


class UpdateCost(NamedTuple):
    """One optimizer step of some parameters, or the norms of their gradients, which have no state.

    peak_bytes: the most alive at once beside state_bytes, which the first step makes anew: layer
    by layer, or else what it makes counts as well.
    """

    state_bytes: int
    peak_bytes: int
    time: Time


def layer_cost(case: Case, lab: Lab, shard: Shard | None = None) -> LayerCost:
    """The case's bytes and times; `shard` as in Bench."""
    bench = Bench(case, lab.device, shard)
    memory = _memory(bench)
    bench.draws, bench.alone = memory.draws != 0, lab.alone
    with loaded(bench, lab.load), copying(lab.device) if lab.crowded else nullcontext():
        forward = _duration(bench.forward, lab)
        both, backward = timed(lambda: _halves(bench.recompute_backward, lab.queue), lab)
        pack = _pack_times(bench, memory.packed, lab)
    return LayerCost(
        microbatch=case.microbatch,
        in_bytes=bench.in_bytes,
        out_bytes=bench.out_bytes,
        saved_bytes=memory.saved,
        forward_peak_bytes=memory.forward_peak,
        backward_peak_bytes=memory.backward_peak,
        rng_draws=memory.draws,
        forward=forward,
        recompute_backward=both,
        backward=backward,
        offload_bytes=memory.packed,
        pack_backward=pack[0],
        unpack_backward=pack[1],
    )


def _pack_times(bench: Bench, count: int | None, lab: Lab) -> tuple[Time, Time] | tuple[None, None]:
    """The times of a forward that packs into `count` bytes with its backward, and of that backward
    alone; None where nothing can be packed, or the device has no room for the bytes."""
    if count is None or bench.layout is None:
        return None, None
    try:
        work = partial(bench.pack_backward, aligned(count, bench.device.where))
        both, backward = timed(lambda: _halves(work, lab.queue), lab)
    except torch.OutOfMemoryError:
        return None, None
    return both, backward


def _memory(bench: Bench) -> Memory:
    """Run each half once under a meter, and count what the forward draws."""
    source = bench.device.source
    packed = bench.packed_bytes()
    source.set(bench.state)
    bench.recompute_backward()  # what libraries take once is not the op's
    source.set(bench.state)
    meter = bench.device.meter()
    forward_peak = _taken(meter, bench.forward)
    source.set(bench.state)
    with meter.op("graph", None):
        kept = bench.graph()
    _taken(meter, lambda: None)  # as the next op begins, so that the graph's bytes are counted
    saved = meter.graph_bytes
    del kept
    end = source.get()
    source.set(bench.state)
    with meter.op(None, "graph"):
        again = bench.recompute_backward()
    draws = source.count(bench.state, end) if torch.equal(again, end) else None
    return Memory(saved, packed, forward_peak, meter.taken_bytes, draws)


def _taken(meter: Meter, work: Callable[[], object]) -> int:
    """The most bytes that the work has alive at once."""
    with meter.op(None, None):
        work()
    return meter.taken_bytes


class Updates:
    """Optimizer steps, or norms, on copies of some parameters, with real gradients.

    `where`: on the device, or on the host for updates there.
    """

    def __init__(
        self,
        case: Case,
        grads: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        where: torch.device,
        room: int | None = None,
    ) -> None:
        """`room`: bytes of the state, if they are known; memory that is not touched costs nothing
        on the host."""
        twins = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in parameters]
        task = case.task
        recipe = case.recipe or Recipe(task.optimizer)
        own = recipe.unscheduled(zip(parameters, twins, strict=True))
        home = Shard([nn.ParameterList(twins)], own, precision=task.precision)
        layout = home.parameters.masters
        masters, params = aligned(layout.bytes if layout else 0), aligned(home.param_bytes)
        home.write_params(params, masters)
        self.shard = home
        self.params = aligned(home.param_bytes, where).copy_(params)
        self.grads = aligned(home.grad_bytes, where)
        self.state = aligned(STATE_ROOM * home.grad_bytes if room is None else room, where)
        self.state[: len(masters)].copy_(masters)
        home.parameters.bind(self.params)
        home.parameters.bind_grads(self.grads)
        for twin, grad in zip(home.parameters.trainable, grads, strict=True):
            assert twin.grad is not None
            twin.grad.copy_(grad)

    def update(self) -> None:
        """One step."""
        self.shard.update(self.params, self.grads, self.state)

    def norms(self) -> None:
        """Compute what N computes; nothing is written down."""
        self.shard.parameters.norms(self.grads)

    def peak_bytes(self, meter: Meter) -> int:
        """The most that a first or a later step takes beside its state."""
        first, later = _taken(meter, self.update), _taken(meter, self.update)
        optimizer = self.shard.optimizer
        made = optimizer.adopted_bytes if optimizer is not None and optimizer.piecewise else 0
        return max(first - made, later)


def gradients(case: Case, parameters: Sequence[nn.Parameter], bench: Bench) -> list[Tensor]:
    """Gradients of those of the layer's `parameters` that learn, where it computes: real ones, or
    zeros where this batch gives none, since another may."""
    bench.recompute_backward()
    own = dict(zip(map(id, case.layer.parameters()), bench.shard.parameters.all, strict=True))
    found = [own[id(p)] for p in parameters if p.requires_grad]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in found]


def update_costs(
    case: Case, parameters: Sequence[nn.Parameter], lab: Lab
) -> tuple[UpdateCost, UpdateCost, UpdateCost | None]:
    """An optimizer step of `parameters`, those of the case's layer that count in it, on the device
    and on the host, and the norms of their gradients if updates wait for those.

    The parameters themselves stay as they are: steps run on copies, with real gradients. Emulated
    devices run the same code on the same cores as their host.
    """
    noted = needs_norms(case.task.precision, case.task.clip)
    if not any(p.requires_grad for p in parameters):
        nothing = UpdateCost(0, 0, NO_TIME)
        return nothing, nothing, nothing if noted else None
    bench = Bench(case, lab.device)
    grads = gradients(case, parameters, bench)
    host, room = None, None
    if lab.device.spec.kind != "cpu":
        host = _host_update_cost(case, grads, parameters, lab)
        room = host.state_bytes
    updates = Updates(case, grads, parameters, lab.device.where, room)
    norm, meter = None, lab.device.meter()
    if noted:
        norm = UpdateCost(0, _taken(meter, updates.norms), NO_TIME)
        with loaded(bench, lab.load):
            norm = norm._replace(time=_duration(updates.norms, lab))
    peak = updates.peak_bytes(meter)
    with loaded(bench, lab.load + lab.crowded):
        device = UpdateCost(updates.shard.state_bytes, peak, _duration(updates.update, lab))
    return device, host or device, norm


def _host_update_cost(
    case: Case, grads: Sequence[Tensor], parameters: Sequence[nn.Parameter], lab: Lab
) -> UpdateCost:
    """In a thread like that of a run's updates, while copies go both ways as they do then."""
    host = CpuDevice(lab.device.spec, 0)
    updates = Updates(case, [grad.cpu() for grad in grads], parameters, host.where)
    queue = lab.device.queue("host")
    there = Lab(host, queue, 1, lab.samples)

    def measured() -> UpdateCost:
        peak = updates.peak_bytes(CpuMeter())
        with copying(lab.device):
            return UpdateCost(updates.shard.state_bytes, peak, _duration(updates.update, there))

    return apart(queue, measured)


def timed(sample: Callable[[], tuple[int, ...]], lab: Lab) -> tuple[Time, ...]:
    """The spread of each duration (ns) that `sample` gives, after one call to warm up.

    It is called `lab.samples` times, and less often where its first duration is long. In a run
    other shards were in the caches since this one was last there, so they are filled with
    something else before every sample.
    """
    sample()
    crowd = _crowd(CROWD_BYTES, lab.device.where)
    rows: list[tuple[int, ...]] = []
    while len(rows) < lab.samples and (len(rows) < FEWEST or sum(r[0] for r in rows) < ENOUGH_NS):
        crowd.add_(1)
        rows.append(sample())
    us = np.array(rows) / 1000 * lab.slowdown
    spread = np.percentile(us, [10, 50, 90], axis=0).round()
    return tuple(Time(int(mid), int(low), int(top), len(rows)) for low, mid, top in spread.T)


@lru_cache(maxsize=1)
def _crowd(count: int, where: torch.device) -> Tensor:
    """Memory to fill caches with; touching it for the first time takes longer than most layers."""
    return torch.zeros(count, dtype=torch.uint8, device=where)


def _duration(work: Callable[[], object], lab: Lab) -> Time:
    """The spread of the times that the lab's queue needs for the work."""

    def once() -> tuple[int]:
        start = lab.queue.mark()
        work()
        end = lab.queue.mark()
        until(end)
        return (round((end.seconds() - start.seconds()) * 1e9),)

    return timed(once, lab)[0]


def _halves(work: Callable[[Callable[[], None]], object], queue: Queue) -> tuple[int, int]:
    """The time (ns) of work that has two halves, and of the second half alone."""
    marks = [queue.mark()]
    work(lambda: marks.append(queue.mark()))
    end = queue.mark()
    until(end)
    start, middle, last = (mark.seconds() for mark in (*marks, end))
    return round((last - start) * 1e9), round((last - middle) * 1e9)
