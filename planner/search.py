"""The best way to train one task on one device: candidates, pruned by their loads, judged by the
simulator.

A candidate is a microbatch size, caps on a shard (which give the cuts) and numbers of slots;
what memory it leaves goes to resident shards. Fewer, larger shards recompute less; smaller ones
leave room to keep more of them resident. The simulator, not a formula, says which wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from planner.choice import Choice
from planner.costs import Caps, Links, TaskCosts, sizes
from planner.errors import Infeasible, NoPlanFound
from planner.graph import cut_points, layer_graph
from planner.partition import cut
from planner.problem import Effort
from planner.residency import choose
from planner.rounds import program
from plans.schema import Program
from profiles.schema import Task
from profiles.units import show_bytes

_SLOTS = ((2, 2), (3, 2), (2, 1), (1, 1))  # parameter slots, gradient slots
_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # a shard holds about 1/n of the parameters

_PARTS = (1, 2, 4, 8, 16)  # and needs at most 1/n of the whole task's transients


@dataclass(frozen=True)
class Found:
    """The best candidate, its program, how many were simulated, whether time ended the search."""

    choice: Choice
    program: Program
    candidates: int
    complete: bool


@dataclass(frozen=True, eq=False)
class Search:
    """One task, one kind of device."""

    task: Task
    links: Links
    device_bytes: int

    @cached_property
    def points(self) -> list[int]:
        return cut_points(layer_graph(self.task))

    def best(self, effort: Effort) -> Found:
        """The candidate with the shortest predicted task time.

        Infeasible names the smallest budget that would do; NoPlanFound when time is up first.
        """
        candidates = sorted(self.candidates(), key=self._bound)
        if not candidates:
            raise self._too_small()
        found: tuple[Choice, Program] | None = None
        tried = 0
        for candidate in candidates:
            if found and effort.left <= 0:
                break
            if found and self.task.steps * self._bound(candidate) >= self._us(found[1]):
                break
            if effort.left <= 0:
                raise NoPlanFound(
                    f"{self.task.name}: no plan within the time limit; raise --time-limit"
                )
            tried += 1
            for choice in self._variants(candidate, effort):
                timed = program(choice, self.links)
                if not found or self._us(timed) < self._us(found[1]):
                    found = choice, timed
        assert found
        return Found(*found, tried, effort.left > 0)

    def _us(self, timed: Program) -> int:
        rounds = (self.task.steps - 1) * timed.period_us + timed.round_us
        return timed.enter_us + rounds + timed.leave_us

    def _variants(self, candidate: Choice, effort: Effort) -> Iterator[Choice]:
        """With the residents that the integer program picks, and with all of them if they fit:
        then no slots are needed, which the program does not know."""
        yield self._with_residents(candidate, effort)
        everything = replace(candidate, resident=frozenset(candidate.streamed))
        if everything.device_bytes <= self.device_bytes:
            yield everything

    def _with_residents(self, candidate: Choice, effort: Effort) -> Choice:
        """The candidate with those shards resident that its spare memory allows and that pay."""
        free = self.device_bytes - candidate.device_bytes
        seconds = min(2.0, effort.left)
        chosen = choose(candidate, self.links, free, seconds=seconds, seed=effort.seed)
        choice = replace(candidate, resident=chosen)
        return choice if choice.device_bytes <= self.device_bytes else candidate

    def candidates(self) -> Iterator[Choice]:
        """Every streamed candidate that fits, without duplicates."""
        seen = set()
        for choice in self._all():
            key = (choice.costs.microbatch, choice.cuts, choice.slots, choice.grad_slots)
            if key not in seen and choice.device_bytes <= self.device_bytes:
                seen.add(key)
                yield choice

    def _all(self) -> Iterator[Choice]:
        for costs in sizes(self.task):
            for cuts in self._cuts(costs):
                for slots, grads in _SLOTS:
                    yield Choice(costs, cuts, frozenset(), slots, grads)

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

    def _bound(self, candidate: Choice) -> int:
        """No period of this candidate, whatever is resident, is shorter than this.

        Every streamed shard crosses each link at least once; residency takes load off a link at
        the rate of its best shard at most, with the whole device for it.
        """
        last = len(candidate.shards) - 1
        compute = candidate.costs.microbatches * sum(
            shard.backward_us + (shard.forward_us if index < last else 0)
            for index, shard in enumerate(candidate.shards)
        )
        shards = [candidate.shards[index] for index in candidate.streamed]
        inwards = [(self.links.prefetch_us(s.param_bytes), s) for s in shards]
        outwards = [(self.links.spill_us(s.grad_bytes), s) for s in shards if s.grad_bytes]
        bounds = [compute]
        for loads in (inwards, outwards):
            relief = [us * self.device_bytes // shard.resident_bytes for us, shard in loads]
            bounds.append(sum(us for us, _ in loads) - max(relief, default=0))
        return max(bounds)

    def _too_small(self) -> Infeasible:
        needs = min(self._all(), key=lambda choice: choice.device_bytes)
        largest = max(needs.shards, key=lambda s: s.param_bytes + s.backward_transient_bytes)
        name = self.task.layers[largest.first].name
        return Infeasible(
            f"{self.task.name}: needs {show_bytes(needs.device_bytes)} ({needs.device_bytes} "
            f"bytes) on its device but the device offers {show_bytes(self.device_bytes)} "
            f"({self.device_bytes} bytes); the largest shard begins at layer {largest.first} "
            f"({name}) with {show_bytes(largest.param_bytes)} of parameters and "
            f"{show_bytes(largest.backward_transient_bytes)} of transients; smallest "
            f"--device-memory that would do: {needs.device_bytes}",
            needs.device_bytes,
        )
