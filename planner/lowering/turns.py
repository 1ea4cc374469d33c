"""The turns of a round: passes in the order in which they begin, and behind a shard's last backward
what adds, notes and updates. One after the other they would be right.

    F0.0 F0.1 F1.0 B2.0 .. B1.1 | R1 N1 U1 | B0.0 B0.1 | R0 N0 U0
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from planner.lowering.strategy import PipelineStrategy
from planner.lowering.trees import sums
from planner.orders import Order, Pass
from planner.rounds import Turn, execution_order, once
from planner.shards import Links, Strategy, pass_us


class _Begun(NamedTuple):
    """A pass, its device, and when it is made."""

    start: int
    end: int
    device: int
    one: Pass


def computes(strategy: PipelineStrategy | Strategy, turn: Turn) -> bool:
    """True for a turn of its device's compute stream; updates on the host are none."""
    return turn.kind != "U" or strategy.modes[turn.shard].update != "host"


def turn_us(strategy: PipelineStrategy | Strategy, turn: Turn, links: Links) -> int:
    """µs that a turn computes, packing left out."""
    k, kind, m = turn.shard, turn.kind, turn.number
    shard = strategy.shards[k]
    match kind:
        case "R":
            return links.add_us(shard.grad_bytes)
        case "N":
            return shard.norm_us
        case "U":
            return shard.update_device_us if computes(strategy, turn) else 0
        case "block":
            up = range(k, strategy.last)
            ways = [("F", j) for j in up] + [("B", j) for j in (*up, strategy.last)]
        case _:
            return turn.each * pass_us(strategy.cost(k, m), strategy.mode(k, m), kind)
    return turn.each * sum(pass_us(strategy.cost(j, m), strategy.mode(j, m), p) for p, j in ways)


def device_turns(s: Strategy) -> list[Turn]:
    """The turns of one device: each shard with all microbatches up and down, those of a block one
    by one.

    step   0   1  ...   | K-1   K  ...  2K-2
           F0  F1 ...     B    B   ...  B0

    Of a block, all microbatches but the last are one step:

           F0 F1 | (F2 F3 B4 B3 B2) x (M-1) | F2 F3 B4 B3 B2 | B1 B0
    """
    found, noted, last, final = list[Turn](), s.costs.noted, s.last, s.parts - 1

    def add(kind: Literal["F", "B", "N", "U"], k: int, m: int, step: int) -> None:
        each = s.each if kind in "FB" and not s.in_block(k) else 1
        found.append(Turn(0, kind, k, m, each, step))

    def down(k: int, m: int, step: int) -> None:
        add("B", k, m, step)
        if m == final and s.shards[k].grad_bytes:
            add("N" if noted else "U", k, 0, step)

    for k in range(s.bottom):
        for m in range(s.parts):
            add("F", k, m, k)
    if s.turn and s.lumped:
        found.append(Turn(0, "block", s.block, final, s.costs.microbatches - 1, s.block))
    for m in range(final if s.lumped else 0, s.parts) if s.turn else ():
        ends = m == final
        for k in range(s.block, last):
            add("F", k, m, k + 1 if ends else s.block)
        for k in range(last, s.block - 1, -1):
            down(k, m, 2 * last - k + 1 if ends else s.block)
    for k in range(s.bottom - s.turn, -1, -1):
        for m in range(s.parts):
            down(k, m, 2 * last - k + s.turn)
    if noted:
        step = 2 * last + s.turn
        stays = step + 1
        for kind in ("host", "device", "device-streamed"):
            for k, (shard, mode) in enumerate(zip(s.shards, s.modes, strict=True)):
                if shard.grad_bytes and mode.update == kind:
                    step = stays if kind == "device" else step + (kind != "host")
                    add("U", k, 0, step)
    return found


def turns(strategy: PipelineStrategy, links: Links) -> list[Turn]:
    """All turns of a round. Gradients are added when those of another replica have come, and then
    the shard is updated: where its parameters stay, when no pass of its home waits for that."""
    begun = list(_begun(strategy, links))
    ends = {(one.shard, device): end for _, end, device, one in sorted(begun, key=lambda b: b.end)}
    closing = _Closing(strategy, links, ends)
    final = {one.shard: at for at, (_, _, _, one) in enumerate(begun)}
    done: dict[int, list[int]] = {}  # shards with gradients, by the last pass that reads them
    for k, shard in enumerate(strategy.shards):
        if shard.grad_bytes and not strategy.evaluates:
            done.setdefault(max(final[reader] for reader in strategy.readers(k)), []).append(k)
    found = list[Turn]()
    for at, (start, end, device, one) in enumerate(begun):
        found += closing.before(device, start)
        found.append(Turn(device, one.kind, one.shard, one.microbatch))
        closing.free[device] = end
        for k in done.get(at, ()):
            closing.add(k)
    found += closing.rest()
    if not strategy.costs.noted:
        return found
    late = [turn for turn in found if turn.kind == "U"]  # behind all norms
    return [t for t in found if t.kind != "U"] + sorted(late, key=lambda turn: turn.shard)


