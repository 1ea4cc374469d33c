"""An order made better by exchanges: passes of the critical path move along their device.

Late acceptance: an exchange is kept if the order is no worse than it was, or than it was some
exchanges ago. What memory does not allow, what adds gradients in another sequence, and what would
wait for itself is never kept. The same order and budget give the same result.
"""

import random

from planner.orders.memory import changes
from planner.orders.passes import Order, Pipeline
from planner.orders.stages import NEVER
from planner.orders.timing import NONE, Network, earliest, latest

MEMORY = 40  # exchanges that late acceptance looks back
REFUSED = 20  # passes that could be timed instead of looking for an exchange
REACH = 12  # places that a pass moves at most
Score = tuple[int, int]
Spots = dict[int, tuple[int, int]]  # device and place of every pass


def improved(pipeline: Pipeline, order: Order, budget: int) -> Order:
    """The best order found from this one by timing so many passes."""
    network = Network.of(pipeline, order)
    return network.order(Exchanges(pipeline, network).run(list(network.lines), budget, 0))


class _State:
    """Lines with their times. score: the largest span, and the sum over all devices; None where the
    lines cannot run. worst: the device of the largest span."""

    def __init__(self, network: Network, lines: list[list[int]]) -> None:
        self.lines, self.ends = lines, earliest(network, lines)
        self.score: Score | None = None
        if NONE in self.ends:
            return
        times = [self.ends[line[-1]] if line else 0 for line in lines]
        self.starts = latest(network, lines, self.ends)
        for device, line in enumerate(lines):
            times[device] -= self.starts[line[0]] if line else 0
        self.worst = times.index(max(times))
        self.score = times[self.worst], sum(times)


class Exchanges:
    """The passes that may move in an order of a pipeline."""

    def __init__(self, pipeline: Pipeline, network: Network) -> None:
        self.network, self.limits = network, pipeline.limits
        pairs = zip(network.device, network.passes, strict=True)
        self.memory = [changes(pipeline, device, item) for device, item in pairs]

    def run(self, lines: list[list[int]], budget: int, enough: int) -> list[list[int]]:
        """Late acceptance until the budget ends or nothing better can be."""
        rng = random.Random(0)
        state, best, least = self._state(lines), lines, self.score(lines)
        score, scores = least, [least] * MEMORY
        turn, links = 0, self._links(state)
        while budget > 0 and least[0] > enough and links:
            moved = self._moved(state.lines, *rng.choice(links), rng)
            if moved is None:
                budget -= REFUSED
                continue
            after = self._state(moved)
            budget -= len(self.network.time)
            turn += 1
            if after.score is not None and after.score <= max(scores[turn % MEMORY], score):
                state, score, links = after, after.score, self._links(after)
                if score < least:
                    best, least = moved, score
            scores[turn % MEMORY] = score
        return best

    def score(self, lines: list[list[int]]) -> Score:
        """The same of any lines; NEVER where they cannot run."""
        return self._state(lines).score or (NEVER, NEVER)

    def _state(self, lines: list[list[int]]) -> _State:
        return _State(self.network, lines)

    def _links(self, state: _State) -> list[tuple[int, int]]:
        """Device and place of critical passes that start when the pass before them ends."""
        places = {}
        for device, line in enumerate(state.lines):
            for place, number in enumerate(line):
                places[number] = device, place
        return self._backwards(state, places) + self._onwards(state, places)

    def _backwards(self, state: _State, places: Spots) -> list[tuple[int, int]]:
        """From the last pass of the worst device to the begin of all."""
        network, ends, found = self.network, state.ends, []
        number = state.lines[state.worst][-1]
        while True:
            device, place = places[number]
            start = ends[number] - network.time[number]
            before = state.lines[device][place - 1] if place else NONE
            if before >= 0 and ends[before] == start:
                found.append((device, place))
                number = before
            elif start > 0:
                number = network.after[number]
            else:
                return found

    def _onwards(self, state: _State, places: Spots) -> list[tuple[int, int]]:
        """From the first pass of the worst device to the end that it cannot start later for."""
        network, starts, found = self.network, state.starts, []
        number = state.lines[state.worst][0]
        while True:
            device, place = places[number]
            end, line = starts[number] + network.time[number], state.lines[device]
            behind = line[place + 1] if place + 1 < len(line) else NONE
            if behind >= 0 and starts[behind] == end:
                found.append((device, place + 1))
                number = behind
                continue
            for reader in network.before[number]:
                if starts[reader] - network.lag[reader] == end:
                    number = reader
                    break
            else:
                return found

    def _moved(
        self, lines: list[list[int]], device: int, place: int, rng: random.Random
    ) -> list[list[int]] | None:
        """One of two critical neighbours past the other, and maybe further; None where not."""
        line = lines[device]
        further = rng.randrange(REACH) if rng.random() < 0.5 else 0
        if rng.random() < 0.5:
            source, target = place - 1, min(len(line) - 1, place + further)
            passed = line[source + 1 : target + 1]
        else:
            source, target = place, max(0, place - 1 - further)
            passed = line[target:source]
        if not all(self._may_pass(line[source], other) for other in passed):
            return None
        line = line[:source] + line[source + 1 :]
        line.insert(target, lines[device][source])
        if not self._fits(device, line):
            return None
        return [*lines[:device], line, *lines[device + 1 :]]

    def _may_pass(self, one: int, other: int) -> bool:
        """Passes of a microbatch keep their sequence, those of one kind that of microbatches."""
        a, b = self.network.passes[one], self.network.passes[other]
        alike = a.kind == b.kind or {a.kind, b.kind} == {"B", "W"}
        return a.shard != b.shard or (a.microbatch != b.microbatch and not alike)

    def _fits(self, device: int, line: list[int]) -> bool:
        """A device's passes never hold more than its limit."""
        if self.limits is None:
            return True
        held, limit = 0, self.limits[device]
        for number in line:
            first, last = self.memory[number]
            held += first
            if held > limit:
                return False
            held += last
        return True
