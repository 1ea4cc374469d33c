"""The checker: proves that a plan can run, fits, and trains the right numbers.

It trusts neither planner nor executor, and knows the format. docs/promises.md has the rules; each
is a function that finds lines, one for each violation, which begin with the name of what breaks it.
They are asked in stages: what one stage finds sound, the next looks up without care.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from plans.checker.alike import likeness
from plans.checker.capacity import (
    Extent,
    aligned,
    devices_fit,
    foreign_writes,
    kept,
    reserves_hold,
    slabs_hold,
    stores,
    values_fit,
)
from plans.checker.graphs import kept_graphs
from plans.checker.lengths import Pair, following, kinds_shape, lengths_shape, pairs, runs_shape
from plans.checker.nodes import (
    Nodes,
    ledger,
    nodes_kept,
    nodes_shape,
    on_nodes,
    pattern,
    program_nodes,
    spread,
    states_found,
)
from plans.checker.order import Phase, cycles, phases
from plans.checker.races import own_conflicts, races, shared_bytes
from plans.checker.shape import plan_shape, program_shape
from plans.checker.symbolic import sums_shape, versions
from plans.checker.tasks import all_steps, left_over, task_rules
from plans.checker.times import certificate, phase_times, segment_times
from plans.order import disk_shape, evaluations, runs_of, stays
from plans.schema import Buffer, Plan, Task
from plans.view import View, by_kind, view
from profiles.findings import Findings


def violations(plan: Plan) -> list[str]:
    """Every rule that `plan` breaks, one line each, beginning with the name of what breaks it; of
    one kind no more than the first ones, and how many others there are.

    Empty when the plan is sound. What later stages would say of a plan of broken shape is left
    out: it may show only once that is repaired.
    """
    return findings(plan).lines()


def findings(plan: Plan) -> Findings:
    """Every rule that `plan` breaks."""
    found = Findings()
    if ask(found, _NAMES, plan):
        whole, linked = Whole(plan), ask(found, _LINKS, plan)
        ask(found, _PLAN, whole)
        if linked and all([ask(found, _SHAPE, one, one.where) for one in whole.programs]):
            _programs(found, whole)
            ask(found, _TOGETHER, whole)
    return found


C = TypeVar("C")
Rules = Mapping[str, Callable[[C], Iterable[str]]]
"""Rules about a C by the name of their group: of each group findings are listed up to a number."""


def ask(found: Findings, rules: Rules[C], context: C, where: str = "") -> bool:
    """True if these rules find nothing; what they find is added, each line with `where` behind."""
    return not any([found.add(group, rule(context), where) for group, rule in rules.items()])


@dataclass(frozen=True)
class Whole:
    """A plan whose names are sound, with all that rules look up in it."""

    plan: Plan

    @cached_property
    def host(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.plan.host.buffers}

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {task.name: task for task in self.plan.tasks}

    @cached_property
    def stays(self) -> dict[str, int]:
        return stays(self.plan)

    @cached_property
    def runs(self) -> dict[str, int]:
        return runs_of(self.plan)

    @cached_property
    def kept(self) -> list[Extent]:
        return kept(self.plan)

    @cached_property
    def nodes(self) -> dict[str, Nodes]:
        """The nodes of every program's devices."""
        return program_nodes(self.plan)

    @cached_property
    def views(self) -> dict[str, View]:
        """The programs by name."""
        return {one.name: view(one, self.tasks, self.host) for one in self.plan.programs}

    @cached_property
    def programs(self) -> list["OneProgram"]:
        after, several = pairs(self.plan, self.views), len(self.views) > 1
        return [
            OneProgram(self, one, f" [program {name!r}]" if several else "", after[name])
            for name, one in self.views.items()
        ]


@dataclass(frozen=True)
class OneKind:
    """A program as if all its rounds were of one kind. own: its phases less those that it shares
    with kind 0."""

    view: View
    phases: list[Phase]
    own: list[Phase]
    where: str


