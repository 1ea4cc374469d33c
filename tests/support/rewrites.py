"""Plans made into others: with norms, with parameters made from masters, with a base, with
backwards in two parts. Edges, buffers and times follow."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace
from support.edges import PHASES, finished
from support.parts import GRAD, Part, op

from plans.checker.order import Phase
from plans.schema import Op, Plan, Program, Role, Task

NORM, BASE = 24, 2 * GRAD

Which = Callable[[int], bool]  # the shards, by number


def noted(part: Part) -> Part:
    """The part whose updates wait for the norms of all gradients: each shard is noted behind its
    last backward, and the norms go on to the device of the next, in the end to all updates."""
    name, last = part.task.name, f".B{part.task.microbatches - 1}"
    several = len({o.stream for o in part.round if o.name.kind == "B"}) > 1
    places = {d: f"{name}.norm" + d * several for d in "01"} | {"host": f"{name}.norms"}
    at, ops, updates = "", list[Op](), list[Op]()

    def carry(to: str) -> None:
        kind, lane = ("S0", "d2h") if to == "host" else (f"X{to == '1':d}", "p2p")
        move = {"norm": places[at]}, {"norm": places[to]}
        ops.append(op(f"{name}.norm.{kind}", f"{at}.{lane}", *move))

    for item in part.round:
        (updates if item.name.kind == "U" else ops).append(item)
        if item.id.endswith(last):
            here = item.stream[0]
            if at not in ("", here):
                carry(here)
            norm: dict[Role, str] = {"norm": places[here]}
            reads = {"grad": item.writes["grad"]} | (norm if at else {})
            ops.append(op(f"{name}.s{item.name.number}.N0", item.stream, reads, norm))
            at = here
    users = [item.stream.partition(".")[0] for item in updates]
    for to in dict.fromkeys(users):
        if to != at:
            carry(to)
    ends = (
        replace(item, reads={**item.reads, "norm": places[user]})
        for item, user in zip(updates, users, strict=True)
    )
    return part._replace(task=replace(part.task, norm_bytes=NORM), round=[*ops, *ends])


def casting(plan: Plan, which: Which = lambda number: True) -> Plan:
    """The plan whose host store keeps no parameters of these shards: prefetches make them from
    masters, and what goes back is the state."""
    tasks = {}
    for task in plan.tasks:
        shards = (
            replace(shard, cast=True, param_bytes=GRAD) if which(number) else shard
            for number, shard in enumerate(task.shards)
        )
        tasks[task.name] = replace(task, precision="bf16", shards=tuple(shards))
    programs = tuple(
        replace(p, **{phase: _cast(getattr(p, phase), tasks) for phase in PHASES})
        for p in plan.programs
    )
    return finished(replace(plan, tasks=tuple(tasks.values()), programs=programs))


def _cast(ops: tuple[Op, ...], tasks: Mapping[str, Task]) -> tuple[Op, ...]:
    made = []
    for old in ops:
        name = old.name
        params = f"{name.task}.s{name.number}.param"
        gone = name.item == "s" and tasks[name.task].shards[name.number].cast
        reads, writes = dict(old.reads), dict(old.writes)
        if gone and name.kind == "S" and writes.get("param") == params:
            continue
        if gone and reads.get("param") == params:
            del reads["param"]
            if name.kind == "P":
                reads["state"] = f"{name.task}.s{name.number}.state"
            else:
                del writes["param"]
        made.append(replace(old, reads=reads, writes=writes))
    return tuple(made)


def based(plan: Plan, owners: Mapping[str, str]) -> Plan:
    """The plan of one program whose tasks have a base each, in the name of an owner: that of shard
    0 stays on the device, others come in the beginning of a round, once for all tasks."""
    (program,) = plan.programs
    enter, rounds = list(program.enter), list[Op]()
    for owner in dict.fromkeys(owners.values()):
        count = next(len(task.shards) for task in plan.tasks if task.name == owner)
        for k in range(count):
            target: dict[Role, str] = {"base": f"{owner}.base{k}"}
            source: dict[Role, str] = {"base": f"{owner}.s{k}.base"}
            copy = op(f"{owner}.base{k}.P0", "0.h2d", source, target)
            (rounds if k else enter).append(copy)
    for old in program.round:
        name = old.name
        where: dict[Role, str] = {"base": f"{owners[name.task]}.base{name.number}"}
        rounds.append(replace(old, reads=old.reads | where) if name.kind in "FB" else old)
    tasks = tuple(
        replace(
            task,
            base=owners[task.name],
            shards=tuple(replace(s, base_bytes=BASE, param_bytes=GRAD) for s in task.shards),
        )
        for task in plan.tasks
    )
    made = replace(program, enter=tuple(enter), round=tuple(rounds))
    return finished(replace(plan, tasks=tasks, programs=(made,)))


def halved(plan: Plan, *, late: bool = False, left_bytes: int = 0) -> Plan:
    """The plan with every backward split that can be. `late`: a shard's W come when it has made all
    its I, or else each behind its own."""
    tasks = {task.name: task for task in plan.tasks}
    kept = left_bytes * max(task.microbatches * len(task.shards) for task in plan.tasks)
    programs = tuple(
        replace(
            program,
            round=_split(program, tasks, late=late),
            memory=tuple(replace(m, reserve_bytes=m.reserve_bytes + kept) for m in program.memory),
        )
        for program in plan.programs
    )
    made = tuple(
        replace(
            task,
            shards=tuple(
                replace(s, left_bytes=left_bytes if k and s.grad_bytes else 0)
                for k, s in enumerate(task.shards)
            ),
        )
        for task in plan.tasks
    )
    return finished(replace(plan, programs=programs, tasks=made))


def _split(program: Program, tasks: Mapping[str, Task], *, late: bool) -> tuple[Op, ...]:
    """The round with I and W, in an order that its edges allow; gradients of inputs that W needs
    lie in places of their own."""
    ops, waiting = list[Op](), dict[tuple[str, int], list[Op]]()
    places: dict[str, str] = {}  # of gradients, by where they were
    for old in map(program.round.__getitem__, Phase("round", program.round, 0).order):
        name, task = old.name, tasks[old.name.task]
        moved = {r: places.get(b, b) for r, b in old.reads.items() if r in ("dy", "dx")}
        now = replace(old, reads=old.reads | moved)
        for buffer in now.writes.values():
            places.pop(buffer, None)
        if name.kind != "B" or not name.number or not task.shards[name.number].grad_bytes:
            ops.append(now)
            continue
        own = places[now.writes["dx"]] = f"{name.task}.dx{name.number}.{name.index}.own"
        first, second = _halves(now)
        ops.append(replace(first, writes=first.writes | {"dx": own}))
        late_ones = waiting.setdefault((name.task, name.number), [])
        late_ones.append(second)
        if not late or len(late_ones) == task.microbatches:
            ops += late_ones
            late_ones.clear()
    return tuple(ops)


def _halves(op: Op) -> tuple[Op, Op]:
    needs: tuple[Role, ...] = ("param", "x", "batch", "saved", "tied", "grad")
    first = replace(
        op,
        id=op.id.replace(".B", ".I"),
        reads={role: b for role, b in op.reads.items() if role != "grad"},
        writes={role: b for role, b in op.writes.items() if role != "grad"},
    )
    second = replace(
        op,
        id=op.id.replace(".B", ".W"),
        reads={role: op.reads[role] for role in needs if role in op.reads},
        writes={"grad": op.writes["grad"]},
    )
    return first, second
