"""The best way to train one task on one device: candidates from the load program, judged by the
simulator.

A candidate is a microbatch size, caps on a shard (which give the cuts) and where the last shard
begins; the load program then picks a mode for every shard. Fewer, larger shards recompute less;
smaller ones leave room to keep more on the device. The simulator, not a formula, says which wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from planner.choice import Choice
from planner.costs import Caps, Links, TaskCosts, sizes
from planner.errors import Infeasible, NoPlanFound
from planner.graph import cut_points, layer_graph
from planner.modes import Mode, settled
from planner.partition import cut
from planner.phases import Terms, optimum
from planner.problem import Effort
from planner.rounds import Round
from plans.schema import Program
from profiles.schema import Task
from profiles.units import show_bytes

_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # a shard holds about 1/n of the parameters
_PARTS = (1, 2, 4, 8, 16)  # and needs at most 1/n of the whole task's transients
_GROUPS = 8
_SHRINKS = 3


@dataclass(frozen=True)
class Found:
    """The best candidate, its program, how many were simulated, whether time ended the search."""

    choice: Choice
    program: Program
    candidates: int
    complete: bool


@dataclass(eq=False)
class Search:
    """One task, one kind of device."""

    task: Task
    links: Links
    device_bytes: int
    tried: int = 0

    @cached_property
    def points(self) -> list[int]:
        return cut_points(layer_graph(self.task))

    def best(self, effort: Effort) -> Found:
        """The candidate with the shortest period.

        Infeasible names the smallest budget that would do; NoPlanFound when time is up first.
        """
        found: Round | None = None
        for made in self._rounds(effort):
            self.tried += 1
            if found is None or made.period_us < found.period_us:
                found = made
            if effort.left <= 0:
                break
        if found is None:
            if effort.left <= 0:
                raise NoPlanFound(
                    f"{self.task.name}: no plan within the time limit; raise --time-limit"
                )
            raise self._too_small()
        final = self._round(replace(found.choice, lumped=False))
        assert final
        return Found(final.choice, final.program(), self.tried, effort.left > 0)

    def _rounds(self, effort: Effort) -> Iterator[Round]:
        for costs in sizes(self.task):
            for cuts in dict.fromkeys(self._cuts(costs)):
                for choice in self._choices(costs, cuts, effort):
                    made = self._round(choice)
                    if made:
                        yield made

    def _choices(
        self, costs: TaskCosts, cuts: tuple[int, ...], effort: Effort
    ) -> Iterator[Choice]:
        shards = [costs.shard(a, b) for a, b in pairwise(cuts)]
        plain = self._plain(costs, cuts)
        yield plain
        yield replace(plain, ahead=0)
        room = self.device_bytes - costs.microbatches * costs.batch_bytes - costs.total("buffer")
        for _ in range(_SHRINKS):
            terms = Terms(
                shards,
                costs.microbatches,
                self.links.h2d_both.bytes_per_s,
                self.links.d2h_both.bytes_per_s,
                room,
                self.links,
                True,
            )
            chosen = optimum(
                terms, _GROUPS, seconds=max(0.1, effort.left), seed=effort.seed, gap=3e-3
            )
            if not chosen:
                return
            choice = Choice(costs, cuts, chosen.modes, 1, True)
            made = Round(choice, self.links, self.device_bytes - choice.reserve_bytes)
            over = made.slab.bytes + choice.reserve_bytes - self.device_bytes
            if over <= 0:
                yield choice
                return
            room -= over

    def _plain(self, costs: TaskCosts, cuts: tuple[int, ...]) -> Choice:
        """Everything streamed."""
        last = len(cuts) - 2
        modes = tuple(
            settled(costs.shard(a, b), Mode(), first=not k, last=k == last)
            for k, (a, b) in enumerate(pairwise(cuts))
        )
        return Choice(costs, cuts, modes, 1, True)

    def _round(self, choice: Choice) -> Round | None:
        """The choice laid out, or None when it does not fit."""
        room = self.device_bytes - choice.reserve_bytes
        if room < 0:
            return None
        made = Round(choice, self.links, room)
        return made if made.slab.bytes <= room else None

    def _cuts(self, costs: TaskCosts) -> Iterator[tuple[int, ...]]:
        """Cuts for a ladder of caps, from the whole task to its finest pieces.

        The ladder does not depend on the device, so that the smallest budget is the same from
        whatever budget it is asked for.
        """
        finest = tuple(self.points)
        yield finest
        pieces = list(pairwise(finest))
        largest = max(costs.total("param", *piece) for piece in pieces)
        heaviest = max(costs.backward_transient(*piece) for piece in pieces)
        shard_us = 3 * self.links.h2d.latency_us + 100
        total = costs.total("param")
        whole = costs.backward_transient(0, len(costs.layers))
        for pieces_wanted in _PIECES:
            cap = max(largest, -(-total // pieces_wanted))
            for transient in {max(heaviest, whole // part) for part in _PARTS}:
                found = cut(costs, self.points, Caps(cap, transient), shard_us)
                if found:
                    yield found
            if cap == largest:
                break

    def _too_small(self) -> Infeasible:
        needs, costs, made = min(
            (
                (choice.reserve_bytes + made.slab.bytes, choice.costs.microbatch, made)
                for costs in sizes(self.task)
                for cuts in dict.fromkeys(self._cuts(costs))
                for choice in (replace(self._plain(costs, cuts), ahead=0),)
                for made in (Round(choice, self.links, 0),)
            ),
            key=lambda found: found[:2],
        )
        largest = max(
            made.choice.shards, key=lambda s: s.param_bytes + s.backward_transient_bytes
        )
        name = self.task.layers[largest.first].name
        return Infeasible(
            f"{self.task.name}: needs {show_bytes(needs)} ({needs} "
            f"bytes) on its device but the device offers {show_bytes(self.device_bytes)} "
            f"({self.device_bytes} bytes); the largest shard begins at layer {largest.first} "
            f"({name}) with {show_bytes(largest.param_bytes)} of parameters and "
            f"{show_bytes(largest.backward_transient_bytes)} of transients; smallest "
            f"--device-memory that would do: {needs}",
            needs,
        )
