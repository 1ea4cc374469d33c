"""Which roles an op reads and writes: the table of docs/plan.md, part of rule 1 of the checker."""

from collections.abc import Iterator

from plans.checker.capacity import value_bytes
from plans.ops import COMPUTES, GRADIENTS, OpKind, OpName
from plans.schema import Op, Task

Roles = tuple[frozenset[str], frozenset[str]]

COPIED = {
    "s": ("param", "state", "grad"),
    "base": ("base",),
    "x": ("x",),
    "dx": ("dx",),
    "a": ("saved",),
    "norm": ("norm",),
    "tie": ("tie",),
}
_PARAM, _STATE = frozenset({"param"}), frozenset({"state"})
_GRAD, _NORM = frozenset({"grad"}), frozenset({"norm"})


def allowed_roles(name: OpName, task: Task, *, evaluates: bool = False) -> list[Roles]:
    """The pairs (roles read, roles written) that an op may have."""
    first, last = name.number == 0, name.number == len(task.shards) - 1
    source = "batch" if first else "x"
    packs = name.item == "s" and task.shards[name.number].keeps(name.index) == "offload"
    packed = frozenset({"saved"} if packs else ())
    lent, given, handed = _ties(name, task)
    lent |= {"base"}
    kind = name.kind
    if kind is OpKind.FORWARD and last and evaluates:  # the loss
        return [(frozenset({"param", source, "batch"}) | lent, frozenset())]
    if kind is OpKind.FORWARD:
        return [(frozenset({"param", source}) | lent, packed | {"y"})]
    needs = packed | lent | {"param", source} | ({"batch"} if last else frozenset[str]())
    goes = needs | given | ({"dy"} if not last else frozenset[str]())
    writes = handed | (frozenset[str]() if first else {"dx"})
    if kind is OpKind.INPUT_GRAD:
        return [(goes, writes)]
    if kind in GRADIENTS:
        both = kind is OpKind.BACKWARD
        reads, writes = (goes, writes | _GRAD) if both else (needs, _GRAD)
        return [(reads, writes), (reads | _GRAD, writes)]
    if kind is OpKind.UPDATE:
        noted = _NORM if task.norm_bytes else frozenset[str]()
        shard = task.shards[name.number]
        made = _STATE if shard.cast and shard.update == "host" else _PARAM | _STATE
        return [(made | noted | {"grad"}, made)]
    if kind is OpKind.NORM:
        return [(frozenset({"grad"}), _NORM), (_NORM | {"grad"}, _NORM)]
    if kind is OpKind.REDUCE:
        return [(frozenset({"grad", "other"}), frozenset({"grad"}))]
    if name.item == "batch":
        reads = frozenset({"batch"}) if kind is OpKind.SEND else frozenset[str]()
        return [(reads, frozenset({"batch"}))]
    copies = [(frozenset({role}), frozenset({role})) for role in COPIED[name.item]]
    if name.item != "s" or kind is OpKind.SEND or not task.shards[name.number].cast:
        return copies
    kept = [roles for roles in copies if roles[0] != _PARAM]  # the host has no parameters
    return [(_STATE, _PARAM), *kept] if kind is OpKind.PREFETCH else kept


def _ties(name: OpName, task: Task) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Roles of tied weights that cross shards: F and B of a shard read the owner's parameters,
    and what its B is given and hands on of their gradients."""
    cross, nothing = task.crossing, frozenset[str]()
    if cross is None or name.number not in (cross.owner, *cross.holders):
        return nothing, nothing, nothing
    tie = frozenset({"tie"})
    if name.number == cross.owner:
        return nothing, tie, nothing
    return frozenset({"tied"}), nothing if cross.above(name.number) is None else tie, tie


def wrong_roles(op: Op, name: OpName, task: Task, *, evaluates: bool = False) -> Iterator[str]:
    """Violations in the roles of an op of a shard that `task` has."""
    empty = _empty_roles(name, task)
    got = (frozenset(op.reads), frozenset(op.writes))
    every = allowed_roles(name, task, evaluates=evaluates)
    if name.kind in COMPUTES:  # what an op changes or uses is left out where it has no bytes
        allowed = [(reads - empty, writes - empty) for reads, writes in every]
    else:  # and nothing else is left of a copy
        allowed = [(reads, writes) for reads, writes in every if not writes & empty]
    if not allowed:
        (role, *_) = every[0][1]
        yield f"{op.id}: copies {role}, which has 0 bytes; a value of 0 bytes is never copied"
    elif got not in allowed:
        wanted = " or ".join(f"{sorted(reads)} -> {sorted(writes)}" for reads, writes in allowed)
        yield f"{op.id}: roles {sorted(op.reads)} -> {sorted(op.writes)}, expected {wanted}"
    if name.kind in COMPUTES:
        for role in sorted(set(op.reads) & set(op.writes)):
            if op.reads[role] != op.writes[role]:
                yield (
                    f"{op.id}: changes {role} in place but reads {op.reads[role]!r} "
                    f"and writes {op.writes[role]!r}"
                )


def _empty_roles(name: OpName, task: Task) -> frozenset[str]:
    """Roles whose value has no bytes (SGD has no state): no buffer can hold them."""
    sized = ("param", "base", "state", "grad", "saved")
    return frozenset(role for role in sized if not value_bytes(name, role, task))
