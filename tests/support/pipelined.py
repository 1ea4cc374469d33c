"""Programs on several devices, simple and slow: every value has bytes of its own.

An order says which device runs which pass; here it becomes a plan. All else that has to happen is
put right behind or before the pass that wants it, each stream keeps that order, and the edges are
those of `planner.rounds.hazards`.

    order     F0.0 F1.0 B2.0 ...        kind, shard and microbatch, device by device
    ops       P batch, P params, F, X of the boundary to where its consumer is, ...
              behind a shard's last B: X of replicas' gradients, R in turn, (N,) U, X of parameters
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from msgspec import structs
from support.device_ops import Maker, Way
from support.retime import foretold

from planner.inputs.problem import Problem
from planner.rounds.ops import Entry, queued
from planner.rounds.program import Cycle
from planner.rounds.timeline import once
from planner.shards.modes import Mode
from planner.shards.shard_cost import Links
from planner.shards.values import SCALARS_BYTES
from plans import prove
from plans.checker.graphs import heaviest
from plans.ops import Lane, OpKind, OpName, Stream
from plans.order import Run, due_of, laid_out
from plans.prediction import Bound, Prediction, Solver
from plans.schema import Buffer, Device, Host, Memory, Op, Plan, Program, Shard, Task
from plans.view import stored, view
from profiles.codec import align

RESIDENT = Mode("resident", "device", "recompute")


def program(way: Way, links: Links) -> tuple[Program, dict[str, int]]:
    """The program that trains this way, and what it puts aside on the host."""
    maker = Maker(way, links)
    cycle = Cycle.in_turn(maker.round())
    enter, leave = _once(maker.staying("P")), _once(maker.staying("S"))
    return _program(way, maker, enter, cycle, leave), maker.host


def evaluating(way: Way, links: Links) -> Program:
    """The program that evaluates the task where this way has it."""
    modes = tuple(replace(mode, activations="recompute") for mode in way.modes)
    maker = Maker(replace(way, modes=modes), links)
    for m in range(way.costs.microbatches):
        for k in range(way.last + 1):
            device = way.where[k, m]
            if k < way.last:
                maker.forward(k, m, device)
                continue
            reads = {**maker.param(k, device), **maker.tied(k, device)}
            reads |= {"x": maker.boundary("x", k, m, device)} if k else {}
            reads |= maker.batch(k, m, device)
            name, cost = OpName(maker.task, "s", k, OpKind.FORWARD, m), way.shards[k]
            us, transient = cost.graph_forward_us, cost.backward_transient_bytes
            maker.op(name, Stream(device, Lane.COMPUTE), us, reads, {}, transient)
    cycle = Cycle.in_turn(maker.entries)
    enter = [e for e in maker.staying("P") if "state" not in e.writes]
    return _program(way, maker, _once(enter), cycle, (), evaluates=True)


def _once(entries: Sequence[Entry]) -> tuple[Op, ...]:
    starts = once([e.us for e in entries], queued(entries).values(), [()] * len(entries))
    return tuple(e.written(us) for e, us in zip(entries, starts, strict=True))


def _program(
    way: Way,
    maker: Maker,
    enter: tuple[Op, ...],
    cycle: Cycle,
    leave: tuple[Op, ...],
    *,
    evaluates: bool = False,
) -> Program:
    ends = {str(device): 0 for device in range(len(way.order))}
    buffers = []
    for name, (space, size) in maker.buffers.items():
        buffers.append(Buffer(name, space, ends[space], size))
        ends[space] += size
    rounds = cycle.written()
    return Program(
        name=way.costs.task.name + ".eval" * evaluates,
        memory=tuple(Memory(end, 0) for end in ends.values()),
        tasks=(way.costs.task.name,),
        enter_us=max((op.end_us for op in enter), default=0),
        period_us=cycle.state.period_us,
        round_us=max(op.end_us for op in rounds),
        leave_us=max((op.end_us for op in leave), default=0),
        buffers=tuple(buffers),
        enter=enter,
        round=rounds,
        leave=leave,
        evaluates=evaluates,
    )


def planned(problem: Problem, way: Way, *, proven: bool = True) -> Plan:
    """The plan that trains the way's task in its steps, on as many devices as it wants."""
    links = Links.of(problem.device)
    made, aside = program(way, links)
    task = planned_task(way)
    programs = [made, *([evaluating(way, links)] if task.evaluation else [])]
    sizes = {name: getattr(task.shards[n], f"{r}_bytes") for name, (n, r) in stored(task).items()}
    host, end = [], 0
    for name, size in {**sizes, **aside}.items():
        host.append(Buffer(name, "host", end, align(size)))
        end += align(size)
    programs = [_reserved(one, task, host, way) for one in programs]
    devices = tuple(range(len(way.order)))
    segments = laid_out(Run(programs[which], devices, n) for which, n in _runs(task))
    needed = [max(m.slab_bytes + m.reserve_bytes for p in programs for m in p.memory)]
    plan = Plan(
        inputs={"profile": "1" * 64},
        devices=tuple(_device(problem, d, needed[0]) for d in devices),
        host=Host(end, end, tuple(host)),
        tasks=(task,),
        programs=tuple(programs),
        segments=tuple(segments),
        prediction=Prediction(0, 1, "none", (Bound("none", 1),)),
        solver=Solver("gantry", 0, "complete", 1),
        numerics=problem.numerics,
    )
    plan = foretold(plan)
    if proven:
        prove(plan)
    return plan


