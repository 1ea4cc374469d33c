"""Small timetables written by hand for pictures, traces and reports, and logs that follow them.

They have the shape of real plans (streamed shards, several tasks, overlapping rounds) but carry no
buffers: nothing here is meant to be run or proven.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from msgspec.structs import replace
from support.retime import around, retimed, untimed

from plans import timing
from plans.prediction import Bound, Prediction
from plans.runlog import End, Header, OpRecord, RunLog, StepRecord
from plans.schema import Device, Memory, Op, Plan, Program, Shard, Task
from profiles.schema import Emulation, Workload

PLAN_SHA256 = "a" * 64
MIB = 1 << 20
MEMORY = (Memory(3 * MIB, 2 * MIB),)
_US = {"P": 900, "F": 400, "B": 1000, "S": 700, "U": 500}


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
    """One round of all `tasks` on one device, interleaved."""
    first = tasks[0].name
    rows = (row for row in chain.from_iterable(zip_longest(*map(_sweep, tasks))) if row)
    rounds = (Op(name, stream, 0, us, after) for name, stream, us, after in rows)
    enter = Op(f"{first}.s0.P1000", "0.h2d", 0, 600)
    leave = Op(f"{first}.s0.S1000", "0.d2h", 0, 600)
    return untimed(name, (one.name for one in tasks), MEMORY, [enter], rounds, [leave])


def plan(
    rounds: int = 4, shards: int = 3, microbatches: int = 2, *, emulated: bool = False
) -> Plan:
    """Tasks a and b share device 0, then c runs there; d has device 1 for itself."""
    shapes = {"a": shards, "b": shards, "c": shards + 1, "d": shards + 2}
    tasks = {n: task(n, k, microbatches, rounds) for n, k in shapes.items()}
    programs = [program(name, [tasks[n] for n in name]) for name in ("ab", "c", "d")]
    runs = [("ab", (0,), rounds), ("d", (1,), rounds), ("c", (0,), rounds)]
    return assemble(tasks.values(), programs, runs, emulated=emulated)


def tiny() -> Plan:
    """Four ops: prefetch, backward, spill and update of one shard, one round."""
    ops = (
        Op("a.s0.P0", "0.h2d", 0, 40),
        Op("a.s0.B0", "0.compute", 0, 100, ("a.s0.P0",)),
        Op("a.s0.S0", "0.d2h", 0, 30, ("a.s0.B0",)),
        Op("a.s0.U0", "host.0", 0, 30, ("a.s0.S0",)),
    )
    body = untimed("a", "a", MEMORY, (), ops, ())
    return assemble([task("a", 1, 1, 1)], [body], [("a", (0,), 1)])


def assemble(
    tasks: Iterable[Task],
    programs: Iterable[Program],
    runs: Iterable[tuple[str, tuple[int, ...], int]],
    *,
    emulated: bool = False,
) -> Plan:
    """A timed plan whose segments are (program, devices, rounds), with two bounds."""
    emulation = Emulation(10**9, 10**9, 10) if emulated else None
    made = retimed(around(tasks, programs, runs, Device("box", "cpu", 8 * MIB, 1, emulation)))
    makespan = made.prediction.makespan_us
    bounds = Bound("compute", makespan // 2), Bound("link", makespan * 9 // 10)
    return replace(made, prediction=Prediction(makespan, bounds))


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
            microbatch={task.name: task.microbatch for task in of.tasks},
        ),
        ops=ops,
        steps=steps,
        end=End(
            status="ok", actual_us=end, peak_bytes=(4 * MIB,) * len(of.devices), host_bytes=1 << 20
        ),
    )
