"""The best way to train one task on one device: candidates from the load program, judged by the
simulator.

A candidate is a microbatch size, caps on a shard (which give the cuts) and where the last shard
begins; the load program then picks a mode for every shard. Fewer, larger shards recompute less;
smaller ones leave room to keep more on the device. The simulator, not a formula, says which wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

from planner.choice import SCALARS_BYTES, Choice
from planner.costs import Caps, Links, TaskCosts, sizes
from planner.errors import Infeasible, NoPlanFound
from planner.graph import cut_points, layer_graph
from planner.improve import improve, score
from planner.modes import Mode, Place, settled
from planner.partition import cut, even
from planner.phases import Terms, Weights, optimum
from planner.problem import Effort
from planner.rounding import blocks, rounded
from planner.rounds import Round
from plans.metrics import duration_us
from plans.schema import Program
from profiles.schema import Task
from profiles.units import show_bytes

_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # a shard holds about 1/n of the parameters
_PARTS = (1, 2, 4, 8, 16)  # and needs at most 1/n of the whole task's transients
_SHARDS = (4, 8, 16, 32, 64)  # that guides are solved for
_ESTIMATED = (1.0, 2.0)  # layers in a shard, for an estimate
_GROUPS = 8  # of the load program
_ITEMS = 64  # of the load program, at most
_SMALL = 4  # times the effort for so few
_LESS = (2, 4)  # parts of the memory that a guide may do without
_FEW = 7  # points to cut at, up to which every way to cut is tried
_GUIDES = 6  # solutions of it that are made into plans
_SHRINKS = 4  # times that a solution is asked for with less memory
_STARTS = 8  # plans that are improved a little
_BETTER = 2  # plans that are improved further
_FINALS = 3  # plans that are looked at microbatch by microbatch
_OPS = 30_000  # simulated in all while plans are improved, half of them for the better ones
_STAYS = Mode("resident", "device")


@dataclass(frozen=True)
class Guide:
    """A solution of the load program: for so many items per shard and so much less memory."""

    costs: TaskCosts
    per_shard: float
    less: int
    offload: bool
    period_us: int
    weights: tuple[Weights, ...]


@dataclass(frozen=True)
class Found:
    """The best candidate, its program, how many were simulated, whether time ended the search."""

    choice: Choice
    program: Program
    candidates: int
    complete: bool


@dataclass(eq=False)
class Search:
    """One task, one kind of device. ops: how many are simulated at most to improve plans."""

    task: Task
    links: Links
    device_bytes: int
    ops: int = _OPS
    tried: int = 0

    @cached_property
    def points(self) -> list[int]:
        return cut_points(layer_graph(self.task))

    def best(self, effort: Effort) -> Found:
        """The candidate with the shortest period.

        Infeasible names the smallest budget that would do; NoPlanFound when time is up first.
        """
        starts: dict[tuple[int, tuple[int, ...]], Round] = {}  # the best for each way to cut
        for made in self._rounds(effort):
            if effort.left <= 0:
                break
            self.tried += 1
            key = made.choice.costs.microbatch, made.choice.cuts
            starts[key] = min(starts.get(key, made), made, key=score)
        if not starts:
            if effort.left <= 0:
                raise NoPlanFound(
                    f"{self.task.name}: no plan within the time limit; raise --time-limit"
                )
            raise self._too_small()
        short = self._improved(list(starts.values()), _STARTS, effort)
        ends = [*self._improved(short, _BETTER, effort), *short]
        exact = [
            self._round(replace(made.choice, lumped=False))
            for made in sorted(ends, key=score)[:_FINALS]
        ]
        found = [(made.choice, made.program()) for made in exact if made]
        choice, program = min(found, key=lambda item: duration_us(item[1], self.task.steps))
        return Found(choice, program, self.tried, effort.left > 0)

    def _improved(self, starts: Sequence[Round], count: int, effort: Effort) -> list[Round]:
        """The best `count` of them improved, with half of the ops that there are for it."""
        best = sorted(starts, key=score)[:count]
        # Few layers are soon searched through.
        ops = self.ops // 2 // count * (_SMALL if len(self.points) <= _FEW else 1)
        return [improve(start, self.points, self._round, ops, effort) for start in best]

    def estimate_us(self, costs: TaskCosts, effort: Effort) -> int | None:
        """What the load program thinks of rounds at this microbatch size; None: infeasible."""
        guides = (self._guide(costs, per_shard, 0, effort) for per_shard in _ESTIMATED)
        return min((guide.period_us for guide in guides if guide), default=None)

    def _rounds(self, effort: Effort) -> Iterator[Round]:
        guides: list[Guide] = []
        for costs in sizes(self.task):
            yield from self._simple(costs)
            guides += self._guided(costs, effort)
        guides.sort(key=lambda guide: guide.period_us)
        for guide in guides[:_GUIDES]:
            yield from self._realised(guide, effort)
        # What is good with less memory is a start as well; room that is left is filled later.
        for guide in guides[:1]:
            for part in _LESS:
                less = self._guide(guide.costs, guide.per_shard, self.device_bytes // part, effort)
                if less:
                    yield from self._realised(less, effort)

    def _simple(self, costs: TaskCosts) -> Iterator[Round]:
        """Everything streamed, and everything in one shard."""
        few = list(self._all_cuts()) if len(self.points) <= _FEW else []
        for cuts in dict.fromkeys([*self._cuts(costs), *few]):
            for choice in self._plain(costs, cuts):
                made = self._round(choice)
                if made:
                    yield made
                    break
        whole = (0, len(costs.layers))
        stay = (settled(costs.shard(*whole), _STAYS, Place(True, True, False)),)
        made = self._round(Choice(costs, whole, stay, 0, 1, True))
        if made:
            yield made

    def _guided(self, costs: TaskCosts, effort: Effort) -> Iterator["Guide"]:
        """Solutions of the load program for a ladder of sizes of a shard."""
        sizes_tried = {max(1.0, len(self._items) / shards) for shards in _SHARDS}
        packs = self.links.d2d and any(cost.offload_bytes for cost in costs.costs)
        for per_shard in sorted(sizes_tried):
            for offload in (False, True) if packs else (False,):
                guide = self._guide(costs, per_shard, 0, effort, offload)
                if guide:
                    yield guide

    def _guide(
        self,
        costs: TaskCosts,
        per_shard: float,
        less: int,
        effort: Effort,
        offload: bool = False,
    ) -> "Guide | None":
        """The program with `less` bytes than there are."""
        items = self._items
        cuts = even(costs, items, per_shard)
        transient = max(costs.backward_transient(*shard) for shard in pairwise(cuts))
        # What a shard takes beyond its largest layer.
        transient -= max(costs.backward_transient(*item) for item in items)
        fixed = costs.microbatches * costs.batch_bytes + costs.total("buffer") + SCALARS_BYTES
        terms = Terms(
            [costs.shard(*item) for item in items],
            costs.microbatches,
            self.links.h2d_both.bytes_per_s,
            self.links.d2h_both.bytes_per_s,
            self.device_bytes - fixed - max(0, transient) - less,
            self.links,
            per_shard,
            offload,
        )
        found = optimum(terms, _GROUPS, seconds=max(0.1, effort.left), seed=effort.seed)
        return (
            Guide(costs, per_shard, less, offload, found.period_us, found.weights)
            if found and found.weights
            else None
        )

    def _realised(self, guide: "Guide", effort: Effort) -> Iterator[Round]:
        """Whole shards of a guide; where they take too much, the program is solved for less."""
        costs = guide.costs
        for _ in range(_SHRINKS):
            overs = []
            for choice in self._rounded(guide):
                made = Round(choice, self.links, self.device_bytes - choice.reserve_bytes)
                over = made.slab.bytes + choice.reserve_bytes - self.device_bytes
                if over <= 0:
                    yield made
                else:
                    overs.append(over)
            if not overs:
                return
            less = guide.less + min(overs)
            # A little more, since whole shards never fit exactly; or no more, where that is tight.
            tighter = less + self.device_bytes // 64
            smaller = self._guide(
                costs, guide.per_shard, tighter, effort, guide.offload
            ) or self._guide(costs, guide.per_shard, less, effort, guide.offload)
            if smaller is None:
                return
            guide = smaller

    def _rounded(self, guide: "Guide") -> Iterator[Choice]:
        costs, items, weights = guide.costs, self._items, guide.weights
        every = [even(costs, items, guide.per_shard)]
        if len(self.points) <= _FEW:
            every += self._all_cuts()
        for cuts in dict.fromkeys(every):
            for block in sorted(blocks(costs, cuts, items, weights)):
                yield rounded(costs, cuts, items, weights, block)

    def _all_cuts(self) -> Iterator[tuple[int, ...]]:
        first, *inner, last = self.points
        for count in range(len(inner) + 1):
            for some in combinations(inner, count):
                yield first, *some, last

    @cached_property
    def _items(self) -> list[tuple[int, int]]:
        """The finest pieces, neighbours taken together where there are many."""
        pieces = list(pairwise(self.points))
        each = -(-len(pieces) // _ITEMS)
        return [
            (pieces[i][0], pieces[min(i + each, len(pieces)) - 1][1])
            for i in range(0, len(pieces), each)
        ]

    def _plain(self, costs: TaskCosts, cuts: tuple[int, ...]) -> Iterator[Choice]:
        """Everything streamed: with room for overlap or without, boundaries kept or spilled."""
        last = len(cuts) - 2
        for ahead, spilled in ((1, False), (1, True), (0, False), (0, True)):
            modes = tuple(
                settled(costs.shard(a, b), Mode(spilled=spilled), Place(not k, k == last, False))
                for k, (a, b) in enumerate(pairwise(cuts))
            )
            yield Choice(costs, cuts, modes, last, ahead, True)

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
        needs, _, made = min(
            (
                (choice.reserve_bytes + made.slab.bytes, choice.costs.microbatch, made)
                for costs in sizes(self.task)
                for cuts in dict.fromkeys(self._cuts(costs))
                for choice in self._plain(costs, cuts)
                for made in (Round(choice, self.links, 0),)
            ),
            key=lambda found: found[:2],
        )
        largest = max(made.choice.shards, key=lambda s: s.param_bytes + s.backward_transient_bytes)
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
