"""The host store of every task of a plan, as the planner has it while it is made."""

from msgspec import structs

from planner.lowering import Store
from planner.shards.values import extent, pack
from plans.schema import Buffer, Plan
from plans.view import stored


def stores_of(plan: Plan) -> dict[str, Store]:
    """Each from byte 0 on, of plans where no two tasks share bytes."""
    own: dict[str, list[Buffer]] = {task.name: [] for task in plan.tasks}
    for buffer in plan.host.buffers:
        own[buffer.name.partition(".")[0]].append(buffer)
    found = {}
    for task in plan.tasks:
        names = stored(task)
        kept = pack(((b.name, b.bytes) for b in own[task.name] if b.name in names), "host")
        scratch: list[Buffer] = []
        end, by = 0, extent(kept)
        for buffer in sorted(own[task.name], key=lambda buffer: buffer.offset):
            if buffer.name not in names:  # behind the others without gaps
                by -= max(0, buffer.offset - end)
                end = max(end, buffer.offset + buffer.bytes)
                scratch.append(structs.replace(buffer, offset=buffer.offset + by))
        found[task.name] = Store(kept, tuple(scratch))
    return found