class _Closing:
    """R, N and U of shards whose last backwards are made; lives only while turns are. free: when
    each device has done the turns so far."""

    def __init__(
        self, strategy: PipelineStrategy, links: Links, ends: Mapping[tuple[int, int], int]
    ) -> None:
        self.strategy, self.links = strategy, links
        self.ready = gathered(strategy, links, ends)
        self.free = Counter[int]()
        self.patient: list[list[_Due]] = [[] for _ in strategy.order]  # by device
        self.hasty: list[_Due] = []  # of parameters that come and go: what they take is free sooner

    def add(self, k: int) -> None:
        """Those of one more shard."""
        own, home, (*ready, whole) = self.strategy, self.strategy.homes[k], self.ready[k]
        each = zip(own.added[k], ready, strict=True)
        made = [_Due(us, k, n, Turn(to, "R", k, n)) for n, ((to, _), us) in enumerate(each)]
        kinds: tuple[Literal["N", "U"], ...] = ("N", "U") if own.costs.noted else ("U",)
        made += [_Due(whole, k, len(made), Turn(home, kind, k, 0)) for kind in kinds]
        # Gradients of replicas are added at once: until then all of them hold theirs.
        stays = own.modes[k].params == "resident" and not own.added[k]
        for due in made:
            heappush(self.patient[due.turn.device] if stays else self.hasty, due)

    def before(self, device: int, start: int) -> Iterator[Turn]:
        """Those that go before a pass that starts then."""
        while self.hasty and self.hasty[0].ready <= start:
            yield heappop(self.hasty).turn
        line = self.patient[device]
        while line and (end := self._end(line[0])) <= start:
            self.free[device] = end
            yield from self._behind(heappop(line))

    def _behind(self, due: "_Due") -> Iterator[Turn]:
        """A turn behind those on another device that make what it adds."""
        if due.turn.kind == "R":
            device = self.strategy.added[due.shard][due.number].other
            line = self.patient[device]
            first = sorted(d for d in line if d.shard == due.shard and d.number < due.number)
            self.patient[device] = [one for one in line if one not in first]
            heapify(self.patient[device])
            for one in first:
                self.free[device] = self._end(one)
                yield from self._behind(one)
        yield due.turn

    def _end(self, due: "_Due") -> int:
        """When a turn ends that its device does next."""
        begin = max(due.ready, self.free[due.turn.device])
        return begin + turn_us(self.strategy, due.turn, self.links)

    def rest(self) -> Iterator[Turn]:
        """All others, as they become ready."""
        for due in sorted(due for line in (self.hasty, *self.patient) for due in line):
            yield due.turn


class _Due(NamedTuple):
    """A turn that may begin when it is ready, behind those of its shard with lower numbers."""

    ready: int
    shard: int
    number: int
    turn: Turn


def gathered(
    strategy: PipelineStrategy, links: Links, ends: Mapping[tuple[int, int], int]
) -> list[list[int]]:
    """By shard, when each addition of its gradients on the way to its home can begin, and when all
    are done and no pass reads the shard. ends: of its passes on each device that has it."""
    own = [{device: ends[k, device] for device in on} for k, on in enumerate(strategy.replicas)]
    sizes = [shard.grad_bytes for shard in strategy.shards]
    found = sums(strategy.added, own, sizes, links)
    for k, (size, added) in enumerate(zip(sizes, found, strict=True)):
        whole = added[-1] + links.add_us(size) if added else 0
        added.append(max(whole, *(us for r in strategy.readers(k) for us in own[r].values())))
    return found


def _begun(strategy: PipelineStrategy, links: Links) -> Iterator[_Begun]:
    """All passes as they begin when nothing else is to be done, each behind what it needs."""
    passes = [(device, one) for device, own in enumerate(strategy.order) for one in own]
    us = [
        pass_us(strategy.cost(one.shard, one.microbatch), strategy.modes[one.shard], one.kind)
        for _, one in passes
    ]
    queues = list[Sequence[int]](_queues(strategy.order))
    needs: list[list[int]] = [[] for _ in passes]
    at = {one: place for place, (_, one) in enumerate(passes)}
    for place, (device, one) in enumerate(passes):
        for other in _before(strategy, one, at):
            if passes[at[other]][0] == device:
                needs[place].append(at[other])
                continue
            size = strategy.cost(max(one.shard, other.shard), one.microbatch).in_bytes
            us.append(links.send_us(size, passes[at[other]][0], device))
            needs[place].append(len(needs))
            needs.append([at[other]])
            queues.append([len(needs) - 1])
    starts = once(us, queues, needs)
    rank = {place: n for n, place in enumerate(execution_order(queues, needs))}
    for place in sorted(range(len(passes)), key=lambda place: (starts[place], rank[place])):
        yield _Begun(starts[place], starts[place] + us[place], *passes[place])


def _queues(order: Order) -> Iterator[range]:
    """The positions of each device's passes, one device after the other."""
    end = 0
    for passes in order:
        if passes:
            yield range(end, end + len(passes))
        end += len(passes)


def _before(strategy: PipelineStrategy, one: Pass, at: dict[Pass, int]) -> Iterator[Pass]:
    """The passes that this one waits for."""
    kind, k, m = one
    if kind == "W":
        yield Pass("I", k, m)
    elif kind == "F" or k == strategy.last:
        yield from [Pass("F", k - 1, m)] if k else []
    else:
        behind = Pass("I", k + 1, m)
        yield behind if behind in at else Pass("B", k + 1, m)
        yield Pass("F", k, m)
