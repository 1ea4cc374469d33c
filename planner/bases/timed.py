"""Times of a program whose ops were split: each part has its share of its op's time, and the round
is simulated anew."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from planner.bases.splitting import Buffers, Members, split
from planner.rounds import Needs, earliest, once, steady_state
from planner.shards import Links
from plans.graph import waits
from plans.ops import COPIES, OpKind
from plans.schema import Op, Program

Split = Sequence[tuple[Op, Sequence[Op]]]


def retimed(
    program: Program, members: Mapping[str, Members], buffers: Buffers, links: Links
) -> Program:
    """The program with its ops split, and the times that follow."""
    stay = set[str]()
    members = {
        name: members[name].placed(program.round) for name in program.tasks if name in members
    }

    def parts(ops: Sequence[Op], *, enters: bool = False) -> list[Op]:
        return linked(split(ops, members, buffers, stay, enters=enters), members, links)

    entered = _once(parts(program.enter, enters=not program.evaluates))
    ops = parts(program.round)
    left = _once(parts(program.leave))
    us, (queues, needs) = [op.us for op in ops], _graph(ops)
    state = steady_state(us, queues, needs)
    round_ = _told(ops, earliest(us, queues, needs, state))
    names = list[str]()
    for task in program.tasks:
        names += [one.name for one in members[task].tasks] if task in members else [task]
    return structs.replace(
        program,
        tasks=tuple(names),
        buffers=tuple(b for b in buffers.made.values() if b.space != "host"),
        enter=entered,
        round=round_,
        leave=left,
        enter_us=_span_us(entered),
        period_us=state.period_us,
        round_us=_span_us(round_),
        leave_us=_span_us(left),
    )


def _once(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Ops that run once, as soon as they can."""
    queues, needs = _graph(ops)
    return _told(ops, once([op.us for op in ops], queues, needs)) if ops else ()


def _graph(ops: Sequence[Op]) -> tuple[list[list[int]], Needs]:
    """The streams in order, and what ops wait for beside their streams."""
    queues: dict[str, list[int]] = {}
    for at, op in enumerate(ops):
        queues.setdefault(op.stream, []).append(at)
    needs = [[place - lag * len(ops) for place, lag in own[1:]] for own in waits(ops)]
    return list(queues.values()), needs


def _told(ops: Sequence[Op], starts: Sequence[int]) -> tuple[Op, ...]:
    pairs = zip(ops, starts, strict=True)
    return tuple(structs.replace(op, start_us=at, end_us=at + op.us) for op, at in pairs)


def linked(pairs: Split, members: Mapping[str, Members], links: Links) -> list[Op]:
    """All parts, each as long as its share. The first part of an op waits for the last parts of
    what this waits for, the others follow it in its stream. An op without parts leaves its place to
    the next one in its stream, which waits for what it would have waited for."""
    kept, nexts = list[tuple[Op, Sequence[Op]]](), dict[str, str]()
    late: dict[str, tuple[str, ...]] = {}  # by stream, what the next op has to wait for
    moved: dict[str, tuple[str, ...]] = {}  # of ops without parts, the one before in the stream
    for op, parts in pairs:
        if parts:
            kept.append((structs.replace(op, after=op.after + late.pop(op.stream, ())), parts))
            nexts[op.stream] = op.id
        else:
            late[op.stream] = late.get(op.stream, ()) + op.after
            before = (nexts[op.stream],) if op.stream in nexts else ()
            moved[op.id] = late[op.stream] + before
    last = {op.id: parts[-1].id for op, parts in kept}

    def ends(edge: str) -> list[str]:
        name = edge.removesuffix("@-1")
        if name in last:
            return [last[name] + edge[len(name) :]]
        later = edge[len(name) :]
        return [end for one in moved[name] for end in ends(one.removesuffix("@-1") + later)]

    begun, found = set[str](), list[Op]()
    for op, parts in kept:
        behind = () if op.stream in begun else late.get(op.stream, ())  # of the round before
        begun.add(op.stream)
        wanted = (*op.after, *(edge.removesuffix("@-1") + "@-1" for edge in behind))
        for at, (part, us) in enumerate(zip(parts, _us(op, parts, members, links), strict=True)):
            edges = (*(wanted if not at else ()), *part.after)
            after = tuple(dict.fromkeys(end for edge in edges for end in ends(edge)))
            found.append(structs.replace(part, after=after, end_us=part.start_us + us))
    return found


def _us(op: Op, parts: Sequence[Op], members: Mapping[str, Members], links: Links) -> list[int]:
    """The time of each part: of a copy by its bytes, with a latency of its own; of an op for each
    task the same."""
    name = op.name
    if name.task not in members or name.kind not in COPIES or name.item not in ("s", "norm"):
        return [-(-op.us // max(len(parts), 1))] * len(parts)
    (role,), own = op.writes, members[name.task]
    whole = sum(own.sizes(role, name.number))
    whole += own.base_bytes(name.number) if role == "param" else 0
    rates = {OpKind.PREFETCH: links.h2d_both, OpKind.SPILL: links.d2h_both}
    rate = rates.get(name.kind, links.p2p or links.d2h_both)
    latency = min(rate.latency_us, op.us)
    sizes = [_bytes(part, role, own) for part in parts]
    return [latency + -(-(op.us - latency) * size // max(whole, 1)) for size in sizes]


def _bytes(part: Op, role: str, members: Members) -> int:
    name = part.name
    if name.item == "base":
        return members.base_bytes(name.number)
    at = [task.name for task in members.tasks].index(name.task)
    return members.sizes(role, name.number)[at]


def _span_us(ops: Sequence[Op]) -> int:
    return max((op.end_us for op in ops), default=0)
