"""Plans with one thing changed: what a checker must notice, if it matters."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from support.edits import Path, Sites, all_ops, at, put, with_op, with_phase, without
from support.mutate_tasks import (
    keep_graph,
    lower_budget,
    other_base,
    other_devices,
    other_layers,
    other_microbatches,
    other_rounds,
)
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Buffer, Op, Plan, Program
from profiles.codec import ALIGNMENT

# Rules of the format whose breach need not change any number: a copy on a compute stream, a batch
# under a serial number, bytes that an op reads before it overwrites them, norms noted again after
# all updates, parameters that an update leaves somewhere where they are made from masters again.
STRICT = re.compile(
    r"runs on stream|roles \[|there is no microbatch|over its own|belongs in round|N has index 0"
    r"|changes param in place"
)


class Mutant(NamedTuple):
    name: str
    plan: Plan


def mutants(plan: Plan, seed: int, limit: int) -> Iterator[Mutant]:
    """At most `limit` mutants of `plan`, each mutator having its share; honestly timed."""
    rng = random.Random(seed)
    queues = []
    for mutator in MUTATORS:
        sites = list(mutator(plan))
        rng.shuffle(sites)
        queues.append((mutator.__name__, sites))
    while limit > 0 and any(sites for _, sites in queues):
        for name, sites in queues:
            if sites and limit > 0:
                limit -= 1
                what, thunk = sites.pop()
                yield Mutant(f"{name}: {what}", retimed(thunk()))


def kind(op: Op) -> str:
    return op.id.split(".")[2][0]


# --- order ----------------------------------------------------------------------------------


def _ops(plan: Plan) -> Iterator[tuple[Program, Op, Callable[[Op], Callable[[], Plan]]]]:
    """Every op with its program, and how the plan is made that has another op in its place."""
    for program, phase, index, op in all_ops(plan):
        yield program, op, partial(partial, with_op, plan, program, phase, index)


def drop_edge(plan: Plan) -> Sites:
    for _, op, made in _ops(plan):
        for edge in op.after:
            less = tuple(a for a in op.after if a != edge)
            yield f"{edge} before {op.id}", made(replace(op, after=less))


def shift_edge(plan: Plan) -> Sites:
    """`x@-1` becomes `x` and `x` becomes `x@-1`."""
    for _, op, made in _ops(plan):
        for edge in op.after:
            new = edge[:-3] if edge.endswith("@-1") else f"{edge}@-1"
            other = tuple(new if a == edge else a for a in op.after)
            yield f"{op.id} waits for {new}", made(replace(op, after=other))


def swap_ops(plan: Plan) -> Sites:
    """Two neighbours of one stream change places."""
    last: dict[tuple[str, str, str], int] = {}
    for program, phase, j, op in all_ops(plan):
        i = last.get((program.name, phase, op.stream))
        last[program.name, phase, op.stream] = j
        if i is not None:
            ops = list(getattr(program, phase))
            ops[i], ops[j] = ops[j], ops[i]
            yield f"{ops[j].id} and {op.id}", partial(with_phase, plan, program, phase, ops)


# --- ops ------------------------------------------------------------------------------------


def drop_op(plan: Plan) -> Sites:
    """A prefetch, a spill, any op is forgotten; the order among the others stays."""
    for program, phase, _, op in all_ops(plan):
        ops = getattr(program, phase)
        if len(ops) > 1 or phase != "round":
            yield (op.id, partial(with_phase, plan, program, phase, without(ops, {op.id})))


def duplicate_op(plan: Plan) -> Sites:
    """An op again at the end of its phase, under its own name or that of another serial number."""
    for program, phase, _, op in all_ops(plan):
        again = replace(op, after=(*op.after, op.id))
        stem, letter, index = re.fullmatch(r"(.*\.)(\w)(\d+)", op.id).groups()  # type: ignore[union-attr]
        for twin in (again, replace(again, id=f"{stem}{letter}{int(index) + 7}")):
            ops = [*getattr(program, phase), twin]
            yield twin.id, partial(with_phase, plan, program, phase, ops)


def _rivals(plan: Plan, program: Program, name: str) -> list[str]:
    """A few other buffers of the same space, those that follow it."""
    buffers = {b.name: b for b in (*plan.host.buffers, *program.buffers)}
    if name not in buffers:
        return []
    names = [b.name for b in buffers.values() if b.space == buffers[name].space]
    place = names.index(name)
    return [n for n in (names[place + 1 :] + names[:place])[:3] if n != name]


def other_buffer(plan: Plan) -> Sites:
    """A role is played by another buffer of the same space: the wrong slot, the wrong gradient."""
    for program, op, made in _ops(plan):
        for field in ("reads", "writes"):
            for role, name in getattr(op, field).items():
                for other in _rivals(plan, program, name):
                    new = put(op, (field, role), other)
                    yield f"{op.id} {field} {role} of {other}", made(new)


def other_buffer_in_place(plan: Plan) -> Sites:
    """A role that is changed in place is moved to another buffer, for reading and writing."""
    for program, op, made in _ops(plan):
        for role in set(op.reads) & set(op.writes):
            for other in _rivals(plan, program, op.reads[role]):
                new = put(put(op, ("reads", role), other), ("writes", role), other)
                yield f"{op.id} changes {role} in {other}", made(new)


def drop_role(plan: Plan) -> Sites:
    """A role is forgotten: without `grad`, a backward overwrites instead of adding."""
    for _, op, made in _ops(plan):
        for field in ("reads", "writes"):
            for role in getattr(op, field):
                less = {r: b for r, b in getattr(op, field).items() if r != role}
                yield f"{role} of {op.id} {field}", made(replace(op, **{field: less}))


def other_stream(plan: Plan) -> Sites:
    for _, op, made in _ops(plan):
        for stream in ("0.compute", "1.compute", "0.d2h", "host.0"):
            if stream != op.stream:
                yield f"{op.id} on {stream}", made(replace(op, stream=stream))


def more_transient(plan: Plan) -> Sites:
    for _, op, made in _ops(plan):
        if kind(op) in "FBIW":
            more = op.transient_bytes + plan.devices[0].budget_bytes
            yield op.id, made(replace(op, transient_bytes=more))


# --- memory ---------------------------------------------------------------------------------


def _changed_buffers(plan: Plan, change: Callable[[Buffer, Buffer], Buffer | None]) -> Sites:
    """Each buffer changed, given the one after it in its space."""
    paths: list[Path] = [("host", "buffers")]
    paths += [("programs", number, "buffers") for number in range(len(plan.programs))]
    for path in paths:
        buffers = at(plan, path)
        for index, buffer in enumerate(buffers):
            rest = [b for b in (*buffers[index + 1 :], *buffers[:index]) if b.space == buffer.space]
            new = change(buffer, rest[0] if rest else buffer)
            if new is not None and new != buffer:
                yield buffer.name, partial(put, plan, (*path, index), new)


def shrink_buffer(plan: Plan) -> Sites:
    yield from _changed_buffers(plan, lambda b, _: replace(b, bytes=max(1, b.bytes // 2)))


def overlap_buffer(plan: Plan) -> Sites:
    yield from _changed_buffers(plan, lambda b, after: replace(b, offset=after.offset))


def touch_buffer(plan: Plan) -> Sites:
    """A buffer reaches as little into the next as buffers can."""
    yield from _changed_buffers(
        plan,
        lambda b, after: (
            replace(b, offset=after.offset - b.bytes + ALIGNMENT)
            if after.offset + ALIGNMENT >= b.bytes
            else None
        ),
    )


MUTATORS = (
    drop_edge,
    shift_edge,
    swap_ops,
    drop_op,
    duplicate_op,
    other_buffer,
    other_buffer_in_place,
    drop_role,
    other_stream,
    more_transient,
    shrink_buffer,
    overlap_buffer,
    touch_buffer,
    lower_budget,
    other_microbatches,
    other_layers,
    keep_graph,
    other_rounds,
    other_devices,
    other_base,
)


Mutants = Iterator[tuple[str, Plan]]  # what was changed, and the plan
Mutator = Callable[[Plan], Mutants]
Judge = Callable[[Plan], str | None]  # how a plan does harm
Excuse = Callable[[Plan, list[str]], bool]  # whether a plan that does none may break these rules


def sampled(mutators: Iterable[Mutator], plan: Plan, most: int) -> Iterator[Mutant]:
    """At most so many mutants of each mutator."""
    for mutator in mutators:
        every = list(mutator(plan))
        for what, mutant in random.Random(1).sample(every, min(most, len(every))):
            yield Mutant(f"{mutator.__name__}: {what}", mutant)


def harmless(_: Plan, found: list[str]) -> bool:
    """True if the rules that a plan breaks need not change any number."""
    return all(STRICT.search(line) for line in found)


def bites(
    some: Iterable[Mutant],
    harm: Judge,
    excused: Excuse = harmless,
    read: Callable[[Plan, list[str]], None] = lambda plan, found: None,
) -> Counter[str]:
    """How many mutants of each mutator do harm; the checker refuses all of these, and others only
    if that is excused. read: looks at all that the checker says."""
    harmful, missed, strict = Counter[str](), [], []
    for mutant in some:
        found, why = violations(mutant.plan), harm(mutant.plan)
        read(mutant.plan, found)
        harmful[mutant.name.partition(":")[0]] += bool(why)
        if why and not found:
            missed.append(f"{mutant.name}: {why}")
        elif found and not why and not excused(mutant.plan, found):
            strict.append(f"{mutant.name}: {found[0]}")
    print(f"kill rate: {harmful.total() - len(missed)}/{harmful.total()}")
    assert not missed
    assert not strict
    return +harmful
