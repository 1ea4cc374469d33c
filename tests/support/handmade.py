"""Small plans made without a planner, each with another way to train. All are sound.

Times are those of `support.retime`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain

from msgspec.structs import replace
from support.edges import finished
from support.parts import (
    TRANSIENT,
    Part,
    offloaded_part,
    packed_part,
    parallel_part,
    parked_part,
    pipeline_part,
    resident_part,
    returned_part,
    saved_part,
    state_part,
    streamed_part,
    summed_part,
    swapped_part,
)
from support.retime import around, foretold, retimed, untimed
from support.rewrites import Which, based, casting, halved, noted

from plans.schema import Device, Memory, Plan, Program, Segment

KEPT = 40  # bytes that an I leaves for its W


def program(name: str, devices: int, parts: Iterable[Part]) -> Program:
    """The parts one after the other in every stream."""
    parts = list(parts)
    memory = (Memory(0, TRANSIENT + max(part.kept for part in parts)),) * devices
    phases = zip(*((part.enter, part.round, part.leave) for part in parts), strict=True)
    return untimed(
        name, (part.task.name for part in parts), memory, *map(chain.from_iterable, phases)
    )


def assemble(
    parts: Iterable[Part],
    programs: Iterable[Program],
    runs: Iterable[tuple[str, tuple[int, ...], int]],
) -> Plan:
    """A timed plan; `runs` are the segments as (program, devices, rounds)."""
    plan = around((part.task for part in parts), programs, runs, Device("cpu0", "cpu", 1, 1))
    devices = tuple(replace(d, name=f"cpu{number}") for number, d in enumerate(plan.devices))
    return finished(replace(plan, devices=devices))


def solo(part: Part, devices: int = 1) -> Plan:
    """One task in one program and one segment."""
    made = program("solo", devices, [part])
    return assemble([part], [made], [("solo", tuple(range(devices)), part.task.steps)])


def resident() -> Plan:
    return solo(resident_part("a"))


def streamed() -> Plan:
    return solo(streamed_part("a"))


def shared() -> Plan:
    """Two tasks, one streamed and one resident, on one device in one program."""
    parts = [streamed_part("b", shards=2), resident_part("a")]
    return assemble(parts, [program("both", 1, parts)], [("both", (0,), 4)])


def pipeline() -> Plan:
    return solo(pipeline_part("a"), 2)


def parallel() -> Plan:
    return solo(parallel_part("a"), 2)


def moved() -> Plan:
    """One program that runs on device 0 first and on device 1 afterwards."""
    part = resident_part("a", steps=5)
    return assemble([part], [program("solo", 1, [part])], [("solo", (0,), 2), ("solo", (1,), 3)])


def fleet() -> Plan:
    """Two tasks at the same time, each with a program and a device of its own."""
    parts = [resident_part("a"), streamed_part("b", shards=2)]
    programs = [program(part.task.name, 1, [part]) for part in parts]
    return assemble(parts, programs, [("a", (0,), 4), ("b", (1,), 4)])


def gang() -> Plan:
    """A pipeline on two of three devices beside a task on one, both in turns on any of them."""
    parts = [pipeline_part("a"), streamed_part("b", shards=2)]
    programs = [program("a", 2, parts[:1]), program("b", 1, parts[1:])]
    runs = [
        *(("a", (0, 1), 2), ("b", (2,), 1)),
        *(("b", (1,), 2), ("a", (2, 0), 1)),
        *(("a", (1, 2), 1), ("b", (0,), 1)),
    ]
    return assemble(parts, programs, runs)


def crowd() -> Plan:
    """Six tasks on four devices, of which each goes on to the next one after every round."""
    parts = [
        *(resident_part("a"), streamed_part("b", shards=2), saved_part("c"), packed_part("d")),
        *(pipeline_part("e"), streamed_part("f")),
    ]
    widths = {"e": 2}
    programs = [program(p.task.name, widths.get(p.task.name, 1), [p]) for p in parts]
    runs = [
        (made.name, tuple((at + turn + d) % 4 for d in range(made.devices)), 1)
        for turn in range(4)
        for at, made in enumerate(programs)
    ]
    return assemble(parts, programs, runs)


def onwards(plan: Plan, done: Mapping[str, int], where: Mapping[str, tuple[int, ...]]) -> Plan:
    """What is left of a plan whose programs are called like their tasks, each on such devices."""
    left = {task.name: task.steps - done.get(task.name, 0) for task in plan.tasks}
    tasks = [
        replace(task, steps=left[task.name], done=done.get(task.name, 0))
        for task in plan.tasks
        if left[task.name]
    ]
    names = [task.name for task in tasks]
    rest = replace(
        plan,
        tasks=tuple(tasks),
        programs=tuple(program for program in plan.programs if program.name in names),
        segments=tuple(Segment(name, where[name], left[name], 0, 0) for name in names),
    )
    return foretold(retimed(rest))


def relay() -> Plan:
    """Two tasks one after the other on one device, with the same scratch bytes on the host."""
    parts = [streamed_part(name, shards=2) for name in "ab"]
    programs = [program(part.task.name, 1, [part]) for part in parts]
    return _sharing(assemble(parts, programs, [("a", (0,), 4), ("b", (0,), 4)]))


def _sharing(plan: Plan) -> Plan:
    """The plan whose tasks have their gradients on the host in the same bytes."""
    offsets = {buffer.name: buffer.offset for buffer in plan.host.buffers}
    buffers = [
        replace(b, offset=offsets[f"a.s{b.name[3]}.grad"]) if b.name.endswith(".grad") else b
        for b in plan.host.buffers
    ]
    return replace(plan, host=replace(plan.host, buffers=tuple(buffers)))


def kept() -> Plan:
    """Parameters stay in their slot from forward to backward, which recomputes."""
    return solo(saved_part("a", keeps=False))


def mixed() -> Plan:
    """Two tasks on one device: all that one does happens while the other's graphs are alive."""
    keeping, other = saved_part("a"), streamed_part("b", shards=2)
    plan = assemble([keeping, other], [program("both", 1, [keeping, other])], [("both", (0,), 4)])
    made = plan.programs[0]
    forwards = [o for o in made.round if o.id.startswith("a.") and o.id[-2] in "FP"]
    rest = [o for o in made.round if o.id.startswith("a.") and o not in forwards]
    between = [o for o in made.round if o.id.startswith("b.")]
    mixed = replace(made, round=(*forwards, *between, *rest))
    return finished(replace(plan, programs=(mixed,)))


