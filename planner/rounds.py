"""From a choice to its program: the ops of one round, linked by their hazards, ordered and timed.

    compute   F0 F1 .. FK-2 | BK-1 .. B1 B0     all microbatches of a shard in turn (shard-major),
                                                those of the block at the top one by one
    h2d       P P P ...        P  P  P          what is not on the device when it is needed
    d2h                        S  S  S          gradients and whatever else leaves
    host                          U  U  U       updates; the next round's P waits (@-1)

Where updates wait for the norms of all gradients, every shard's last B is followed by its N, and
the last N by all updates:

    compute   .. B1 N1 B0 N0 | U U (on the device)
    d2h          S  S     S norms
    host                          U  U  U       in the order of the next forward

Resident parameters and state are loaded by `enter`, updated on the device, and written back by
`leave`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.choice import Choice
from planner.costs import Links
from planner.dispatch import Draft, Orders, dispatched, in_order, without
from planner.hazards import dependencies, named
from planner.lifetimes import Slab, lay_out
from planner.store import Scratch
from planner.timeline import Entry, Settled, once, periodic, settled
from planner.walk import EARLY, PARAM, PARAM_OUT, STATE, STATE_OUT, Walk, copy, load
from plans.schema import Memory, Op, Program

_REPAIRS = 3  # times that loads made too early are put back


@dataclass(frozen=True, eq=False)
class Round:
    """A choice laid out in a slab of at most `room` bytes, or of the least it needs."""

    choice: Choice
    links: Links
    room: int

    @cached_property
    def slab(self) -> Slab:
        return lay_out(self.choice, self.links, self.room)

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops in the order of their meaning."""
        return list(Walk(self.choice, self.links).entries())

    @cached_property
    def draft(self) -> Draft:
        """The round by positions. Updates on the host are wanted in the order of the next forward
        or, where gradients must make room, in that; copies out as the choice says."""
        entries = self.entries
        position = {item.op.id: at for at, item in enumerate(entries)}
        task = self.choice.costs.task.name
        rank = list(range(len(entries)))
        scratch = Scratch.of(self.choice)
        for place, k in enumerate(scratch.order):
            rank[position[f"{task}.s{k}.U0"]] = place
        loads = (position.get(f"{task}.s{k}.P{PARAM}") for k in range(len(self.choice.shards)))
        norms = position.get(f"{task}.norm.S0")
        if norms is not None:
            rank[norms] = 0  # few bytes that all updates on the host wait for
        if self.choice.urgent:
            for at, item in enumerate(entries):
                if item.op.stream.endswith("d2h") and at != norms:
                    rank[at] = self._again(item.op.id)
        return Draft(
            us=[item.us for item in entries],
            streams=[item.op.stream for item in entries],
            needs=dependencies(entries, {**self.slab.before, **scratch.slab.before}),
            rank=rank,
            movable=frozenset(at for at in loads if at is not None),
            chains=(tuple(at for at, e in enumerate(entries) if e.op.stream == "0.compute"),),
        )

    def _again(self, name: str) -> int:
        """The step for which a copy out is needed again."""
        _, item, op = name.split(".")
        k, choice = int(item[1:]), self.choice
        if item[0] != "s":
            return choice.backward_step(k)
        if op == f"S{STATE_OUT}":
            return choice.backward_step(k) + choice.steps
        return choice.first_step(k) + choice.steps

    @cached_property
    def best(self) -> tuple[Settled, Orders]:
        """The shortest steady state of a few orders, and that order."""
        first, second = dispatched(self.draft)
        tried = [first, *([second] if second.queues != first.queues else []), in_order(self.draft)]
        found = [item for item in map(self._settled, tried) if item]
        best = min(found, key=_period)
        for _ in range(_REPAIRS):
            late = best[1].moved.intersection(best[0].cycle)
            other = self._settled(without(self.draft, best[1], late)) if late else None
            if other is None or _period(other) >= _period(best):
                return best
            best = other
        return best

    def _settled(self, orders: Orders) -> tuple[Settled, Orders] | None:
        """None for an order that cannot repeat, taken from rounds that had not settled."""
        try:
            return settled(self.draft.us, list(orders.queues.values()), orders.needs), orders
        except ValueError:
            return None

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def blame(self) -> dict[int, int]:
        """For every shard µs that compute waits for one of its copies or updates, or that its own
        ops wait; for those with an op on the cycle that makes the period one more."""
        state, orders = self.best
        names = [item.op.id.split(".")[1] for item in self.entries]
        shared = {"batch", "norm"}  # of no shard
        found = {int(names[at][1:]): 1 for at in state.cycle if names[at] not in shared}
        us, starts, period = self.draft.us, state.starts, state.period_us
        queue = orders.queues["0.compute"]
        before = starts[queue[-1]] + us[queue[-1]] - period
        for at in queue:
            wait, before = starts[at] - before, starts[at] + us[at]
            if wait > 0 and orders.needs[at]:
                cause = max(
                    (starts[dep] + us[dep] - back * period, dep) for dep, back in orders.needs[at]
                )[1]
                for name in {names[at], names[cause]} - shared:
                    found[int(name[1:])] = found.get(int(name[1:]), 0) + wait
        return found

    def program(self) -> Program:
        """The timed program that trains the task this way."""
        orders = self.best[1]
        entries = self.entries
        order = [at for stream in sorted(orders.queues) for at in orders.queues[stream]]
        phase = periodic(named(entries, orders.needs, order))
        task = self.choice.costs.task.name
        enter = once(list(self.entering({entries[at].op.id for at in orders.moved})))
        leave = once(list(self.leaving()))
        return Program(
            name=task,
            memory=(Memory(self.slab.bytes, self.choice.reserve_bytes, self.slab.live_bytes),),
            tasks=(task,),
            enter_us=enter.span_us,
            period_us=phase.period_us,
            round_us=phase.span_us,
            leave_us=leave.span_us,
            buffers=self.slab.buffers,
            enter=enter.ops,
            round=phase.ops,
            leave=leave.ops,
        )

    def entering(self, moved: Collection[str]) -> Iterator[Entry]:
        """Loads what stays on the device, and for the first round what rounds load for the next
        one."""
        yield from _state_copies(self.choice, self.links, "P")
        for item in self.entries:
            if item.op.id in moved:
                yield _first(item.op, self)

    def leaving(self) -> Iterator[Entry]:
        """Writes back what stays on the device."""
        return _state_copies(self.choice, self.links, "S")


