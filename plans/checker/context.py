"""What the checker's rules look at, looked up once, and how a list of rules is asked.

A rule finds lines: one for each violation, beginning with the name of what breaks it. There are
rules about the whole plan (`Context`), about each program (`ProgramContext`), and about each kind
of its rounds (`KindContext`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

from plans.checker.capacity import Extent, kept
from plans.checker.lengths import Pair, known_kinds
from plans.checker.network import Nodes, on_nodes, program_nodes, spread
from plans.checker.order import Phase, phases
from plans.checker.shape import known
from plans.order import Stays
from plans.schema import Buffer, Op, Plan, Task
from plans.view import View, by_kind
from profiles.findings import Findings

C = TypeVar("C")


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A rule about a C. group: findings of one group are listed up to a number. needs: rules that
    must have found nothing, as what this one says would follow from that or make no sense."""

    name: str
    group: str
    check: Callable[[C], Iterable[str]]
    needs: tuple[str, ...] = ()


def ask(
    found: Findings,
    rules: Iterable[Rule[C]],
    context: C,
    where: str = "",
    broken: Collection[str] = (),
) -> set[str]:
    """Add what these rules find; `broken` and the names of those that are broken or were not asked.

    where: the end of each line."""
    wrong = set(broken)
    for rule in rules:
        asked = wrong.isdisjoint(rule.needs)
        if not asked or found.add(rule.group, rule.check(context), where):
            wrong.add(rule.name)
    return wrong


@dataclass(frozen=True)
class Context:
    """A plan. views: those of its programs whose shape is sound, by name."""

    given: Plan
    views: dict[str, View] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        """The plan without what is known to be wrong in the names of its tasks and kinds."""
        return known_kinds(known(self.given))

    @cached_property
    def nodes(self) -> int:
        return len({device.node for device in self.plan.devices})

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {task.name: task for task in self.plan.tasks}

    @cached_property
    def host(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.plan.host.buffers}

    @cached_property
    def stays(self) -> Stays:
        """When tasks are in the host store; what segments read and write must be sound."""
        return Stays(self.plan)

    @cached_property
    def kept(self) -> list[Extent]:
        return kept(self.plan)

    @cached_property
    def placed(self) -> dict[str, Nodes]:
        """The nodes of every program's devices."""
        return program_nodes(self.plan)


@dataclass(frozen=True)
class KindContext:
    """A program as if all its rounds were of one kind. own: its phases less those that it shares
    with kind 0."""

    view: View
    phases: list[Phase]
    own: list[Phase]
    where: str

    @property
    def ops(self) -> Iterator[Op]:
        return (op for phase in self.own for op in phase.ops)


@dataclass(frozen=True)
class ProgramContext:
    """A program. whole: its plan; after: pairs of its kinds of rounds of which one comes after the
    other."""

    whole: Context
    view: View
    where: str
    after: frozenset[Pair]

    @cached_property
    def kinds(self) -> list[KindContext]:
        enter, _, leave = phases(self.view.program)
        found = list[KindContext]()
        views = by_kind(self.view)
        for number, one in enumerate(views):
            its = [enter, phases(one.program)[1], leave]
            mark = f" [kind {number}]" if len(views) > 1 else ""
            found.append(KindContext(one, its, its[1:2] if number else its, mark + self.where))
        return found

    def on(self, nodes: Nodes) -> "ProgramContext":
        """The program with its devices on these nodes."""
        view = spread(self.view, nodes)
        if view is self.view:
            return self
        return replace(self, view=view, where=self.where + on_nodes(nodes))
