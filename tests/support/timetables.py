"""Small timetables written by hand for pictures, traces and reports, and logs that follow them.

They have the shape of real plans (streamed shards, several tasks, overlapping rounds) and times in
stream order, but carry no buffers: nothing here is meant to be run or proven.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from msgspec.structs import replace

from plans import timing
from plans.prediction import Bound, Prediction, Solver
from plans.runlog import End, Header, OpRecord, RunLog, StepRecord
from plans.schema import Device, Host, Memory, Op, Plan, Program, Segment, Shard, Task
from profiles.schema import Emulation, Workload

PLAN_SHA256 = "a" * 64
MIB = 1 << 20
_US = {"P": 900, "F": 400, "B": 1000, "S": 700, "U": 500}


@dataclass
class _Clock:
    """Gives ops the earliest start that their stream and their `after` edges allow."""

    free: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def add(self, op_id: str, stream: str, us: int, after: Iterable[str]) -> None:
        edges = tuple(after)
        start = max([self.free.get(stream, 0), *(self.ends.get(name, 0) for name in edges)])
        self.free[stream] = self.ends[op_id] = start + us
        self.ops.append(Op(op_id, stream, start, start + us, edges))


def task(name: str, shards: int, microbatches: int, steps: int) -> Task:
    """A task of `shards` one-layer shards, all but the first streamed and updated on the host."""
    return Task(
        name=name,
        workload=Workload("work.py:tasks", "0" * 64),
        steps=steps,
        batch=4 * microbatches,
        microbatch=4,
        microbatches=microbatches,
        batch_bytes=1024,
        shards=tuple(
            Shard(k, k + 1, k == 0, "recompute", "host", MIB, MIB, 2 * MIB, 4096 * (k > 0), 0, 0)
            for k in range(shards)
        ),
    )


def _sweep(of: Task) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """(id, stream, µs, after) of one step: forward up, backward down, gradients to the host."""
    rows: list[tuple[str, str, int, tuple[str, ...]]] = []
    last = len(of.shards) - 1
    order = [("F", k) for k in range(last)] + [("B", k) for k in range(last, -1, -1)]
    done: list[str] = []  # last compute op of each visit, to free its slot two visits later
    for serial, (kind, k) in enumerate(order):
        item = f"{of.name}.s{k}"
        after = (done[-2],) if len(done) > 1 else ()
        rows.append((f"{item}.P{serial}", "0.h2d", _US["P"], (*after, f"{item}.U0@-1")))
        names = [f"{item}.{kind}{m}" for m in range(of.microbatches)]
        rows += [(name, "0.compute", _US[kind], (f"{item}.P{serial}",)) for name in names]
        done.append(names[-1])
        if kind == "B":
            rows.append((f"{item}.S{serial}", "0.d2h", _US["S"], (names[-1],)))
            rows.append((f"{item}.U0", "host.0", _US["U"], (f"{item}.S{serial}",)))
    return rows


def program(name: str, tasks: Sequence[Task]) -> Program:
    """One round of all `tasks` on one device, interleaved, as early as the streams allow."""
    clock = _Clock()
    enter = Op(f"{tasks[0].name}.s0.P1000", "0.h2d", 0, 600)
    leave = Op(f"{tasks[0].name}.s0.S1000", "0.d2h", 0, 600)
    for row in chain.from_iterable(zip_longest(*map(_sweep, tasks))):
        if row is not None:
            clock.add(*row)
    starts = {op.id: op.start_us for op in clock.ops}
    spans = [
        max(op.end_us for op in clock.ops if op.stream == s)
        - min(op.start_us for op in clock.ops if op.stream == s)
        for s in clock.free
    ]
    carried = [
        clock.ends[edge[:-3]] - starts[op.id]
        for op in clock.ops
        for edge in op.after
        if edge.endswith("@-1")
    ]
    return Program(
        name=name,
        memory=(Memory(3 * MIB, 2 * MIB),),
        tasks=tuple(one.name for one in tasks),
        enter_us=600,
        period_us=max(spans + carried),
        round_us=max(clock.ends.values()),
        leave_us=600,
        buffers=(),
        enter=(enter,),
        round=tuple(clock.ops),
        leave=(leave,),
    )


def _segment(of: Program, device: int, rounds: int, start: int) -> Segment:
    end = start + timing.duration_us(of, rounds)
    return Segment(of.name, (device,), rounds, start, end)


def plan(
    rounds: int = 4, shards: int = 3, microbatches: int = 2, *, emulated: bool = False
) -> Plan:
    """Tasks a and b share device 0, then c runs there; d has device 1 for itself."""
    shapes = {"a": shards, "b": shards, "c": shards + 1, "d": shards + 2}
    tasks = {n: task(n, k, microbatches, rounds) for n, k in shapes.items()}
    ab = program("ab", [tasks["a"], tasks["b"]])
    c, d = program("c", [tasks["c"]]), program("d", [tasks["d"]])
    first = _segment(ab, 0, rounds, 0)
    segments = (first, _segment(d, 1, rounds, 0), _segment(c, 0, rounds, first.end_us))
    return assemble(tuple(tasks.values()), (ab, c, d), segments, emulated=emulated)


def tiny() -> Plan:
    """Four ops: prefetch, backward, spill and update of one shard, one round."""
    one = task("a", 1, 1, 1)
    ops = (
        Op("a.s0.P0", "0.h2d", 0, 40),
        Op("a.s0.B0", "0.compute", 40, 140, ("a.s0.P0",)),
        Op("a.s0.S0", "0.d2h", 140, 170, ("a.s0.B0",)),
        Op("a.s0.U0", "host.0", 170, 200, ("a.s0.S0",)),
    )
    body = Program("a", (Memory(3 * MIB, 2 * MIB),), ("a",), 0, 200, 200, 0, (), (), ops, ())
    return assemble((one,), (body,), (Segment("a", (0,), 1, 0, 200),))


def assemble(
    tasks: tuple[Task, ...],
    programs: tuple[Program, ...],
    segments: tuple[Segment, ...],
    *,
    emulated: bool = False,
) -> Plan:
    """A plan around `segments`, with predictions that follow from its timeline."""
    count = 1 + max(number for segment in segments for number in segment.devices)
    emulation = Emulation(10**9, 10**9, 10) if emulated else None
    device = Device("box", "cpu", 8 * MIB, 1, emulation)
    body = Plan(
        inputs={"profile": "b" * 64},
        devices=(device,) * count,
        host=Host(1 << 30, ()),
        tasks=tasks,
        programs=programs,
        segments=segments,
        prediction=Prediction(0, ()),
        solver=Solver("gantry", 0, "complete", 1),
    )
    makespan = max(segment.end_us for segment in segments)
    bounds = Bound("compute", makespan // 2), Bound("link", makespan * 9 // 10)
    prediction = Prediction(makespan, bounds)
    return replace(body, prediction=prediction)


def log(of: Plan, *, percent: int = 110) -> RunLog:
    """A run of the whole plan in which every time is `percent` per cent of the predicted one."""
    ops = tuple(
        OpRecord(
            p.segment, p.op.id, p.round, p.start_us * percent // 100, p.end_us * percent // 100
        )
        for p in timing.timeline(of)
    )
    end = max(record.end_us for record in ops)
    steps = tuple(
        StepRecord(one.name, step, 4.0 - step / one.steps, end * (step + 1) // one.steps)
        for one in of.tasks
        for step in range(one.steps)
    )
    return RunLog(
        header=Header(
            plan_sha256=PLAN_SHA256,
            started="2025-01-01T00:00:00+00:00",
            devices=tuple(device.name for device in of.devices),
            emulated=any(device.emulation for device in of.devices),
            microbatch={task.name: task.microbatch for task in of.tasks},
        ),
        ops=ops,
        steps=steps,
        end=End(
            status="ok", actual_us=end, peak_bytes=(4 * MIB,) * len(of.devices), host_bytes=1 << 20
        ),
    )
