"""A program for other tasks of the same shapes: nothing but names changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from plans.schema import Op, Program, Role


def renamed(program: Program, names: Mapping[str, str]) -> Program:
    """The program with its tasks called by other names."""
    change = _Names(names)
    return structs.replace(
        program,
        name="+".join(names.get(task, task) for task in program.tasks),
        tasks=tuple(names.get(task, task) for task in program.tasks),
        buffers=tuple(
            structs.replace(buffer, name=change.buffer(buffer.name)) for buffer in program.buffers
        ),
        enter=tuple(map(change.op, program.enter)),
        round=tuple(map(change.op, program.round)),
        leave=tuple(map(change.op, program.leave)),
    )


@dataclass(frozen=True)
class _Names:
    """New names of tasks; buffers of a device have no task in their names."""

    names: Mapping[str, str]

    def op(self, op: Op) -> Op:
        return structs.replace(
            op,
            id=self._of(op.id),
            after=tuple(map(self._of, op.after)),
            reads=self._roles(op.reads),
            writes=self._roles(op.writes),
        )

    def buffer(self, name: str) -> str:
        return name if "/" in name else self._of(name)

    def _roles(self, roles: Mapping[Role, str]) -> dict[Role, str]:
        return {role: self.buffer(name) for role, name in roles.items()}

    def _of(self, text: str) -> str:
        task, dot, rest = text.partition(".")
        return f"{self.names.get(task, task)}.{rest}" if dot else text
