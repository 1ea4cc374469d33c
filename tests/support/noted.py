"""Handmade plans of tasks whose updates wait for the norms of all gradients. All are sound."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from support.handmade import solo
from support.parts import Part, copy, offloaded_part, op, pipeline_part
from support.streaming import streamed_part

from plans.schema import Op, Plan

NORM = 24


def _note(part: Part, shard: int, norm: str, *after: str, first: bool = False) -> Op:
    """The shard's N behind its last backward, in `norm`."""
    name = f"{part.task.name}.s{shard}"
    backward = next(o for o in part.round if o.id == f"{name}.B{part.task.microbatches - 1}")
    reads = {"grad": backward.writes["grad"]} | ({} if first else {"norm": norm})
    return op(f"{name}.N0", backward.stream, reads, {"norm": norm}, *after)


def _waiting(
    part: Part, ends: Sequence[Op], norms: Mapping[str, tuple[str, tuple[str, ...]]]
) -> Part:
    """The part with its updates behind `ends`; what the updates of each stream read, and what
    else they wait for."""
    updates = []
    for item in part.round:
        if ".U" in item.id:
            norm, after = norms[item.stream]
            reads = {**item.reads, "norm": norm}
            updates.append(replace(item, reads=reads, after=(*item.after, *after)))
    rest = [item for item in part.round if ".U" not in item.id]
    task = replace(part.task, norm_bytes=NORM)
    return part._replace(task=task, round=[*rest, *ends, *updates])


def host() -> Plan:
    """Streamed shards; the norms go to the host, which updates."""
    part = streamed_part("a")
    here, there = "a.norm", "a.norms"
    behind = {
        "a.s2.B1": _note(part, 2, here, first=True),
        "a.s1.B1": _note(part, 1, here),
        "a.s0.B1": _note(part, 0, here),
    }
    spill = copy("a.norm.S0", "0.d2h", "norm", here, there, "a.s0.N0")
    part = part._replace(
        round=[one for item in part.round for one in (item, behind.get(item.id)) if one],
        buffers={**part.buffers, here: ("0", NORM)},
        host={**part.host, there: NORM},
    )
    return solo(_waiting(part, [spill], {"host.0": (there, ("a.norm.S0",))}))


def device() -> Plan:
    """Resident shards, updated on the device where their norms are."""
    part = offloaded_part("a")
    ends = [_note(part, 1, "a.norm", first=True), _note(part, 0, "a.norm")]
    part = part._replace(buffers={**part.buffers, "a.norm": ("0", NORM)})
    return solo(_waiting(part, ends, {"0.compute": ("a.norm", ())}))


def devices() -> Plan:
    """Shards on two devices: the norms are sent on, completed and sent back."""
    part = pipeline_part("a")
    here, there = "a.norm0", "a.norm1"
    ends = [
        _note(part, 1, there, first=True),
        copy("a.norm.X0", "1.p2p", "norm", there, here, "a.s1.N0"),
        _note(part, 0, here, "a.norm.X0"),
        copy("a.norm.X1", "0.p2p", "norm", here, there, "a.s0.N0"),
    ]
    part = part._replace(buffers={**part.buffers, here: ("0", NORM), there: ("1", NORM)})
    back = ("a.norm.X1",)
    return solo(_waiting(part, ends, {"0.compute": (here, ()), "1.compute": (there, back)}), 2)


NOTED = {f"norms-{made.__name__}": made for made in (host, device, devices)}
