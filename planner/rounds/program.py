"""Programs put together: ops get times and edges, and are written as a plan has them."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.rounds.hazards import dependencies, pruned
from planner.rounds.list_schedule import Orders
from planner.rounds.ops import Entry, queued
from planner.rounds.timeline import Settled, earliest, once, steady_state
from planner.shards import Mode, Planned, ShardCost
from plans.schema import Buffer, Memory, Op, Program, Shard, Task

SUFFIX = ".eval"
"""Behind the name of a task, that of the program that evaluates it."""


@dataclass(frozen=True)
class Cycle:
    """The ops of a round in the order of their meaning, the order of their streams, and the steady
    state that this settles into."""

    entries: Sequence[Entry]
    orders: Orders
    state: Settled

    def written(self) -> tuple[Op, ...]:
        """The ops stream by stream with their times, and the edges that nothing else implies."""
        queues, needs = self.orders.queues, self.orders.needs
        us = [entry.us for entry in self.entries]
        starts = earliest(us, queues.values(), needs, self.state)
        names = [str(entry.name) for entry in self.entries]
        kept = pruned(queues, needs)

        def after(at: int) -> list[str]:
            deps = sorted((dep % len(names), dep < 0) for dep in kept[at])
            return [names[dep] + "@-1" * back for dep, back in deps]

        listed = (at for stream in sorted(queues) for at in queues[stream])
        return tuple(self.entries[at].written(starts[at], after(at)) for at in listed)


def one_by_one(entries: Sequence[Entry]) -> Cycle:
    """A round with every stream in the order of meaning."""
    orders = Orders(queued(entries), dependencies(entries), frozenset())
    us = [entry.us for entry in entries]
    return Cycle(entries, orders, steady_state(us, orders.queues.values(), orders.needs))


def planned_task(strategy: Planned) -> Task:
    """The task that is trained this way, as a plan has it."""
    costs, task = strategy.costs, strategy.costs.task
    return Task(
        name=task.name,
        workload=task.workload,
        steps=task.steps,
        batch=task.batch,
        microbatch=costs.microbatch,
        microbatches=costs.microbatches,
        batch_bytes=costs.batch_bytes,
        ties=task.ties,
        tie_bytes=strategy.tie_bytes,
        precision=task.precision,
        norm_bytes=task.norm_bytes,
        evaluation=task.evaluation,
        cut=task.cut,
        parts=task.parts,
        shards=tuple(
            _shard(shard, mode, costs.microbatches, halved=k in strategy.halved)
            for k, (shard, mode) in enumerate(zip(strategy.shards, strategy.modes, strict=True))
        ),
    )


def _shard(cost: ShardCost, mode: Mode, count: int, *, halved: bool) -> Shard:
    of = [mode.of(m, count).activations for m in range(count)] if mode.recomputed else []
    return Shard(
        first_layer=cost.first,
        end_layer=cost.end,
        resident=mode.params == "resident",
        activations=mode.activations,
        update=mode.update,
        param_bytes=cost.param_bytes,
        grad_bytes=cost.grad_bytes,
        state_bytes=cost.state_bytes,
        in_bytes=cost.in_bytes,
        saved_bytes=_kept_bytes(cost, mode),
        rng_draws=cost.rng_draws,
        cast=cost.cast,
        left_bytes=(cost.left_bytes or 0) if halved else 0,
        recomputed=tuple(m for m, one in enumerate(of) if one == "recompute"),
    )


def _kept_bytes(cost: ShardCost, mode: Mode) -> int:
    """Bytes that a microbatch's forward leaves for its backward beside the boundary."""
    if mode.activations == "saved":
        return cost.saved_bytes
    return (cost.offload_bytes or 0) if mode.activations == "offload" else 0


def assembled(
    tasks: tuple[str, ...],
    memory: Sequence[Memory],
    buffers: Sequence[Buffer],
    cycle: Cycle,
    *,
    enter: Sequence[Entry] = (),
    leave: Sequence[Entry] = (),
    evaluates: bool = False,
) -> Program:
    """The timed program of these tasks, with the memory of each device."""
    entered, left, round_ = _once(enter), _once(leave), cycle.written()
    return Program(
        name="+".join(tasks) + SUFFIX * evaluates,
        memory=tuple(memory),
        tasks=tasks,
        enter_us=_span_us(entered),
        period_us=cycle.state.period_us,
        round_us=_span_us(round_),
        leave_us=_span_us(left),
        buffers=tuple(buffers),
        enter=entered,
        round=round_,
        leave=left,
        evaluates=evaluates,
    )


def _once(entries: Sequence[Entry]) -> tuple[Op, ...]:
    """Copies that write different buffers, each as soon as its stream is free and another has
    written what it reads."""
    writers = {name: at for at, entry in enumerate(entries) for name in entry.writes.values()}
    needs = [[writers[n] for n in entry.reads.values() if n in writers] for entry in entries]
    starts = once([e.us for e in entries], queued(entries).values(), needs)
    return tuple(
        entry.written(us, [str(entries[at].name) for at in own])
        for entry, us, own in zip(entries, starts, needs, strict=True)
    )


def _span_us(ops: Sequence[Op]) -> int:
    return max((op.end_us for op in ops), default=0)