def _period(found: tuple[Settled, Orders]) -> int:
    return found[0].period_us


def _first(op: Op, made: Round) -> Entry:
    """The load of `op`, done before the first round."""
    item = op.id.rpartition(".")[0]
    cost = made.choice.shards[int(item.split(".")[1][1:])]
    name = op.id.replace(f".P{PARAM}", f".P{EARLY}")
    return load(made.links.alone, cost, name, item, op.writes["param"])


def _state_copies(choice: Choice, links: Links, kind: str) -> Iterator[Entry]:
    """Parameters and optimizer state that stay on the device, in enter or leave."""
    task = choice.costs.task.name
    serials = {"param": PARAM, "state": STATE}
    if kind == "S":
        serials = {"param": PARAM_OUT, "state": STATE_OUT}
    for k, mode in enumerate(choice.modes):
        cost, item = choice.shards[k], f"{task}.s{k}"
        for role, stays in (
            ("param", mode.params == "resident"),
            ("state", mode.update == "device"),
        ):
            size, here = cost.bytes_of(role), f"0/s{k}.{role}"
            name = f"{item}.{kind}{serials[role]}"
            if not (size and stays):
                continue
            if (kind, role) == ("P", "param"):
                yield load(links.alone, cost, name, item, here)
            elif not (role == "param" and cost.cast):
                yield copy(links.alone, kind, name, role, size, f"{item}.{role}", here)
