"""Measures times and bytes of a layer through the shard code that a run uses.

Times and bytes come from separate runs, because the memory meter slows a layer down.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import torch
from msgspec import structs
from torch import Tensor, nn

from executor.devices import CpuDevice, Device, Mark, Meter, Queue, aligned, apart, until
from executor.numerics import CpuMeter, needs_norms
from executor.optim import Recipe
from executor.profiling.bench import Bench, Case, loaded
from executor.profiling.links import copying
from executor.shards import Shard
from profiles.schema import Layer, LayerCost, Time

ENOUGH_NS = 100_000_000  # a measurement of FEWEST samples or more ends after so long
FEWEST = 3
CROWD_BYTES = 64 << 20  # as large as the caches that cores share
STATE_ROOM = 16  # no optimizer keeps more bytes of state per byte of gradient
_GRADIENT = 1e-3  # updates take as long with any other

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


def layer_cost(case: Case, lab: Lab) -> LayerCost:
    """The case's bytes and times."""
    bench = Bench(case, lab.device)
    with no_garbage() if lab.device.spec.kind != "cpu" else nullcontext():
        cost = _bytes(bench)
    bench.draws, bench.alone = cost.rng_draws != 0, lab.alone
    beside = copying(lab.device) if lab.crowded else nullcontext()
    with loaded(lab.load, case, lab.device, bench.draws), beside:
        forward = _duration(bench.forward, lab)
        both, backward = _times(bench.recompute_backward, lab)
        pack, unpack = _pack_times(bench, cost.offload_bytes, lab)
        first, second = _part_times(bench, lab) if cost.left_bytes is not None else (None, None)
    return structs.replace(
        cost,
        forward=forward,
        recompute_backward=both,
        backward=backward,
        pack_backward=pack,
        unpack_backward=unpack,
        backward_input=first,
        backward_weight=second,
    )


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing is freed meanwhile but what the code lets go: tensors in circles of references, which
    the collector would find some time, would be missing from what a device's allocator counts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _pack_times(bench: Bench, count: int | None, lab: Lab) -> tuple[Time, Time] | tuple[None, None]:
    """The times of a forward that packs into `count` bytes with its backward, and of that backward
    alone; None where nothing can be packed, or the device has no room for the bytes."""
    if count is None or bench.layout is None:
        return None, None
    try:
        work = partial(bench.pack_backward, aligned(count, bench.device.where))
        both, backward = _times(work, lab)
    except torch.OutOfMemoryError:
        return None, None
    return both, backward


def _part_times(bench: Bench, lab: Lab) -> tuple[Time, ...]:
    """The times of the two parts of a backward."""

    def sample() -> tuple[int, ...]:
        marks: list[Mark] = []
        bench.halves(lambda: marks.append(lab.queue.mark()))
        until(marks[-1])
        return tuple(round((b.seconds() - a.seconds()) * 1e9) for a, b in pairwise(marks))

    return timed(sample, lab)


def _bytes(bench: Bench) -> LayerCost:
    """A cost without its times: each half is run once under a meter, and draws are counted."""
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
    backward_peak = meter.taken_bytes
    left, grads, most = _part_bytes(bench, meter) if bench.splits else (None, None, None)
    return LayerCost(
        microbatch=bench.case.microbatch,
        in_bytes=bench.in_bytes,
        out_bytes=bench.out_bytes,
        saved_bytes=saved,
        forward_peak_bytes=forward_peak,
        backward_peak_bytes=backward_peak,
        rng_draws=source.count(bench.state, end) if torch.equal(again, end) else None,
        forward=NO_TIME,
        recompute_backward=NO_TIME,
        backward=NO_TIME,
        offload_bytes=packed,
        left_bytes=left,
        kept_grad_bytes=grads,
        input_peak_bytes=most,
    )


def _part_bytes(bench: Bench, meter: Meter) -> tuple[int, int, int]:
    """Bytes that are alive between the two parts of a backward, with the output, which the next
    layer of a shard may keep and does not count; gradients among them; the most until then."""
    with meter.op("left", None):
        left = bench.first_half()
    most = meter.taken_bytes
    _taken(meter, lambda: None)
    held = meter.graph_bytes
    grads = left.later.grad_bytes if left.later else 0
    del left
    return held + (bench.out_bytes if bench.layout else 0), grads, most


