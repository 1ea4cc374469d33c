"""The bytes of slabs that a plan's ops touch."""

from plans.checker import value_bytes
from plans.schema import Plan, parse_id


def touched(plan: Plan) -> tuple[int, ...]:
    """The end of the last byte of every device's slab that an op reads or writes."""
    ends = [0] * len(plan.devices)
    for segment in plan.segments:
        program = plan.program(segment.program)
        homes = {buffer.name: buffer for buffer in program.buffers}
        for op in program.ops:
            name = parse_id(op.id)
            for role, value in (*op.reads.items(), *op.writes.items()):
                if home := homes.get(value):
                    end = home.offset + value_bytes(name, role, plan.task(name.task))
                    number = segment.devices[int(home.space)]
                    ends[number] = max(ends[number], end)
    return tuple(ends)
