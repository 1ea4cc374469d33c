"""The plan of joined tasks taken apart: ops, buffers and shards of each task, and the base of all.

    joined   P s3 | F s3,0  F s3,1  F s3,2  F s3,3 |        S grad    U
    apart    P base3, a.s3, b.s3 | a F0, a F1, b F0, b F1 | S a, S b  U a, U b

Every op takes the place of the one that it is part of, in its stream and among those that wait for
it. So the order stands, and times are simulated anew. At last bases stay where that is shorter.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from planner.bases.groups import Grouping, base_of
from planner.bases.joined import joined_name
from planner.bases.lasting import lasting, with_programs
from planner.bases.splitting import Buffers, Members
from planner.bases.timed import retimed
from planner.inputs import Problem
from planner.shards import Links, TaskCosts
from plans.schema import Buffer, Host, Plan, Program, Shard, Task
from plans.timing import union
from plans.view import stored
from profiles import schema as profile


def parted(problem: Problem, grouping: Grouping, plan: Plan) -> Plan:
    """The plan of the problem, made from that of its joined tasks; it is not proven yet."""
    groups = {joined_name(group): group for group in grouping}
    members = _members(problem, groups, plan)
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    own, programs = dict[str, Buffer](), dict[str, Program]()
    for program in plan.programs:
        buffers = Buffers(host | {b.name: b for b in program.buffers})
        links = _links(problem, plan, program)
        programs[program.name] = retimed(program, members, buffers, links)
        own |= {name: b for name, b in buffers.made.items() if b.space == "host"}
    for task in plan.tasks:
        own |= _kept(members[task.name], host) if task.name in members else _plain(task, host)
    tasks = {t.name: members[t.name].tasks if t.name in members else [t] for t in plan.tasks}
    made = structs.replace(
        plan,
        host=Host(problem.host_bytes, _host(problem, plan, own, members.values())),
        tasks=tuple(task for own in tasks.values() for task in own),
        solver=structs.replace(
            plan.solver,
            looked_at={tasks[name][0].name: n for name, n in plan.solver.looked_at.items()},
            alternatives=tuple(
                structs.replace(one, task=tasks[one.task][0].name)
                for one in plan.solver.alternatives
            ),
        ),
    )
    return lasting(with_programs(made, programs))


def _members(
    problem: Problem, groups: Mapping[str, Sequence[str]], plan: Plan
) -> dict[str, Members]:
    """The tasks of each joined task. Bases have one name where they lie in the same shards."""
    profiled = {task.name: task for task in problem.tasks}
    owners: dict[object, str] = {}
    found = {}
    for task in plan.tasks:
        group = groups.get(task.name)
        if group is None:
            continue
        cuts = [(shard.first_layer, shard.end_layer) for shard in task.shards]
        base = owners.setdefault((base_of(profiled[group[0]]), *cuts), group[0])
        counts = [profiled[name].batch // task.microbatch for name in group]
        own = [_task(task, profiled[name], base, sum(counts[:at])) for at, name in enumerate(group)]
        found[task.name] = Members(task.name, own)
    return found


def _task(joined: Task, own: profile.Task, base: str, first: int) -> Task:
    """One of the tasks that this one stands for. first: of its microbatches, among all."""
    costs, count = TaskCosts(own, joined.microbatch), own.batch // joined.microbatch
    return structs.replace(
        joined,
        name=own.name,
        workload=own.workload,
        batch=own.batch,
        microbatches=count,
        batch_bytes=costs.batch_bytes,
        norm_bytes=own.norm_bytes,
        cut=own.cut,
        parts=own.parts,
        base=base,
        shards=tuple(_shard(shard, costs, range(first, first + count)) for shard in joined.shards),
    )


def _shard(joined: Shard, costs: TaskCosts, mine: range) -> Shard:
    own = costs.shard(joined.first_layer, joined.end_layer)
    again = tuple(mine.index(m) for m in joined.recomputed if m in mine)
    activations = "recompute" if len(again) == len(mine) else joined.activations
    saved = {"recompute": 0, "saved": own.saved_bytes, "offload": own.offload_bytes or 0}
    return structs.replace(
        joined,
        activations=activations,
        recomputed=again if activations == "offload" else (),
        param_bytes=own.grad_bytes,  # all that is trained
        base_bytes=own.param_bytes - own.grad_bytes,
        grad_bytes=own.grad_bytes,
        state_bytes=own.state_bytes,
        saved_bytes=saved[activations],
        rng_draws=own.rng_draws,
        left_bytes=(own.left_bytes or 0) if joined.left_bytes else 0,
    )


def _kept(members: Members, host: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The buffers of the tasks in the host store between segments, whether ops use them or not."""
    buffers = Buffers(host)
    for k, shard in enumerate(members.tasks[0].shards):
        for role in ("param", "state"):
            if (whole := f"{members.name}.s{k}.{role}") in host:
                for task, size in enumerate(members.sizes(role, k)):
                    if size:
                        buffers.part(whole, role, k, task, members)
                if role == "param" and shard.base_bytes:
                    buffers.base(whole, k, members)
    return buffers.made


def _plain(task: Task, host: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The same of a task that has no base in common with others."""
    return {name: host[name] for name in stored(task) if name in host}


def _host(
    problem: Problem, plan: Plan, own: Mapping[str, Buffer], members: Iterable[Members]
) -> tuple[Buffer, ...]:
    """The host store of these buffers. Each base lies there once, behind all else, layer by layer,
    however tasks are cut; only cuts that share devices have it each for itself."""
    others = {name: b for name, b in own.items() if not name.endswith(".base")}
    found = {b.name: b for b in _closed_up(plan.host.buffers, others)}
    end = max(b.offset + b.bytes for b in found.values())
    cuts: dict[str, list[Members]] = {}
    for one in members:
        cuts.setdefault(one.tasks[0].base, []).append(one)
    begins, met = dict[object, int](), dict[object, set[str]]()
    for base, groups in cuts.items():
        key: object = base_of(next(task for task in problem.tasks if task.name == base))
        names, seen = {one.name for one in groups}, met.setdefault(key, set())
        if any(names & {*program.tasks} and seen & {*program.tasks} for program in plan.programs):
            key = base
        seen |= names
        at = begins.setdefault(key, end)
        for k, shard in enumerate(groups[0].tasks[0].shards):
            if shard.base_bytes:
                name = f"{base}.s{k}.base"
                found[name] = structs.replace(own[name], offset=at)
                at += shard.base_bytes
        end = max(end, at)
    return tuple(found.values())


def _closed_up(before: Sequence[Buffer], own: Mapping[str, Buffer]) -> tuple[Buffer, ...]:
    """These buffers of the host, each at its place but for the bytes that none of them uses."""
    used = union((b.offset, b.offset + b.bytes) for b in own.values())
    gaps = list(_gaps(used, max(b.offset + b.bytes for b in before)))

    def place(offset: int) -> int:
        return offset - sum(end - begin for begin, end in gaps if end <= offset)

    return tuple(structs.replace(b, offset=place(b.offset)) for b in own.values())


def _gaps(used: Sequence[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    at = 0
    for begin, until in (*used, (end, end)):
        if begin > at:
            yield at, begin
        at = max(at, until)


def _links(problem: Problem, plan: Plan, program: Program) -> Links:
    """The rates of the devices that a program runs on."""
    segment = next(one for one in plan.segments if one.program == program.name)
    kind = problem.kinds[problem.kind_of[segment.devices[0]]]
    return Links.of(kind.device, kind.node)
