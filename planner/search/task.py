"""The best way to train one task on one device: candidates from the load program, judged by the
simulator.

A candidate is a microbatch size and cuts from a ladder; the load program picks a mode for every
shard and where the block begins. Fewer, larger shards recompute less; smaller ones leave room to
keep more on the device. The simulator, not a formula, says which wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from statistics import fmean
from typing import NamedTuple

from planner.errors import Infeasible, NoPlanFound
from planner.inputs import Effort, Limits
from planner.lowering import DeviceRound, least_bytes
from planner.search.guided import Guided, Rounds
from planner.search.local_search import exchanged, improve, score
from planner.search.packed import Packed
from planner.search.round_bound import round_bound_us
from planner.search.shares import short_device, short_host
from planner.search.starts import Starts
from planner.shards import PLENTY, Links, Planned, Strategy
from plans.prediction import Alternative
from plans.schema import Program
from plans.timing import duration_us
from profiles.schema import Task

_NO_SCORE = 1 << 62, 0
_POINTS = 80  # to cut at, from which on a search has all its ops
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
    makes parameters from masters. bound_us: no period is below. done: what was found is so near
    that, or trains so plainly, that no more is searched."""

    task: Task
    links: Links
    device_bytes: int
    taken_bytes: int = 0
    apart: bool = False
    host_bytes: int = PLENTY
    cast: bool = False
    tried: int = 0
    bound_us: int = 0
    done: bool = False

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of its strategies."""
        return Rounds(self.links, self.device_bytes, self.host_bytes)

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
        self.done = bool(ends)
        if not self.done:
            ends = self._by_cuts(effort)
        if not self.done:
            ends = self._ends(ends, effort)
        if not self.done:
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
            if made := self.rounds.fitting(replace(end.strategy, lumped=False)):
                found.append(made)
        return found

    def _by_cuts(self, effort: Effort) -> list[DeviceRound]:
        """The best plan for each way to cut, of those that can be among the best."""
        ops, limits = self._ops(effort.limits), effort.limits
        plain = [one for costs in self.starts.sizes for one in self.starts.simple(costs, limits)]
        if not any(self.rounds.fitting(strategy) for strategy in plain):
            # The smallest budget that is named has to be the smallest that is planned.
            raise self._too_small()
        waiting: list[tuple[int, int, Strategy | DeviceRound]] = []
        for strategy in plain:
            waiting.append((round_bound_us(strategy, self.links), len(waiting), strategy))
        known = set[tuple[object, ...]]()
        for made in Guided(self.starts, self.rounds, effort).every() if effort.left > 0 else ():
            if made.strategy.key in known:
                continue
            known.add(made.strategy.key)
            waiting.append((round_bound_us(made.strategy, self.links), len(waiting), made))
            ops -= len(made.entries)
            self.done = made.period_us <= self._enough_us(limits)
            if effort.left <= 0 or ops <= 0 or self.done:
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
            laid = self.rounds.fitting(one) if isinstance(one, Strategy) else one
            if laid:
                own = laid.strategy
                key = own.costs.microbatch, own.cuts, own.block, own.packs
                best[key] = min(best.get(key, laid), laid, key=score)
        return list(best.values())

    def _ops(self, limits: Limits) -> int:
        """The number of ops to simulate: fewer for chains with few points to cut at, whose
        strategies have few neighbours; more for steps of few microbatches, where one shard more or
        less on the device changes more of a round."""
        length = (_POINTS + min(len(self.starts.points), _POINTS)) / (2 * _POINTS)
        steps = fmean(1 + 1 / costs.microbatches for costs in self.starts.sizes)
        return int(limits.search_ops * length * steps)

    def _enough_us(self, limits: Limits) -> int:
        """A period than which none is much shorter."""
        return self.bound_us + self.bound_us // limits.search_enough

    def _plain_training(self, limits: Limits) -> list[DeviceRound]:
        """Where everything fits and computes nearly all the time, nothing needs to move."""
        if self.apart:
            return []
        plain = [self.rounds.fitting(self.starts.whole(costs)) for costs in self.starts.sizes]
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
        ops = self._ops(effort.limits) // share
        near = (start for start in starts if start.period_us <= least + least // far)
        return [self._better(start, ops, effort) for start in near if not self.done]

    def _better(self, start: DeviceRound, ops: int, effort: Effort) -> DeviceRound:
        """The best found around a round, of which so many ops are simulated."""
        enough_us = self._enough_us(effort.limits)
        best = improve(start, self.starts.points, self.rounds.fitting, ops, enough_us, effort)
        self.done = best.period_us <= enough_us
        return best

    def _exchanged(self, best: DeviceRound, effort: Effort) -> list[DeviceRound]:
        """The best once a shard stays for which several others make room, improved a little."""
        limits, often = effort.limits, effort.limits.search_exchanges
        found = exchanged(best, self.rounds.fitting, often) if effort.left > 0 else ()
        start = min(found, key=score, default=None)
        if start is None or start.period_us > best.period_us + best.period_us // limits.search_far:
            return []
        return [self._better(start, self._ops(limits) // 10, effort)]

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