@dataclass(frozen=True)
class OneProgram:
    """A program of a plan. where: how its lines end; after: pairs of its kinds of rounds of which
    one comes after the other."""

    whole: Whole
    view: View
    where: str
    after: frozenset[Pair]

    @cached_property
    def kinds(self) -> list[OneKind]:
        enter, _, leave = phases(self.view.program)
        found = list[OneKind]()
        views = by_kind(self.view)
        for number, one in enumerate(views):
            its = [enter, phases(one.program)[1], leave]
            mark = f" [kind {number}]" if len(views) > 1 else ""
            found.append(OneKind(one, its, its[1:2] if number else its, mark + self.where))
        return found


def _programs(found: Findings, whole: Whole) -> None:
    """Look into every program, on the nodes where it runs; those that are alike are proven once."""
    proven: set[tuple[bytes, Nodes, frozenset[Pair]]] = set()
    for one in whole.programs:
        ask(found, _STORE, one, one.where)
        nodes = whole.nodes.get(one.view.program.name, ())
        alike = likeness(one.view), pattern(nodes), one.after
        if alike not in proven:
            placed, where = spread(one.view, nodes), one.where + on_nodes(nodes)
            if _inside(found, OneProgram(whole, placed, where, one.after)):
                proven.add(alike)


def _inside(found: Findings, program: OneProgram) -> bool:
    """True if the inside of a program of sound shape is sound; what is wrong there is added."""
    fits = ask(found, _PROGRAM, program, program.where)
    fits &= all([ask(found, _KIND, kind, kind.where) for kind in program.kinds])
    return (
        all([ask(found, _ORDER, kind, kind.where) for kind in program.kinds])
        and all([ask(found, _VALUES, kind, kind.where) for kind in program.kinds])
        and all([ask(found, _SUMS, kind, kind.where) for kind in program.kinds])
        and ask(found, _FOLLOWING, program, program.where)
        and fits
    )


_NAMES: Rules[Plan] = {"names": plan_shape}
_LINKS: Rules[Plan] = {
    "runs": runs_shape,
    "kinds": kinds_shape,
    "nodes": nodes_shape,
    "disk": disk_shape,
}
_PLAN: Rules[Whole] = {
    "lengths": lambda w: lengths_shape(w.plan),
    "host": lambda w: aligned(w.plan.host.buffers),
    "stores": lambda w: stores(w.plan, w.stays),
    "tasks": lambda w: task_rules(w.plan),
    "left over": lambda w: left_over(w.plan),
    "steps": lambda w: all_steps(w.plan),
    "evaluations": lambda w: evaluations(w.plan),
    "kept nodes": lambda w: nodes_kept(w.plan, w.nodes),
}
_SHAPE: Rules[OneProgram] = {"ops": lambda p: program_shape(p.view, p.whole.host)}
_STORE: Rules[OneProgram] = {
    "foreign": lambda p: foreign_writes(
        p.view, p.whole.kept, p.whole.stays, p.whole.runs[p.view.program.name]
    )
}
_PROGRAM: Rules[OneProgram] = {"slabs": lambda p: slabs_hold(p.view)}
_KIND: Rules[OneKind] = {
    "values fit": lambda k: values_fit(k.view, k.own),
    "reserves": lambda k: reserves_hold(k.view),
    "graphs": lambda k: kept_graphs(k.view),
    "own": lambda k: own_conflicts(k.view, k.own),
}
_ORDER: Rules[OneKind] = {"order": lambda k: cycles(k.own)}
_VALUES: Rules[OneKind] = {
    "times": lambda k: phase_times(k.own),
    "races": lambda k: races(k.view, k.own),
    "values": lambda k: versions(k.view, k.phases),
}
_SUMS: Rules[OneKind] = {"sums": lambda k: sums_shape(k.view)}
_FOLLOWING: Rules[OneProgram] = {
    "following": lambda p: following(
        [k.view for k in p.kinds], [k.phases for k in p.kinds], p.after
    )
}
_TOGETHER: Rules[Whole] = {
    "devices": lambda w: devices_fit(w.plan),
    "states": lambda w: states_found(w.plan),
    "ledger": lambda w: ledger(w.plan),
    "segments": lambda w: shared_bytes(w.plan, w.views, w.runs),
    "segment times": lambda w: segment_times(w.plan),
    "certificate": lambda w: certificate(w.plan),
}
