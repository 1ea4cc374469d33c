"""The program that evaluates a task: its shards' forwards, from the store as training left it.

    compute   F0 F0 | F1 F1 | F2 F2      some microbatches of a shard in turn, the last gives losses
    h2d       P0 b b   P1     P2         two slots for parameters; those that stay come in `enter`

It is cut as the task is. How many shards stay, and how many microbatches go together, is whatever
is shortest of what fits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.choice import SCALARS_BYTES, Choice, extent, pack
from planner.costs import Links, TaskCosts, sizes
from planner.errors import Infeasible
from planner.hazards import link
from planner.hydra import HydraChoice
from planner.timeline import Entry, once, periodic
from planner.walk import entry, load
from plans.evaluation import due_steps
from plans.metrics import duration_us
from plans.schema import Buffer, Memory, Program
from profiles.schema import Evaluation, Task
from profiles.units import show_bytes

SUFFIX = ".eval"

_KEPT = 8  # about so many counts of shards that stay are tried


@dataclass(frozen=True, eq=False)
class Layout:
    """stay: the last so many shards keep their parameters on the device, others take turns in
    `slots`. group: microbatches that go through a shard one after the other. ahead: the next ones
    come while these are computed with."""

    choice: Choice | HydraChoice
    stay: int
    slots: int
    group: int
    ahead: bool = True

    @property
    def last(self) -> int:
        return len(self.choice.shards) - 1

    @cached_property
    def streamed(self) -> list[int]:
        """The shards whose parameters come in every round."""
        every = range(len(self.choice.shards) - self.stay)
        return [k for k in every if self.choice.shards[k].param_bytes and k != self._owner]

    @cached_property
    def _owner(self) -> int | None:
        """The shard whose tied parameters others read: it stays."""
        shards = self.choice.shards
        return next((k for k, shard in enumerate(shards) if shard.tie == "owner"), None)

    @property
    def batches(self) -> int:
        """Buffers for microbatches."""
        return min(self.choice.costs.microbatches, (1 + self.ahead) * self.group)

    def param(self, k: int) -> str:
        """The buffer of a shard's parameters."""
        if k not in self.streamed:
            return f"s{k}.param"
        at = self.streamed.index(k)
        # An odd one out would wait for the shard that the next round begins with.
        third = self.slots == 3 and at == len(self.streamed) - 1 and at % 2 == 0
        return f"slot{2 if third else at % min(self.slots, 2)}"

    def boundary(self, k: int, m: int) -> str:
        """The buffer of x of shard k."""
        return f"x{k % 2}.{m % self.group}"

    def reads(self, k: int, m: int) -> dict[str, str]:
        """What the forward of a shard reads."""
        shard, batch = self.choice.shards[k], f"0/batch.{m % self.batches}"
        reads = {"param": f"0/{self.param(k)}"} if shard.param_bytes else {}
        if shard.tie == "holder" and self._owner is not None:
            reads["tied"] = f"0/{self.param(self._owner)}"
        if k:
            reads["x"] = f"0/{self.boundary(k, m)}"
        return reads | ({"batch": batch} if k in (0, self.last) else {})

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        shards, sizes = self.choice.shards, dict[str, int]()
        for k, shard in enumerate(shards):
            if name := shard.param_bytes and self.param(k):
                sizes[name] = max(sizes.get(name, 0), shard.param_bytes)
            for m in range(self.group if k else 0):
                name = self.boundary(k, m)
                sizes[name] = max(sizes.get(name, 0), shard.in_bytes)
        batch = {f"batch.{m}": self.choice.costs.batch_bytes for m in range(self.batches)}
        return pack((sizes | batch).items())

    @cached_property
    def transients(self) -> list[int]:
        """Of every shard's forward; the last one's loss is part of what its backward takes."""
        shards = self.choice.shards
        own = [shard.forward_transient_bytes for shard in shards[:-1]]
        return [*own, shards[-1].backward_transient_bytes]

    @property
    def reserve_bytes(self) -> int:
        return max(self.transients) + self.choice.costs.total("buffer") + SCALARS_BYTES

    @property
    def bytes(self) -> int:
        return extent(self.buffers) + self.reserve_bytes

    def program(self, links: Links) -> Program:
        """The timed program."""
        name = self.choice.costs.task.name
        phase = periodic(link(list(self._round(links))))
        enter = once(list(self._enter(links)))
        return Program(
            name=name + SUFFIX,
            memory=(Memory(extent(self.buffers), self.reserve_bytes),),
            tasks=(name,),
            enter_us=enter.span_us,
            period_us=phase.period_us,
            round_us=phase.span_us,
            leave_us=0,
            buffers=self.buffers,
            enter=enter.ops,
            round=phase.ops,
            leave=(),
            evaluates=True,
        )

    def _enter(self, links: Links) -> Iterator[Entry]:
        alone = links.alone
        for k, shard in enumerate(self.choice.shards):
            if shard.param_bytes and k not in self.streamed:
                yield self._load(alone, k, 0)

    def _round(self, links: Links) -> Iterator[Entry]:
        costs = self.choice.costs
        alone = links.alone  # nothing goes the other way
        us = alone.prefetch_us(costs.batch_bytes)
        for number, start in enumerate(range(0, costs.microbatches, self.group)):
            mine = range(start, min(start + self.group, costs.microbatches))
            for m in mine:
                batch = {"batch": f"0/batch.{m % self.batches}"}
                yield entry(us, f"{costs.task.name}.batch.P{m}", "0.h2d", writes=batch)
            for k in range(len(self.choice.shards)):
                if k in self.streamed:
                    yield self._load(alone, k, number)
                for m in mine:
                    yield self._forward(k, m)

    def _load(self, links: Links, k: int, serial: int) -> Entry:
        item = f"{self.choice.costs.task.name}.s{k}"
        device = f"0/{self.param(k)}"
        return load(links, self.choice.shards[k], f"{item}.P{serial}", item, device)

    def _forward(self, k: int, m: int) -> Entry:
        shard = self.choice.shards[k]
        writes = {} if k == self.last else {"y": f"0/{self.boundary(k + 1, m)}"}
        return entry(
            shard.graph_forward_us if k == self.last else shard.forward_us,
            f"{self.choice.costs.task.name}.s{k}.F{m}",
            "0.compute",
            reads=self.reads(k, m),
            writes=writes,
            transient_bytes=self.transients[k],
        )


