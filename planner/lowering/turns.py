"""The turns of a round: passes in the order in which they begin, and behind a shard's last backward
what adds, notes and updates. One after the other they would be right.

    F0.0 F0.1 F1.0 B2.0 .. B1.1 | R1 N1 U1 | B0.0 B0.1 | R0 N0 U0
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from planner.lowering.strategy import PipelineStrategy
from planner.orders import Order, Pass
from planner.rounds import execution_order, once
from planner.shards import Links, forward_us, pass_us


class Turn(NamedTuple):
    """A pass, or R, N or U of a shard. number: of a microbatch, or of what is added."""

    device: int
    kind: Literal["F", "B", "I", "W", "R", "N", "U"]
    shard: int
    number: int


class _Begun(NamedTuple):
    """A pass, its device, and when it is made."""

    start: int
    end: int
    device: int
    one: Pass


def turns(strategy: PipelineStrategy, links: Links) -> list[Turn]:
    """All turns of a round. Gradients are added when those of all replicas have come: on the home
    passes that can be made until then go first."""
    begun = list(_begun(strategy, links))
    ends = {(one.shard, device): end for _, end, device, one in sorted(begun, key=lambda b: b.end)}
    ready, pending = gathered(strategy, links, ends), list[tuple[int, int]]()
    final = {one.shard: at for at, (_, _, _, one) in enumerate(begun)}
    done: dict[int, list[int]] = {}  # shards with gradients, by the last pass that reads them
    for k, shard in enumerate(strategy.shards):
        if shard.grad_bytes:
            done.setdefault(max(final[reader] for reader in strategy.readers(k)), []).append(k)
    found, late = list[Turn](), list[Turn]()

    def update(k: int) -> None:
        home = strategy.homes[k]
        found.extend(Turn(home, "R", k, n) for n in range(len(strategy.replicas[k]) - 1))
        if strategy.costs.noted:
            found.append(Turn(home, "N", k, 0))
        (late if strategy.costs.noted else found).append(Turn(home, "U", k, 0))

    for at, (start, _, device, one) in enumerate(begun):
        while pending and pending[0][0] <= start:
            update(heappop(pending)[1])
        found.append(Turn(device, one.kind, one.shard, one.microbatch))
        for k in done.get(at, ()):
            heappush(pending, (ready[k], k))
    while pending:
        update(heappop(pending)[1])
    return found + sorted(late, key=lambda turn: turn.shard)


def gathered(
    strategy: PipelineStrategy, links: Links, ends: Mapping[tuple[int, int], int]
) -> list[int]:
    """By shard, when its gradients of all replicas are on its home, and no pass reads it. ends: of
    its passes on each device that has it."""
    done = [
        max(ends[reader, d] for reader in strategy.readers(k) for d in strategy.replicas[reader])
        for k in range(len(strategy.shards))
    ]
    free = Counter[int]()  # when a device has sent what it had
    for (k, device), end in sorted(ends.items(), key=lambda item: item[1]):
        if device != strategy.homes[k]:
            free[device] = max(free[device], end)
            free[device] += links.send_us(strategy.shards[k].grad_bytes, device, strategy.homes[k])
            done[k] = max(done[k], free[device])
    return done


def _begun(strategy: PipelineStrategy, links: Links) -> Iterator[_Begun]:
    """All passes as they begin when nothing else is to be done, each behind what it needs."""
    passes = [(device, one) for device, own in enumerate(strategy.order) for one in own]
    us = [_us(strategy, one) for _, one in passes]
    queues = list[Sequence[int]](_queues(strategy.order))
    needs: list[list[int]] = [[] for _ in passes]
    at = {one: place for place, (_, one) in enumerate(passes)}
    for place, (device, one) in enumerate(passes):
        for other in _before(strategy, one, at):
            if passes[at[other]][0] == device:
                needs[place].append(at[other])
                continue
            size = strategy.shards[max(one.shard, other.shard)].in_bytes
            us.append(links.send_us(size, passes[at[other]][0], device))
            needs[place].append(len(needs))
            needs.append([at[other]])
            queues.append([len(needs) - 1])
    starts = once(us, queues, needs)
    rank = {place: n for n, place in enumerate(execution_order(queues, needs))}
    for place in sorted(range(len(passes)), key=lambda place: (starts[place], rank[place])):
        yield _Begun(starts[place], starts[place] + us[place], *passes[place])


def _us(strategy: PipelineStrategy, one: Pass) -> int:
    shard, mode = strategy.shards[one.shard], strategy.modes[one.shard]
    return forward_us(shard, mode) if one.kind == "F" else pass_us(shard, mode, one.kind)


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
