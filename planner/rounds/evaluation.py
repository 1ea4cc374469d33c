"""The program that evaluates a task: its shards' forwards, from the store as training left it.

    compute   F0 F0 | F1 F1 | F2 F2      some microbatches of a shard in turn, the last gives losses
    h2d       P0 b b   P1     P2         two slots for parameters; those that stay come in `enter`

It is cut as the task is. How many shards stay, and how many microbatches go together, is whatever
is shortest of what fits. Several devices have equally many microbatches each, and the whole model.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.errors import Infeasible
from planner.rounds.emit import Copy, Emitter, Visit
from planner.rounds.program import Cycle, assembled
from planner.shards import (
    DEVICE,
    SCALARS_BYTES,
    Links,
    MicrobatchCost,
    Mode,
    Planned,
    ShardCost,
    TaskCosts,
    extent,
    pack,
    sizes,
)
from plans.order import due_steps
from plans.schema import Buffer, Memory, Program, Role
from plans.timing import duration_us
from profiles.schema import Evaluation, Task
from profiles.units import show_bytes

SUFFIX = ".eval"

_KEPT = 8  # about so many counts of shards that stay are tried


@dataclass(frozen=True, eq=False)
class Layout:
    """stay: the last so many shards keep their parameters on the device, others take turns in
    `slots`. group: microbatches that go through a shard one after the other. ahead: the next ones
    come while these are computed with. each: the costs of every microbatch, where they differ."""

    strategy: Planned
    stay: int
    slots: int
    group: int
    ahead: bool = True
    devices: int = 1
    each: Sequence[MicrobatchCost] = ()

    @property
    def costs(self) -> TaskCosts:
        return self.strategy.costs

    @property
    def shards(self) -> tuple[ShardCost, ...]:
        return self.strategy.shards

    @cached_property
    def streamed(self) -> list[int]:
        """The shards whose parameters come in every round."""
        every = range(len(self.shards) - self.stay)
        return [k for k in every if self.shards[k].param_bytes and k != self._owner]

    @cached_property
    def _owner(self) -> int | None:
        """The shard whose tied parameters others read: it stays."""
        shards = self.shards
        return next((k for k, shard in enumerate(shards) if shard.tie == "owner"), None)

    @property
    def microbatches(self) -> int:
        """The microbatches of a device."""
        return self.costs.microbatches // self.devices

    @property
    def batches(self) -> int:
        """Buffers for microbatches."""
        return min(self.microbatches, (1 + self.ahead) * self.group)

    def _param(self, k: int) -> str:
        """The buffer of a shard's parameters."""
        if k not in self.streamed:
            return f"s{k}.param"
        at = self.streamed.index(k)
        # An odd one out would wait for the shard that the next round begins with.
        third = self.slots == 3 and at == len(self.streamed) - 1 and at % 2 == 0
        return f"slot{2 if third else at % min(self.slots, 2)}"

    def _batch(self, m: int) -> str:
        """The buffer of a microbatch."""
        return f"batch.{m % self.batches}"

    def _boundary(self, k: int, m: int) -> str:
        """The buffer of x of shard k."""
        return f"x{k % 2}.{m % self.group}"

    def buffers(self, device: int = DEVICE) -> tuple[Buffer, ...]:
        """Those of a device."""
        shards, sizes = self.shards, dict[str, int]()
        for k, shard in enumerate(shards):
            if name := shard.param_bytes and self._param(k):
                sizes[name] = max(sizes.get(name, 0), shard.param_bytes)
            for m in range(self.group if k else 0):
                name = self._boundary(k, m)
                sizes[name] = max(sizes.get(name, 0), shard.in_bytes)
        batch = {self._batch(m): self.costs.batch_bytes for m in range(self.batches)}
        return pack((sizes | batch).items(), str(device))

    @property
    def reserve_bytes(self) -> int:
        """The last shard's loss is part of what its backward takes."""
        needs = [shard.forward_transient_bytes for shard in self.shards[:-1]]
        needs.append(self.shards[-1].backward_transient_bytes)
        return max(needs) + self.costs.total("buffer") + SCALARS_BYTES

    @cached_property
    def bytes(self) -> int:
        """The bytes of each device."""
        return extent(self.buffers()) + self.reserve_bytes

    def program(self, links: Links) -> Program:
        """The timed program."""
        modes = (Mode(),) * len(self.shards)
        alone, every = links.alone, range(self.devices)  # nothing goes the other way
        emitter = Emitter(self.costs, self.shards, modes, alone, each=self.each)
        entries = [entry for d in every for entry in emitter.entries(self._visits(d))]
        stays = [self._load(k) for k in range(len(self.shards)) if k not in self.streamed]
        return assembled(
            (self.costs.task.name,),
            [Memory(extent(self.buffers(d)), self.reserve_bytes) for d in every],
            [buffer for d in every for buffer in self.buffers(d)],
            Cycle.in_turn(entries),
            enter=[entry for d in every for entry in emitter.copies(stays, d)],
            evaluates=SUFFIX,
        )

    def _visits(self, device: int) -> Iterator[Visit]:
        """Groups of a device's microbatches, each through shard after shard."""
        first = device * self.microbatches
        for start in range(0, self.microbatches, self.group):
            mine = range(start, min(start + self.group, self.microbatches))
            for m in mine:
                yield Visit(0, first + m, "P", {"batch": self._batch(m)}, device=device)
            for k in range(len(self.shards)):
                loads = [self._load(k)] if k in self.streamed else []
                for m in mine:
                    at: dict[Role, str] = {"param": self._param(k), "batch": self._batch(m)}
                    at |= {"x": self._boundary(k, m), "y": self._boundary(k + 1, m)}
                    at["tied"] = f"s{self._owner}.param"
                    brings = loads if m == start else ()
                    yield Visit(k, first + m, "F", at, brings, device=device)

    def _load(self, k: int) -> Copy:
        size = self.shards[k].param_bytes
        return Copy("P", "s", k, "param", size, self._param(k), f"s{k}.param")


