"""A program for another task of the same shape: nothing but names changes."""

from msgspec import structs

from plans.schema import Op, Program


def renamed(program: Program, name: str) -> Program:
    """The program with its only task called so; buffers of a device have no task in their names."""
    (old,) = program.tasks

    def own(text: str) -> str:
        return name + text[len(old) :] if text.startswith(f"{old}.") else text

    def ops(of: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            structs.replace(
                op,
                id=own(op.id),
                after=tuple(map(own, op.after)),
                reads={role: own(buffer) for role, buffer in op.reads.items()},
                writes={role: own(buffer) for role, buffer in op.writes.items()},
            )
            for op in of
        )

    return structs.replace(
        program,
        name=name,
        tasks=(name,),
        buffers=tuple(structs.replace(b, name=own(b.name)) for b in program.buffers),
        enter=ops(program.enter),
        round=ops(program.round),
        leave=ops(program.leave),
        kinds=tuple(structs.replace(kind, ops=ops(kind.ops)) for kind in program.kinds),
    )
