"""When copies can be over and when they must begin, by step: before anything is laid out.

Copies of a link queue behind each other, the outgoing ones from when they are made, the incoming
ones so that each is there when it is needed.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from planner.lowering.strategy import PipelineStrategy
from planner.shards import Links, Strategy, Value


class Clock:
    """When steps end, in a steady state: time is that of the compute stream, stretched where a
    link needs longer than that for a round."""

    def __init__(
        self,
        strategy: PipelineStrategy | Strategy,
        us: Sequence[int],
        links: Links,
        values: Sequence[Value],
    ) -> None:
        self.strategy, self.us, self.links, self.costs = strategy, us, links, strategy.costs
        values = [value for value in values if value.bytes]
        self.values, self.count = values, len(us)
        leaving = sorted((v.out.made, v.name, v.out) for v in values if v.out)
        coming = sorted((v.into.need, v.name, v.into) for v in values if v.into)
        self.leaving = {name: out for _, name, out in leaving}
        self.coming = {name: into for _, name, into in coming}
        out = sum(links.spill_us(out.bytes) for out in self.leaving.values())
        into = sum(into.us(links) for into in self.coming.values())
        compute = max(1, sum(us))
        self.stretch = max(1.0, out / compute, into / compute)
        self.ends = list(accumulate(one * self.stretch for one in us))

    def step(self, us: float) -> int:
        """The step at a time; steps of other rounds are below 0, or from `count` on."""
        lap, within = divmod(us, self.ends[-1])
        return int(lap) * self.count + bisect_right(self.ends, within)

    def end(self, step: int) -> float:
        """When a step ends."""
        lap, within = divmod(step, self.count)
        return lap * self.ends[-1] + self.ends[within]

    def _out(self) -> Iterator[tuple[str, float, float]]:
        """For what leaves, when its copy ends, and when the host has updated what it is for.

        The link takes what was made first or, where that is wanted, what is needed again first;
        updates follow in the same order or, where they wait for norms, in that of the next forward.
        """
        now = done = -math.inf
        made = []
        late = []
        for lap in (-1, 0):  # what the round before left behind is still on its way
            for name, out in self.leaving.items():
                begin = self.end(out.made + lap * self.count)
                if out.steady:
                    begin -= self._rest(out.made)
                made.append((begin, lap, name, out))
        made.sort(key=lambda item: item[:3], reverse=True)
        waiting: list[tuple[float, str, int]] = []
        while made or waiting:
            if not waiting:
                now = max(now, made[-1][0])
            while made and made[-1][0] <= now:
                begin, lap, name, out = made.pop()
                first = self.end(out.again + lap * self.count)
                heapq.heappush(waiting, (first if self.strategy.urgent else begin, name, lap))
            _, name, lap = heapq.heappop(waiting)
            out = self.leaving[name]
            now += self.links.spill_us(out.bytes)
            if out.update_us and self.costs.noted:
                late.append((out.again + lap * self.count, lap, name, now, out.update_us))
                continue
            done = max(now, done) + out.update_us if out.update_us else done
            if not lap:
                yield name, now, done if out.update_us else now
        for _, lap, name, end, us in sorted(late):
            norms = self.end(self.strategy.sweeps - 1 + lap * self.count)
            norms += self.links.spill_us(self.costs.task.norm_bytes)
            done = max(done, end, norms) + us
            if not lap:
                yield name, end, done

    @cached_property
    def lives(self) -> tuple[dict[str, int], dict[str, int]]:
        """For what leaves, the step in which its copy ends; for what comes, the one in which its
        copy must begin for all to be there in time.

        That is found backwards in time: of the copies that may end there, the one that could begin
        last does.
        """
        gone, ready = dict[str, int](), dict[str, float]()
        for name, end, update in self._out():
            gone[name], ready[name] = self.step(end - 1), update
        since = dict[str, int]()
        waiting = sorted(self._loads(ready), key=lambda load: load[:1] + load[3:])
        heap: list[tuple[float, float, str, int]] = []
        now = math.inf
        while waiting or heap:
            if not heap:
                now = min(now, waiting[-1][0])
            while waiting and waiting[-1][0] >= now:
                _, begin, us, name, lap = waiting.pop()
                heapq.heappush(heap, (-begin, us, name, lap))
            _, us, name, lap = heapq.heappop(heap)
            now -= us
            if not lap:
                since[name] = self.step(now)
        return gone, since

    def _loads(self, ready: Mapping[str, float]) -> Iterator[tuple[float, float, float, str, int]]:
        """For loads of two rounds when they must end, when they can begin, how long they take."""
        for lap in (0, 1):
            for name, into in self.coming.items():
                end = self.end(into.need + lap * self.count - 1)
                begin = -math.inf
                if into.after in ready:
                    made = self.leaving[into.after].made
                    begin = ready[into.after] + (lap - (made >= into.need)) * self.ends[-1]
                if into.steady:
                    end += self._rest(into.need)
                yield end, begin, into.us(self.links), name, lap

    def _rest(self, step: int) -> float:
        """µs that a step spends on all microbatches but one."""
        return self.us[step] * self.stretch * (1 - 1 / self.costs.microbatches)
