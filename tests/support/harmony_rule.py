"""What a schedule of Harmony costs by Harmony's own rule.

The rule is that of msr-fiddle/harmony's simulator. Packs of layers run one after the other, forward
and back, each with all its microbatches in turn. The last backward pack, which computes the loss,
has no forward pack. Each GPU has streams: computing, swapping in and out, sending, receiving, and
the host's work for it. GPUs share the swap bandwidth. With `prefetch`, copies for a pack run while
the pack before it on that GPU computes; without, they wait until that one has been deleted.

The walk follows the chain of packs. Nothing that a pack does waits for a later pack, so every event
gets its times at once; a transfer between GPUs is walked with the pack that receives it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tests.support.harmony_profile import Profile

COMPUTE, IN, OUT, SEND, RECEIVE, HOST = range(6)
"""The streams of a GPU."""


class Schedule(NamedTuple):
    """Ends of packs (exclusive, ascending; `forward` ends where the last of `backward` begins),
    sizes of microbatches, and the GPU of each pack in the order in which packs run.

    replicas: every GPU runs all packs, with microbatches of its own of these sizes.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]
    gpus: tuple[int, ...]
    replicas: bool = False


@dataclass(slots=True)
class Task:
    """A pack in one direction, and when what it did ended, by microbatch."""

    backward: bool
    turn: bool  # the backward pack that computes the loss
    first: int
    end: int
    gpu: int
    sizes: tuple[int, ...]
    computed: list[float] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)  # on the host, if the next pack reads it there
    deleted: float = 0.0


def tasks(schedule: Schedule) -> list[Task]:
    """The packs in the order in which they run."""
    made: list[Task] = []
    for backward, ends, sizes in (
        (False, schedule.forward, schedule.forward_sizes),
        (True, schedule.backward, schedule.backward_sizes),
    ):
        packs = list(zip((0, *ends), ends, strict=False))
        for first, end in reversed(packs) if backward else packs:
            turn = backward and end == ends[-1]
            made.append(Task(backward, turn, first, end, schedule.gpus[len(made)], sizes))
    return made


def simulate(profile: Profile, schedule: Schedule, prefetch: bool = True) -> float:
    """The makespan in µs."""
    chain = tasks(schedule)
    walk = _Walk(profile, schedule, prefetch, chain)
    for before, task, behind in zip([None, *chain], chain, [*chain[1:], None], strict=False):
        weights = 0.0 if walk.late(task) else walk.weights_in(task)
        if task.backward:
            walk.backward(before, task, behind, weights)
        else:
            walk.forward(before, task, behind, weights)
        walk.left2[task.gpu], walk.left[task.gpu] = walk.left[task.gpu], task
    return max(map(max, walk.free))