def _taken(meter: Meter, work: Callable[[], object]) -> int:
    """The most bytes that the work has alive at once."""
    with meter.op(None, None):
        work()
    return meter.taken_bytes


class Updates:
    """Optimizer steps, or norms, on copies of some parameters, with made-up gradients.

    `where`: on the device, or on the host for updates there.
    """

    def __init__(
        self,
        case: Case,
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
        for twin in home.parameters.trainable:
            assert twin.grad is not None
            twin.grad.fill_(_GRADIENT)

    def update(self) -> None:
        """One step."""
        self.shard.update(self.params, self.grads, self.state)

    def norms(self) -> None:
        """Compute what N computes; nothing is written down."""
        self.shard.parameters.norms(self.grads)

    def peak_bytes(self, meter: Meter) -> int:
        """The most that a first or a later step takes beside its state, which the first one makes
        anew: layer by layer, or else what it makes counts as well."""
        first, later = _taken(meter, self.update), _taken(meter, self.update)
        optimizer = self.shard.optimizer
        made = optimizer.adopted_bytes if optimizer is not None and optimizer.piecewise else 0
        return max(first - made, later)


def layer_state(case: Case, parameters: Sequence[nn.Parameter], lab: Lab) -> Layer:
    """The record of a layer without name, buffers and costs: `parameters`, those of the case's
    layer that count in it, an optimizer step of them on the device and on the host, and the norms
    of their gradients if updates wait for those.

    The parameters themselves stay as they are: steps run on copies. Emulated devices run the same
    code on the same cores as their host.
    """
    task = case.task
    held = Shard([nn.ParameterList(parameters)], task.optimizer, precision=task.precision)
    record = Layer(
        name="",
        param_bytes=held.param_bytes,
        grad_bytes=held.grad_bytes,
        state_bytes=0,
        buffer_bytes=0,
        update_peak_bytes=0,
        update_device=NO_TIME,
        update_host=NO_TIME,
        costs=(),
    )
    if not held.parameters.trainable:
        return record
    room = host = None
    host_peak = 0
    if lab.device.spec.kind != "cpu":
        room, host_peak, host = _update_on_host(case, parameters, lab)
    meter = lab.device.meter()
    updates = Updates(case, parameters, lab.device.where, room)
    norm, norm_peak = None, 0
    if needs_norms(task.precision, task.clip):
        norm_peak = _taken(meter, updates.norms)
        with loaded(lab.load, case, lab.device):
            norm = _duration(updates.norms, lab)
    peak = updates.peak_bytes(meter)
    with loaded(lab.load + lab.crowded, case, lab.device):
        device = _duration(updates.update, lab)
    return structs.replace(
        record,
        state_bytes=updates.shard.state_bytes,
        update_peak_bytes=max(peak, host_peak),
        update_device=device,
        update_host=host or device,
        norm=norm,
        norm_peak_bytes=norm_peak,
    )


def _update_on_host(
    case: Case, parameters: Sequence[nn.Parameter], lab: Lab
) -> tuple[int, int, Time]:
    """Bytes of the state, the most beside it, and the time of a step: in a thread like that of a
    run's updates, while copies go both ways as they do then."""
    host = CpuDevice(lab.device.spec, 0)
    updates = Updates(case, parameters, host.where)
    queue = lab.device.queue("host")
    there = Lab(host, queue, 1, lab.samples)

    def measured() -> tuple[int, int, Time]:
        peak = updates.peak_bytes(CpuMeter())
        with copying(lab.device):
            return updates.shard.state_bytes, peak, _duration(updates.update, there)

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
    return _times(lambda _: work(), lab)[0]


def _times(work: Callable[[Callable[[], None]], object], lab: Lab) -> tuple[Time, ...]:
    """The same for work that calls what it is given at some points: of all, and of what comes
    behind each point."""

    def sample() -> tuple[int, ...]:
        marks = [lab.queue.mark()]
        work(lambda: marks.append(lab.queue.mark()))
        end = lab.queue.mark()
        until(end)
        return tuple(round((end.seconds() - mark.seconds()) * 1e9) for mark in marks)

    return timed(sample, lab)