def evaluating(choice: Choice | HydraChoice, links: Links, device_bytes: int) -> Program:
    """The shortest program found that evaluates the task of a choice; Infeasible when none fits."""
    wanted = choice.costs.task.evaluation
    batches = wanted.batches if wanted else 1
    fitting = [each for each in _layouts(choice) if each.bytes <= device_bytes]
    if not fitting:
        needs = min(each.bytes for each in _layouts(choice))
        raise Infeasible(
            f"{choice.costs.task.name}: its evaluation needs {show_bytes(needs)} ({needs} bytes) "
            f"on its device but the device offers {show_bytes(device_bytes)} ({device_bytes} "
            f"bytes); smallest --device-memory that would do: {needs}",
            needs,
        )
    made = (each.program(links) for each in _fullest(fitting))
    return min(made, key=lambda program: duration_us(program, batches))


def _layouts(choice: Choice | HydraChoice) -> Iterator[Layout]:
    """What may fit: all shards staying or fewer and fewer, all microbatches together or fewer; the
    least, one microbatch at a time and none ahead, is no more than training takes."""
    count, microbatches = len(choice.shards), choice.costs.microbatches
    stays = sorted({count * n // _KEPT for n in range(_KEPT + 1)} | {count - 1}, reverse=True)
    groups = dict.fromkeys((microbatches, -(-microbatches // 4), 1))
    for group, ahead in [*((group, True) for group in groups), (1, False)]:
        for stay in stays:
            for slots in (3, 2, 1) if stay < count else (2,):
                yield Layout(choice, stay, slots, group, ahead)


def _fullest(layouts: Iterable[Layout]) -> list[Layout]:
    """Of equal slots and groups the one with most on the device: more never makes it longer."""
    found: dict[tuple[int, int, bool], Layout] = {}
    for each in layouts:
        found.setdefault((each.slots, each.group, each.ahead), each)
    return list(found.values())


def least_us(task: Task, done: int) -> int:
    """What all evaluations of a task compute at least, `done` steps having been trained before."""
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
    """What evaluating adds to a step, with the entering and leaving of one more segment."""
    more = duration_us(program, evaluation.batches) + duration_us(train, 1) - train.period_us
    return -(-more // evaluation.every)