def _device(problem: Problem, number: int, budget: int) -> Device:
    of = problem.device
    return Device(f"{of.kind}{number}", of.kind, budget, of.threads, of.emulation)


def _runs(task: Task) -> Iterator[tuple[int, int]]:
    """The programs of the segments and how many rounds they make: training, and evaluations."""
    due = list(due_of(task))
    ends = [*due, task.done + task.steps]
    for number, (start, end) in enumerate(pairwise([task.done, *ends])):
        if end > start:
            yield 0, end - start
        if number < len(due) and task.evaluation:
            yield 1, task.evaluation.batches


def planned_task(way: Way) -> Task:
    """The plan's task of a way."""
    of, costs = way.costs.task, way.costs
    return Task(
        name=of.name,
        workload=of.workload,
        steps=of.steps,
        batch=of.batch,
        microbatch=costs.microbatch,
        microbatches=costs.microbatches,
        batch_bytes=costs.batch_bytes,
        ties=of.ties,
        tie_bytes=costs.tie_bytes if way.tied else 0,
        precision=of.precision,
        norm_bytes=of.norm_bytes,
        evaluation=of.evaluation,
        cut=of.cut,
        shards=tuple(_shard(way, k) for k in range(way.last + 1)),
    )


def _shard(way: Way, k: int) -> Shard:
    """What the first half of a backward leaves is all that the whole takes, at most."""
    cost, mode = way.shards[k], way.modes[k]
    split = any(one[:2] == ("I", k) for own in way.order for one in own)
    saved = {"saved": cost.saved_bytes, "offload": cost.offload_bytes or 0}
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
        saved_bytes=saved.get(mode.activations, 0),
        rng_draws=cost.rng_draws,
        left_bytes=cost.backward_transient_bytes if split else 0,
    )


def _reserved(made: Program, task: Task, host: Sequence[Buffer], way: Way) -> Program:
    """The program with reserves in which its ops have what they take beside their buffers."""
    what = view(made, {task.name: task}, {buffer.name: buffer for buffer in host})
    needed = [way.costs.total("buffer") + SCALARS_BYTES] * made.devices
    for stream, load in heaviest(what).items():
        needed[stream.device] += load.bytes if stream.lane is not Lane.HOST else 0
    pairs = zip(made.memory, needed, strict=True)
    memory = tuple(structs.replace(one, reserve_bytes=size) for one, size in pairs)
    return structs.replace(made, memory=memory)


def shared_out(way: Way, names: Iterable[str]) -> dict[str, list[list[int]]]:
    """The microbatches of the replicas of each parameter of a sequential model, for a plain loop
    that adds as they do."""
    found = {}
    for name in names:
        layer = int(name.partition(".")[0])
        found[name] = way.shares(next(k for k, end in enumerate(way.cuts[1:]) if layer < end))
    return found
