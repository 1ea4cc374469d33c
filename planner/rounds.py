"""From a choice to its program: the ops of one round, linked by their hazards and timed.

    compute   F0 F1 .. FK-2 | BK-1 .. B1 B0     all microbatches of a shard in turn (shard-major)
    h2d       P P P ...        P  P  P          streamed parameters into slots, and the batch
    d2h                        S  S  S          gradients of streamed shards
    host                          U  U  U       their updates; the next round's P waits (@-1)

A resident shard is loaded by `enter`, updated on the device, and written back by `leave`.
"""

from collections.abc import Iterator

from planner.choice import Choice
from planner.costs import Links, ShardCost
from planner.hazards import dependencies, link
from planner.slots import Sweep, Use, assign
from planner.timeline import Entry, Phase, once, periodic
from plans.schema import Memory, Op, Program


def program(choice: Choice, links: Links) -> Program:
    """The timed program that trains the task this way."""
    task = choice.costs.task.name
    enter = once(list(_state_copies(choice, links, "P")))
    leave = once(list(_state_copies(choice, links, "S")))
    phase = steady(list(_Round(choice, links).entries()))
    return Program(
        name=task,
        memory=(Memory(choice.slab_bytes, choice.reserve_bytes),),
        tasks=(task,),
        enter_us=enter.span_us,
        period_us=phase.period_us,
        round_us=phase.span_us,
        leave_us=leave.span_us,
        buffers=choice.buffers,
        enter=enter.ops,
        round=phase.ops,
        leave=leave.ops,
    )


def entry(us: int, name: str, stream: str, **fields: object) -> Entry:
    """An op without times, and how long it takes."""
    return Entry(Op(name, stream, 0, 0, **fields), us)  # type: ignore[arg-type]


def copy(links: Links, kind: str, name: str, role: str, size: int, host: str, device: str) -> Entry:
    """A prefetch (kind P) or spill (kind S) of a round, at the rate both directions share."""
    if kind == "P":
        us = links.prefetch_us(size)
        return entry(us, name, "0.h2d", reads={role: host}, writes={role: device})
    us = links.spill_us(size)
    return entry(us, name, "0.d2h", reads={role: device}, writes={role: host})


def _state_copies(choice: Choice, links: Links, kind: str) -> Iterator[Entry]:
    """Parameters (serial 0) and optimizer state (1) of resident shards, in enter or leave."""
    task = choice.costs.task.name
    alone = Links(links.h2d, links.d2h, links.h2d, links.d2h)
    for index in sorted(choice.resident):
        shard = choice.shards[index]
        for serial, role in enumerate(("param", "state")):
            size = shard.bytes_of(role)
            host, device = f"{task}.s{index}.{role}", f"0/s{index}.{role}"
            if size:
                name = f"{task}.s{index}.{kind}{serial}"
                yield copy(alone, kind, name, role, size, host, device)


def steady(entries: list[Entry]) -> Phase:
    """The round in its steady state, with its prefetches in order of need or of readiness,
    whichever is faster.

    In order of need the first prefetch, which waits for the last update of the round before,
    holds up others behind it that could have gone ahead.
    """
    by_need = periodic(link(entries))
    ends = {op.id: op.end_us for op in by_need.ops}
    ready = {
        item.op.id: max(
            (ends[entries[at].op.id] - back * by_need.period_us for at, back in needs), default=0
        )
        for item, needs in zip(entries, dependencies(entries), strict=True)
    }
    prefetches = [item for item in entries if item.op.stream == "0.h2d"]
    others = [item for item in entries if item.op.stream != "0.h2d"]
    reordered = [*sorted(prefetches, key=lambda item: ready[item.op.id]), *others]
    by_readiness = periodic(link(entries, reordered))
    return min(by_need, by_readiness, key=lambda phase: (phase.period_us, phase.span_us))