def bases() -> Plan:
    """Two tasks of one base, and one that has another, streamed on one device."""
    parts = [streamed_part(name, shards=2) for name in "abc"]
    return based(
        assemble(parts, [program("all", 1, parts)], [("all", (0,), 4)]),
        {"a": "a", "b": "a", "c": "c"},
    )


def halves() -> Plan:
    """Backwards are split, and a shard's weights come when all its inputs are done."""
    return halved(pipeline(), late=True, left_bytes=KEPT)


def halves_saved() -> Plan:
    """The same of shards that keep their graphs, or recompute."""
    return halved(solo(returned_part("a")), left_bytes=KEPT)


def halves_packed() -> Plan:
    """The same where what the graphs hold was packed."""
    return halved(solo(packed_part("a")), late=True, left_bytes=KEPT)


PLANS: dict[str, Callable[[], Plan]] = {
    **{
        made.__name__: made
        for made in (
            *(resident, streamed, shared, pipeline, parallel, moved, fleet, gang, crowd, relay),
            *(kept, mixed, halves, halves_saved, halves_packed),
        )
    },
    "summed": lambda: solo(summed_part("a"), 2),
    "offloaded": lambda: solo(offloaded_part("a")),
    "saved": lambda: solo(saved_part("a")),
    "packed": lambda: solo(packed_part("a")),
    "parked": lambda: solo(parked_part("a")),
    "state": lambda: solo(state_part("a")),
    "returned": lambda: solo(returned_part("a")),
}

NOTED: dict[str, Callable[[], Plan]] = {
    "norms-host": lambda: solo(noted(streamed_part("a"))),
    "norms-device": lambda: solo(noted(offloaded_part("a"))),
    "norms-devices": lambda: solo(noted(pipeline_part("a")), 2),
}

BASED: dict[str, Callable[[], Plan]] = {"bases": bases, "bases-cast": lambda: casting(bases())}


def _cast(made: Callable[[], Plan], which: Which = lambda number: True) -> Plan:
    return casting(made(), which)


CASTING: dict[str, Callable[[], Plan]] = {
    **{f"cast-{name}": partial(_cast, made) for name, made in (PLANS | NOTED).items()},
    "cast-relay": lambda: _sharing(casting(relay())),
    "cast-some": partial(_cast, streamed, lambda number: number != 1),
    "cast-swapped": partial(_cast, lambda: solo(swapped_part("a"))),
}


def large(ops: int) -> Plan:
    """Two devices with a streamed task each in one program, about `ops` ops in a round."""
    shards = ops // 2 // 12
    parts = [streamed_part("a", 0, shards, 4), streamed_part("b", 1, shards, 4)]
    return assemble(parts, [program("large", 2, parts)], [("large", (0, 1), 4)])