def evaluating(
    strategy: Planned,
    links: Links,
    device_bytes: int,
    *,
    devices: int = 1,
    each: Sequence[MicrobatchCost] = (),
) -> Program:
    """The shortest program found that evaluates the task of a strategy, on so many devices that
    share the microbatches evenly; each: their costs, where they differ. Infeasible when none
    fits."""
    wanted = strategy.costs.task.evaluation
    batches = wanted.batches if wanted else 1
    every = [*_layouts(strategy, devices, each)]
    fitting = [one for one in every if one.bytes <= device_bytes]
    if not fitting:
        needs = min(one.bytes for one in every)
        raise Infeasible(
            f"{strategy.costs.task.name}: its evaluation needs {show_bytes(needs)} ({needs} bytes) "
            f"on its device but the device offers {show_bytes(device_bytes)} ({device_bytes} "
            f"bytes); smallest --device-memory that would do: {needs}",
            needs,
        )
    made = (one.program(links) for one in _fullest(fitting))
    return min(made, key=lambda program: duration_us(program, batches))


def on_one_node(task: str, devices: int, node: int | None) -> None:
    """Infeasible for a task that is evaluated and trains on devices of several nodes."""
    if node and devices > node:
        raise Infeasible(
            f"{task}: trains on {devices} devices of several nodes, and an evaluation reads all "
            f"shards in the store of one; give a --layout of at most {node} devices",
            resource="other",
        )


def _layouts(strategy: Planned, devices: int, each: Sequence[MicrobatchCost]) -> Iterator[Layout]:
    """Layouts that may fit: all shards staying or fewer, all microbatches together or fewer; the
    least, one microbatch at a time and none ahead, is no more than training takes."""
    count, microbatches = len(strategy.shards), strategy.costs.microbatches // devices
    stays = sorted({count * n // _KEPT for n in range(_KEPT + 1)} | {count - 1}, reverse=True)
    groups = dict.fromkeys((microbatches, -(-microbatches // 4), 1))
    for group, ahead in [*((group, True) for group in groups), (1, False)]:
        for stay in stays:
            for slots in (3, 2, 1) if stay < count else (2,):
                yield Layout(strategy, stay, slots, group, ahead, devices, each)


def _fullest(layouts: Iterable[Layout]) -> list[Layout]:
    """The layouts with most on the device among equal slots and groups: more is never longer."""
    found: dict[tuple[int, int, bool], Layout] = {}
    for each in layouts:
        found.setdefault((each.slots, each.group, each.ahead), each)
    return list(found.values())


def least_us(task: Task, done: int) -> int:
    """The least compute time of all evaluations of a task, after `done` steps trained before."""
    if task.evaluation is None:
        return 0
    each = min(costs.microbatches * _forward_us(costs) for costs in sizes(task))
    count = len(due_steps(task.evaluation, done, task.steps))
    return count * task.evaluation.batches * each


def _forward_us(costs: TaskCosts) -> int:
    """A microbatch through all layers, however they are cut."""
    return sum(
        min(c.forward.median_us, max(0, c.recompute_backward.median_us - c.backward.median_us))
        for c in costs.costs
    )


def share_us(evaluation: Evaluation, train: Program, program: Program) -> int:
    """The time that evaluating adds to a step, with entering and leaving one more segment."""
    more = duration_us(program, evaluation.batches) + duration_us(train, 1) - train.period_us
    return -(-more // evaluation.every)