class _Round:
    """Walks the round in the order of its meaning; lives only while the ops are made."""

    def __init__(self, choice: Choice, links: Links) -> None:
        self.choice, self.links = choice, links
        self.task = choice.costs.task.name
        self.shards = choice.shards
        self.last = len(self.shards) - 1
        self.microbatches = range(choice.costs.microbatches)
        forward = [s for s in choice.streamed if s < self.last]
        uses = assign(forward, choice.streamed[::-1], choice.param_slots)
        self.use = {(use.shard, use.sweep): use for use in uses}

    def entries(self) -> Iterator[Entry]:
        for m in self.microbatches:
            yield self._batch(m)
        for shard in range(self.last):
            yield from self._prefetch(shard, "F")
            for m in self.microbatches:
                yield self._forward(shard, m)
        turn = 0
        for shard in range(self.last, -1, -1):
            grad = (
                f"0/grad{turn % self.choice.spill_slots}" if self.shards[shard].grad_bytes else ""
            )
            turn += bool(grad)
            yield from self._prefetch(shard, "B")
            for m in self.microbatches:
                yield self._backward(shard, m, grad)
            if grad:
                yield from self._update(shard, grad)

    def _name(self, shard: int, kind: str, index: int) -> str:
        return f"{self.task}.s{shard}.{kind}{index}"

    def _batch(self, m: int) -> Entry:
        us = self.links.prefetch_us(self.choice.costs.batch_bytes)
        return entry(us, f"{self.task}.batch.P{m}", "0.h2d", writes={"batch": f"0/batch.{m}"})

    def _prefetch(self, shard: int, sweep: Sweep) -> Iterator[Entry]:
        """P0 is the shard's first prefetch of the round, P1 a second one for its backward."""
        use = self.use.get((shard, sweep))
        if use and use.loads:
            serial = int(sweep == "B" and (shard, "F") in self.use)
            host, size = f"{self.task}.s{shard}.param", self.shards[shard].param_bytes
            name = self._name(shard, "P", serial)
            yield copy(self.links, "P", name, "param", size, host, _slot(use))

    def _reads(self, shard: int, m: int, sweep: Sweep) -> dict[str, str]:
        """Parameters and input of a forward or backward."""
        reads = {}
        if (shard, sweep) in self.use:
            reads["param"] = _slot(self.use[shard, sweep])
        elif self.shards[shard].param_bytes:
            reads["param"] = f"0/s{shard}.param"
        if shard == 0:
            reads["batch"] = f"0/batch.{m}"
        else:
            reads["x"] = f"0/x{shard}.{m}"
        return reads

    def _forward(self, shard: int, m: int) -> Entry:
        cost = self.shards[shard]
        return entry(
            cost.forward_us,
            self._name(shard, "F", m),
            "0.compute",
            reads=self._reads(shard, m, "F"),
            writes={"y": f"0/x{shard + 1}.{m}"},
            transient_bytes=cost.forward_transient_bytes,
        )

    def _backward(self, shard: int, m: int, grad: str) -> Entry:
        cost, reads = self.shards[shard], self._reads(shard, m, "B")
        if shard == self.last:
            reads["batch"] = f"0/batch.{m}"
        else:
            reads["dy"] = f"0/x{shard + 1}.{m}"
        if grad and m:
            reads["grad"] = grad
        writes = {"grad": grad} if grad else {}
        if shard:
            writes["dx"] = f"0/x{shard}.{m}"
        return entry(
            cost.backward_us,
            self._name(shard, "B", m),
            "0.compute",
            reads=reads,
            writes=writes,
            transient_bytes=cost.backward_transient_bytes,
        )

    def _update(self, shard: int, grad: str) -> Iterator[Entry]:
        cost, name = self.shards[shard], self._name(shard, "U", 0)
        if shard in self.choice.resident:
            held = {role: f"0/s{shard}.{role}" for role in ("param", "state")}
            yield update(cost, name, "0.compute", held, grad)
            return
        stored = f"{self.task}.s{shard}.grad"
        spill = self._name(shard, "S", 0)
        yield copy(self.links, "S", spill, "grad", cost.grad_bytes, stored, grad)
        held = {role: f"{self.task}.s{shard}.{role}" for role in ("param", "state")}
        yield update(cost, name, "host.0", held, stored)


def _slot(use: Use) -> str:
    return f"0/slot{use.slot}"


def update(cost: ShardCost, name: str, stream: str, at: dict[str, str], grad: str) -> Entry:
    """The optimizer step of a shard whose parameters and state are in the buffers `at`."""
    held = {role: buffer for role, buffer in at.items() if cost.bytes_of(role)}
    host = stream.startswith("host")
    return entry(
        cost.update_host_us if host else cost.update_device_us,
        name,
        stream,
        reads={**held, "grad": grad},
        writes=held,
        transient_bytes=0 if host else cost.update_transient_bytes,
    )
