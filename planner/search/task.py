"""The best way to train one task on one device: candidates from the load program, judged by the
simulator.

A candidate is a microbatch size and cuts from a ladder; the load program picks a mode for every
shard and where the block begins. Fewer, larger shards recompute less; smaller ones leave room to
keep more on the device. The simulator, not a formula, says which wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from planner.bounds import Solution, Terms, again, block_at, guides, rounded
from planner.errors import Infeasible, NoPlanFound
from planner.inputs import Effort, Limits
from planner.lowering import DeviceRound, fitted, least_bytes
from planner.search.local_search import exchanged, improve, score
from planner.search.packed import Packed
from planner.search.round_bound import round_bound_bytes, round_bound_us
from planner.search.shares import short_device, short_host
from planner.search.starts import Starts
from planner.shards import PLENTY, Links, Planned, Strategy
from plans.prediction import Alternative
from plans.schema import Program
from plans.timing import duration_us
from profiles.schema import Task

_NO_SCORE = 1 << 62, 0
_LESS = 24  # parts of the memory, one less of which a guide has each time
_PLACES = 48  # where the block may begin, of many items
_LITTLE, _FURTHER, _AGAIN = 12, 8, 2  # parts of the ops that improve one start, each time


@dataclass(frozen=True)
class Candidate:
    """A way to train one task: its strategy, and the programs that carry it out.

    programs: one for each kind of devices, None where the strategy does not fit; each may be on
    several devices of its kind. candidates: how many were simulated to find it. complete: no time
    limit ended the search. evaluates: where the task is evaluated, the programs that do so on these
    kinds, on no more devices. alternatives: what else was tried on several devices, of so many
    that were looked_at. packed: its steps, where its samples have lengths."""

    strategy: Planned
    programs: tuple[Program | None, ...]
    candidates: int = 1
    complete: bool = True
    evaluates: tuple[Program | None, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    looked_at: int = 0
    packed: Packed | None = None

    @property
    def program(self) -> Program:
        """The one for the first kind of devices that it fits."""
        return next(program for program in self.programs if program)


class Wide(NamedTuple):
    """A task that may do better on so many devices of a kind at once, named by its place."""

    task: str
    kind: int
    devices: int


@dataclass(eq=False)
class Search:
    """The search for one task on one kind of device. taken_bytes: what the device has beside
    `device_bytes`, for budgets in messages. apart: tied layers may lie in several shards.
    host_bytes: what the task may have on the host, with all that is kept there. cast: the host
    makes parameters from masters."""

    task: Task
    links: Links
    device_bytes: int
    taken_bytes: int = 0
    apart: bool = False
    host_bytes: int = PLENTY
    cast: bool = False
    tried: int = 0
    made: dict[object, DeviceRound | None] = field(default_factory=dict, init=False)
    plain: bool = False  # whether plain training was found to be good enough

    @cached_property
    def starts(self) -> Starts:
        """The strategies and load programs that it begins with."""
        return Starts(
            self.task, self.links, self.device_bytes, self.apart, self.host_bytes, self.cast
        )

    def best(self, effort: Effort) -> Candidate:
        """The candidate with the shortest period.

        Infeasible names the smallest budget that would do; NoPlanFound when time is up first.
        """
        if effort.left <= 0:
            raise out_of_time(self.task)
        ends = self._plain_training(effort.limits)
        self.plain = bool(ends)
        if not ends:
            ends = self._ends(self._by_cuts(effort), effort)
            ends += self._exchanged(min(ends, key=score), effort)
        found = [(made.strategy, made.program()) for made in self._finals(ends, effort.limits)]
        strategy, program = min(found, key=lambda item: duration_us(item[1], self.task.steps))
        return Candidate(strategy, (program,), self.tried, effort.left > 0)

    def _finals(self, ends: Sequence[DeviceRound], limits: Limits) -> list[DeviceRound]:
        """The best ends, simulated microbatch by microbatch; more of them while those that were
        turn out longer than the next one."""
        found = list[DeviceRound]()
        for end in sorted({one.strategy.key: one for one in ends}.values(), key=score):
            least = min((one.period_us for one in found), default=PLENTY)
            if len(found) >= limits.search_finals and end.period_us >= least:
                break
            if made := self._round(replace(end.strategy, lumped=False)):
                found.append(made)
        return found

    def _by_cuts(self, effort: Effort) -> list[DeviceRound]:
        """The best plan for each way to cut, of those that can be among the best."""
        ops, limits = effort.limits.search_ops, effort.limits
        plain = [one for costs in self.starts.sizes for one in self.starts.simple(costs, limits)]
        if not any(self._round(strategy) for strategy in plain):
            # The smallest budget that is named has to be the smallest that is planned.
            raise self._too_small()
        waiting: list[tuple[int, int, Strategy | DeviceRound]] = []
        for strategy in plain:
            waiting.append((round_bound_us(strategy, self.links), len(waiting), strategy))
        known = set[tuple[object, ...]]()
        for made in self._guided(effort) if effort.left > 0 else ():
            if made.strategy.key in known:
                continue
            known.add(made.strategy.key)
            waiting.append((round_bound_us(made.strategy, self.links), len(waiting), made))
            ops -= len(made.entries)
            if effort.left <= 0 or ops <= 0:
                break
        self.tried += len(waiting)
        best: dict[tuple[int, tuple[int, ...], int, bool], DeviceRound] = {}
        for least, _, one in sorted(waiting):  # what can be the shortest first
            packs = (one if isinstance(one, Strategy) else one.strategy).packs
            alike = [score(made) for made in best.values() if made.strategy.packs == packs]
            scores = [*alike, *[_NO_SCORE] * limits.search_starts]
            if least > nsmallest(limits.search_starts, scores)[-1][0]:
                continue
            if best and effort.left <= 0:
                break
            laid = self._round(one) if isinstance(one, Strategy) else one
            if laid:
                own = laid.strategy
                key = own.costs.microbatch, own.cuts, own.block, own.packs
                best[key] = min(best.get(key, laid), laid, key=score)
        return list(best.values())

    def _plain_training(self, limits: Limits) -> list[DeviceRound]:
        """Where everything fits and computes nearly all the time, nothing needs to move."""
        if self.apart:
            return []
        plain = [self._round(self.starts.whole(costs)) for costs in self.starts.sizes]
        found = [made for made in plain if made]
        least = min(costs.least_us for costs in self.starts.sizes)
        near = least + least // limits.plain_near
        return found if len(found) == len(plain) and min(map(score, found))[0] <= near else []

    def _ends(self, starts: Sequence[DeviceRound], effort: Effort) -> list[DeviceRound]:
        """The best starts improved a little, the best of those further, the best of all again: a
        start says little about what it leads to. Those that pack have rounds of many ops, in which
        few changes can be tried: they come on top, so that no others are lost to them."""
        limits, ends = effort.limits, list[DeviceRound]()
        few = len(min(starts, key=score).entries) < limits.search_least_ops  # soon timed
        for packs, count in ((False, limits.search_starts), (True, limits.search_packing)):
            own = sorted((one for one in starts if one.strategy.packs == packs), key=score)
            own = own[: count * (1 + few)]
            ends += self._improved(own, _LITTLE, limits.search_far, effort)
        for count, share in ((limits.search_further, _FURTHER), (1, _AGAIN)):
            best = sorted(ends, key=score)[:count]
            ends += self._improved(best, share, limits.search_near, effort)
        return ends

    def _improved(
        self, starts: Sequence[DeviceRound], share: int, far: int, effort: Effort
    ) -> list[DeviceRound]:
        """The starts improved, each with a share of the ops that there are for it; not those that
        are by more than 1/far too long to catch up with the best."""
        least = min((one.period_us for one in starts), default=0)
        ops = effort.limits.search_ops // share
        near = (start for start in starts if start.period_us <= least + least // far)
        return [improve(start, self.starts.points, self._round, ops, effort) for start in near]

    def _exchanged(self, best: DeviceRound, effort: Effort) -> list[DeviceRound]:
        """The best once a shard stays for which several others make room, improved a little."""
        limits, ops = effort.limits, effort.limits.search_ops // 10
        found = exchanged(best, self._round, limits.search_exchanges) if effort.left > 0 else ()
        start = min(found, key=score, default=None)
        if start is None or start.period_us > best.period_us + best.period_us // limits.search_far:
            return []
        return [improve(start, self.starts.points, self._round, ops, effort)]

    def _guided(self, effort: Effort) -> Iterator[DeviceRound]:
        """Plans made of the load program's solutions."""
        starts, limits = self.starts, effort.limits
        roots = [root for costs in starts.sizes for root in starts.programs(costs, limits)]
        if any(terms.host_bytes is not None for terms in roots):
            # What is best with more on the host may fit there, since its bytes change hands.
            yield from self._guided_by([replace(terms, host_bytes=None) for terms in roots], effort)
        yield from self._guided_by(roots, effort)

    def _guided_by(self, roots: Sequence[Terms], effort: Effort) -> Iterator[DeviceRound]:
        """Those that pack nothing, then those that may: their rounds have more ops, and the best
        programs of one kind say little about the other."""
        for packs in (False, True):
            own = [terms for terms in roots if terms.offload == packs]
            if own:
                yield from self._guided_alike(own, effort)

    def _guided_alike(self, roots: Sequence[Terms], effort: Effort) -> Iterator[DeviceRound]:
        limits = effort.limits
        programs = len(roots) + limits.search_divisions
        found = guides(roots, limits.search_groups, programs, effort)
        for number, guide in enumerate(islice(found, limits.search_guides)):
            yield from self._roomier(guide, effort)
            if guide.terms.microbatches == 1:
                # The block is the last shard. What is good with less memory is a start as well:
                # room that is left is filled later.
                for part in limits.search_less if not number else ():
                    if other := self._with_less(guide, part, effort):
                        yield from self._realised(other, effort)
            elif number < limits.search_blocks - guide.terms.offload:
                for way in (1, -1):
                    yield from self._along(guide, way, effort)

    def _roomier(self, guide: Solution, effort: Effort) -> Iterator[DeviceRound]:
        """Rounds of a guide, then of the same with ever less memory, as long as they get shorter:
        in bytes that nothing takes all round, copies come and go when they are wanted."""
        least, now = PLENTY, guide
        while True:
            made = list(self._realised(now, effort))
            yield from made
            before, least = least, min((one.period_us for one in made), default=PLENTY)
            less = self._with_less(now, _LESS, effort) if least < before else None
            if not less:
                return
            now = less

    def _with_less(self, guide: Solution, part: int, effort: Effort) -> Solution | None:
        """The guide for an n-th of the device's memory less; None where nothing fits."""
        room = guide.terms.room_bytes - self.device_bytes // part
        less = replace(guide.terms, room_bytes=room)
        return again(guide, less, effort.limits.search_groups, effort)

    def _along(self, guide: Solution, way: int, effort: Effort) -> Iterator[DeviceRound]:
        """Rounds with the block of a guide begun ever further up (1) or down (-1), until two places
        are no better: the program's best place need not be the best once rounds are laid out."""
        items = len(guide.terms.items)
        first, least, worse = guide.part.low, PLENTY, 0
        while worse < 2 and 0 <= (first := first + way * -(-items // _PLACES)) < items:
            other = again(block_at(guide, first), guide.terms, effort.limits.search_groups, effort)
            made = list(self._realised(other, effort)) if other else []
            shortest = min((one.period_us for one in made), default=PLENTY)
            worse = 0 if shortest < least else worse + 1
            least = min(least, shortest)
            yield from made

    def _realised(self, guide: Solution, effort: Effort) -> Iterator[DeviceRound]:
        """Whole shards of a guide; where they take too much, the program is solved for less."""
        groups = effort.limits.search_groups
        for _ in range(effort.limits.search_shrinks):
            overs = []
            for evened in (False, True):
                strategy = rounded(guide, groups, effort, even=evened)
                fits = self._made(strategy)
                missing = 0 if fits else least_bytes(strategy) - self.host_bytes
                made = fits or DeviceRound(strategy, self.links, self.device_bytes)
                over = made.device_bytes - self.device_bytes
                if over <= 0 and fits:
                    yield made
                    yield from self._deeper(made.strategy)
                else:
                    overs.append((max(0, over), missing))
            if not overs or (guide.terms.host_bytes is None and all(m for _, m in overs)):
                return
            # A little more, since whole shards never fit exactly; or no more, where that is tight.
            shrunk = (_shrunk(guide.terms, *min(overs, key=sum), part) for part in (64, 0))
            tighter = (again(guide, terms, groups, effort) for terms in shrunk)
            smaller = next(filter(None, tighter), None)
            if smaller is None:
                return
            guide = smaller

    def _deeper(self, strategy: Strategy) -> Iterator[DeviceRound]:
        """The strategy with as many buffers for what it packs as fit: copies then wait less for
        each other."""
        depth = strategy.costs.microbatches if strategy.packs else 0
        while depth > strategy.depth:
            if made := self._round(replace(strategy, depth=depth)):
                yield made
                return
            depth //= 2

    def _round(self, strategy: Strategy) -> DeviceRound | None:
        """The strategy laid out, or None when it does not fit."""
        if round_bound_bytes(strategy) > self.device_bytes:
            return None
        made = self._made(strategy)
        return made if made and made.device_bytes <= self.device_bytes else None

    def _made(self, strategy: Strategy) -> DeviceRound | None:
        """The strategy's round, made once; None where the host has too little for it."""
        key = strategy.key, strategy.lumped
        if key not in self.made:
            fits = fitted(strategy, self.host_bytes)
            self.made[key] = DeviceRound(fits, self.links, self.device_bytes) if fits else None
        return self.made[key]

    def _too_small(self) -> Infeasible:
        """Why not even the least fits: how much more memory the host needs, if that would do; else
        the device, with as much on the host as there is, or as that takes."""
        plain = [
            (strategy, DeviceRound(strategy, self.links).device_bytes)
            for costs in self.starts.sizes
            for cuts in self.starts.ladder(costs)
            for strategy in self.starts.streamed(costs, cuts)
        ]
        needs = [(size, least_bytes(strategy), strategy) for strategy, size in plain]
        fit = [host for size, host, _ in needs if size <= self.device_bytes]
        if fit:
            return short_host(self.task, min(fit), self.host_bytes)
        able = [need for need in needs if need[1] <= self.host_bytes] or needs
        size, host, strategy = min(able, key=lambda n: (n[0], n[2].costs.microbatch, n[1]))
        beside = host if host > self.host_bytes else None
        offered = self.device_bytes + self.taken_bytes
        whole = (DeviceRound(self.starts.whole(c), self.links) for c in self.starts.sizes)
        stays = min(made.device_bytes for made in whole) + self.taken_bytes
        return short_device(strategy, size + self.taken_bytes, stays, offered, beside)


def out_of_time(task: Task) -> NoPlanFound:
    """Time was up before a search for the task began."""
    return NoPlanFound(f"{task.name}: no plan within the time limit; raise --time-limit")


def lay_out_on(strategy: Strategy, links: Links, device_bytes: int) -> DeviceRound | None:
    """The strategy's round on a device with so many bytes, None when it does not fit."""
    if strategy.reserve_bytes > device_bytes:
        return None
    made = DeviceRound(strategy, links, device_bytes)
    return made if made.device_bytes <= device_bytes else None


def _shrunk(terms: Terms, over: int, missing: int, part: int) -> Terms:
    """The terms with less memory on the device or the host, and an n-th of it less than that."""

    def less(size: int, by: int) -> int:
        return size - by - (size // part if part and by else 0)

    host = None if terms.host_bytes is None else less(terms.host_bytes, missing)
    return replace(terms, room_bytes=less(terms.room_bytes, over), host_bytes=host)
