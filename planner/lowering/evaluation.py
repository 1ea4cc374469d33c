"""The program that evaluates a task: rounds without backwards, from the store as training left it.

    compute   F0 F0 | F1 F1 | F2 F2      some microbatches of a shard in turn, the last gives losses
    h2d       P0 P  P | P1    | P2       parameters and batches of the next turns

It is cut as the task is, and each pass is where it trains, or every device has the whole model and
its share of the microbatches. How many shards stay, and how many microbatches go together, is
whatever is shortest of what fits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from planner.errors import Infeasible
from planner.inputs import Layout
from planner.lowering.round import PipelineRound
from planner.lowering.strategy import PipelineStrategy
from planner.orders import Pass
from planner.shards import Links, Mode, Planned, TaskCosts
from plans.schema import Program
from plans.timing import duration_us
from profiles.schema import Evaluation
from profiles.units import enough_bytes, exact_bytes

_PROGRAMS = 4  # rounds with the shortest periods whose ends are looked at as well
_KEPT = 8  # about so many counts of shards that stay are tried


def evaluating(
    strategy: Planned,
    links: Links,
    device_bytes: int,
    *,
    devices: int | None = None,
    each: Sequence[TaskCosts] = (),
) -> Program:
    """The shortest program found that evaluates the task of a strategy, where it trains or, if
    devices are given, on so many that have all shards and share the microbatches evenly. each:
    their costs, where they differ. Infeasible when none fits."""
    wanted = strategy.costs.task.evaluation
    batches = wanted.batches if wanted else 1
    needs, found = list[int](), list[PipelineRound]()
    for one in _Forwards(strategy, links.alone, device_bytes, devices, tuple(each)).rounds():
        needs.append(one.device_bytes)
        if needs[-1] <= device_bytes:
            found.append(one)
    if not found:
        raise Infeasible(
            f"{strategy.costs.task.name}: its evaluation needs {exact_bytes(min(needs))} on its "
            f"device but the device offers {exact_bytes(device_bytes)}; "
            f"smallest --device-memory that would do: {enough_bytes(min(needs))}",
            min(needs),
        )
    shortest = nsmallest(_PROGRAMS, found, key=lambda one: one.period_us)
    return min((one.program() for one in shortest), key=lambda one: duration_us(one, batches))


@dataclass(frozen=True)
class _Forwards:
    """The ways to run the forwards of a strategy."""

    strategy: Planned
    links: Links
    device_bytes: int
    devices: int | None
    each: tuple[TaskCosts, ...]

    def rounds(self) -> Iterator[PipelineRound]:
        """For each order, rounds with ever fewer shards that stay. The least is no more than
        training takes."""
        count = self.share
        for group in dict.fromkeys((count, -(-count // 4), 1)):
            own = self._strategy(group)
            every = dict.fromkeys(self._modes(own, stay) for stay in range(_KEPT, -1, -1))
            for modes in every:
                yield PipelineRound(replace(own, modes=modes), self.links, self.device_bytes)

    @property
    def share(self) -> int:
        """The microbatches of a device that has all shards."""
        return self.strategy.costs.microbatches // (self.devices or 1)

    @property
    def _where(self) -> Mapping[tuple[int, int], int]:
        """The device of every microbatch of every shard."""
        if self.devices is None and isinstance(self.strategy, PipelineStrategy):
            return self.strategy.where
        shards, every = len(self.strategy.shards), range(self.strategy.costs.microbatches)
        return {(k, m): m // self.share for k in range(shards) for m in every}

    def _strategy(self, group: int) -> PipelineStrategy:
        """So many microbatches go through a shard one after the other; none stays."""
        own, where = self.strategy, self._where
        order: list[list[Pass]] = [[] for _ in range(max(where.values()) + 1)]
        for k, m in sorted(where, key=lambda one: (one[1] % self.share // group, *one)):
            order[where[k, m]].append(Pass("F", k, m))
        passes, layout = tuple(map(tuple, order)), Layout(((len(order),),))
        modes = (Mode(),) * len(own.shards)
        return PipelineStrategy(own.costs, own.cuts, modes, passes, layout, "forwards", self.each)

    def _modes(self, own: PipelineStrategy, stay: int) -> tuple[Mode, ...]:
        """So many eighths of each device's shards stay, the last ones, and those that devices of
        several nodes have, to which their homes send them."""
        stays = set[int]()
        for passes in own.order:
            mine = sorted({one.shard for one in passes}, reverse=True)
            stays.update(mine[: -(-len(mine) * stay // _KEPT)])
        for k, shard in enumerate(own.shards):
            if shard.grad_bytes and self.links.across((own.homes[k], *own.users[k])):
                stays.add(k)
        return tuple(Mode("resident" if k in stays else "streamed") for k in range(len(own.shards)))


def share_us(evaluation: Evaluation, train: Program, program: Program) -> int:
    """The time that evaluating adds to a step, with entering and leaving one more segment."""
    more = duration_us(program, evaluation.batches) + duration_us(train, 1) - train.period_us
    return -(-more // evaluation.every)