class _Walk:
    """The streams of all GPUs while the chain is walked. Methods return when their event ends."""

    def __init__(
        self, profile: Profile, schedule: Schedule, prefetch: bool, chain: list[Task]
    ) -> None:
        self.profile, self.prefetch, self.replicas = profile, prefetch, schedule.replicas
        self.used = profile.gpus if schedule.replicas else len(set(schedule.gpus))
        self.swap_rate = profile.swap_rate / self.used
        self.message_rate = profile.message_rate / self.used
        self.free = [[0.0] * 6 for _ in range(profile.gpus)]
        self.left: list[Task | None] = [None] * profile.gpus  # each GPU's task before
        self.left2: list[Task | None] = [None] * profile.gpus  # and the one before that
        self.readers = {t.first: t for t in chain if t.backward and not t.turn}
        self.stashed: dict[int, list[float]] = {first: [] for first in self.readers}
        # by forward microbatch, the backward ones that are complete with it
        done = list(accumulate(schedule.forward_sizes))
        self.completed: list[list[int]] = [[] for _ in done]
        for size, end in zip(
            schedule.backward_sizes, accumulate(schedule.backward_sizes), strict=True
        ):
            self.completed[bisect_left(done, end)].append(size)
        self.message = schedule.forward_sizes != schedule.backward_sizes

    def event(self, gpu: int, stream: int, us: float, *after: float) -> float:
        """The next event of a stream."""
        free = self.free[gpu]
        free[stream] = end = max(free[stream], *after) + us
        return end

    def forward(self, before: Task | None, task: Task, behind: Task, weights: float) -> None:
        """A forward pack, in parts that begin where a backward pack does: that input is stashed."""
        us, gpu, left = self.profile.forward_us, task.gpu, self.left[task.gpu]
        begins = sorted({task.first, *(f for f in self.stashed if task.first <= f < task.end)})
        for m, size in enumerate(task.sizes):
            ready = self.input_in(before, task, m, weights)
            if m == 0 and self.late(task):
                weights = self.weights_in(task)
            for first, end in zip(begins, [*begins[1:], task.end], strict=True):
                wait = 0.0
                if first in self.stashed:
                    if first == task.first and self.prefetch:
                        wait = task.computed[-1] if m else left.deleted if left else 0.0
                    wait = self.stash(gpu, first, m, size, ready, wait)
                    wait = 0.0 if self.prefetch else wait
                duration = us(size)[end] - us(size)[first]
                ready = self.event(gpu, COMPUTE, duration, ready, weights, wait)
            task.computed.append(ready)
            self.output(task, behind, m, ready)
        wait = task.out[-1] if self.replicas and not self.prefetch else 0.0
        task.deleted = self.event(gpu, COMPUTE, self.profile.delete_us, wait)

    def stash(self, gpu: int, layer: int, m: int, size: int, *after: float) -> float:
        """A layer's input goes to the host, and there to the process of the GPU that wants it."""
        per_sample = self.profile.inputs[layer]
        out = self.event(gpu, OUT, size * per_sample / self.swap_rate, *after)
        other = self.readers[layer].gpu != gpu
        for part in self.completed[m]:
            us = part * per_sample / self.message_rate if other else 0.0
            self.stashed[layer].append(self.event(gpu, HOST, us, out))
        return out

    def output(self, task: Task, behind: Task, m: int, computed: float) -> None:
        """A forward pack's output, where it goes over the host: to the same GPU, or in other
        microbatches."""
        if behind.gpu != task.gpu and not (behind.turn and self.message):
            return
        per_sample, size = self.profile.inputs[task.end], task.sizes[m]
        out = self.event(task.gpu, OUT, size * per_sample / self.swap_rate, computed)
        for part in self.completed[m] if behind.turn else [size]:
            if behind.gpu != task.gpu:
                out = self.event(task.gpu, HOST, part * per_sample / self.message_rate, out)
            task.out.append(out)

    def backward(
        self, before: Task | None, task: Task, behind: Task | None, weights: float
    ) -> None:
        """A backward pack: recomputation and gradients, then its gradients out and its update."""
        profile, gpu = self.profile, task.gpu
        bytes_in, gradient = profile.inputs[task.first], 0.0
        for m, size in enumerate(task.sizes):
            if task.turn:
                ready = self.input_in(before, task, m, weights)
            else:
                wait = self.gate(task, m, weights)
                stashed = self.stashed[task.first][m]
                ready = self.event(gpu, IN, size * bytes_in / self.swap_rate, stashed, wait)
                if self.prefetch:
                    gradient = self.gradient_in(before, task, m)
            if m == 0 and self.late(task):
                weights = self.weights_in(task)
            forward, both = profile.forward_us(size), profile.backward_us(size)
            recompute = forward[task.end] - forward[task.first]
            task.recomputed.append(self.event(gpu, COMPUTE, recompute, ready, weights))
            if not task.turn and not self.prefetch:
                gradient = self.gradient_in(before, task, m)
            us = both[task.end] - both[task.first] - recompute
            task.computed.append(self.event(gpu, COMPUTE, us, gradient))
            if behind and behind.gpu == gpu:
                us = size * bytes_in / self.swap_rate
                task.out.append(self.event(gpu, OUT, us, task.computed[-1]))
        weights_bytes = profile.weights[task.end] - profile.weights[task.first]
        reduced = 0.0
        if self.replicas:
            wait = task.out[-1] if task.out and not self.prefetch else 0.0
            us = 2 * (self.used - 1) / self.used * weights_bytes / profile.p2p_rate
            reduced = self.event(gpu, COMPUTE, us, wait)
        us = weights_bytes / self.swap_rate
        gradients = self.event(gpu, OUT, us, task.computed[-1], reduced)
        task.deleted = self.event(gpu, COMPUTE, profile.delete_us, gradients)
        update = profile.update_us[task.end] - profile.update_us[task.first]
        self.event(gpu, HOST, update, gradients)

    def late(self, task: Task) -> bool:
        """Its weights are swapped in behind its first input, not before it."""
        first = self.left[task.gpu] is None
        return self.prefetch and not first and (self.replicas or (task.backward and not task.turn))

    def weights_in(self, task: Task) -> float:
        left = self.left[task.gpu]
        wait = 0.0 if not left else left.computed[-1] if self.prefetch else left.deleted
        us = (self.profile.weights[task.end] - self.profile.weights[task.first]) / self.swap_rate
        return self.event(task.gpu, IN, us, wait)

    def gate(self, task: Task, m: int, weights: float) -> float:
        """When there is room for a microbatch's input: ahead are one microbatch, or none."""
        left, left2 = self.left[task.gpu], self.left2[task.gpu]
        if not self.prefetch:
            done = task.out if self.replicas and task.out else task.computed
            return done[m - 1] if m else weights
        if m >= 2:
            return task.computed[m - 2]
        if left is None:
            return 0.0
        if m == 1:
            return left.deleted
        if len(left.computed) >= 2:
            return left.computed[-2]
        return left2.deleted if left2 else 0.0

    def input_in(self, before: Task | None, task: Task, m: int, weights: float) -> float:
        """The boundary that a forward pack or the turn begins with."""
        size = task.sizes[m] * self.profile.inputs[task.first]
        return self.arrive(before, task, m, size, self.gate(task, m, weights))

    def gradient_in(self, before: Task, task: Task, m: int) -> float:
        """The gradients that a backward pack begins with."""
        left = self.left[task.gpu]
        if not self.prefetch:
            wait = task.recomputed[m]
        elif m:
            wait = task.recomputed[m - 1]
        elif left and (self.replicas or (left.backward and not left.turn)):
            wait = left.recomputed[-1]
        else:
            wait = self.gate(task, 0, 0.0)
        return self.arrive(before, task, m, task.sizes[m] * self.profile.inputs[task.end], wait)

    def arrive(self, before: Task | None, task: Task, m: int, size: int, wait: float) -> float:
        """What the pack before has made, from the host or directly from its GPU."""
        if before is None:
            return self.event(task.gpu, IN, size / self.swap_rate, wait)
        if before.out:
            return self.event(task.gpu, IN, size / self.swap_rate, before.out[m], wait)
        us = size / self.profile.p2p_rate
        free = self.free[before.gpu][SEND]
        end = self.event(task.gpu, RECEIVE, us, free, before.computed[m], wait)
        self.free[before.gpu][SEND] = end
        return end
