"""A good order for given places: rules of the list schedule searched, then exchanges.

Ended by its budget, in passes timed, or where a bound proves that nothing is better.
"""

import random
from dataclasses import replace

from planner.orders.bounds import bounds, ladder
from planner.orders.improve import Exchanges
from planner.orders.list_schedule import Rule, list_makespan
from planner.orders.passes import Order, Pass, Pipeline, Places
from planner.orders.stages import Homes
from planner.orders.tables import Tables, ranking_of
from planner.orders.timing import Network, spans_of

ENOUGH = 8  # microbatches per device that show what a rule is worth
ROUND = 200  # variations of one rule
BEST = 4  # rules that rounds begin with
PERCENT = (0, 25, 50, 75, 100, 200, 1000)


class Schedules:
    """List schedules of a pipeline in given places by rules; split: backwards are I and W."""

    def __init__(self, pipeline: Pipeline, places: Places, split: bool = True) -> None:
        self.pipeline, self.places, self.split = pipeline, places, split
        self.rows = Homes.of(pipeline, places).where
        rankings = (ranking_of(pipeline, split, eager) for eager in (False, True))
        self.tables = [Tables.of(pipeline, ranking) for ranking in rankings]
        lines: list[list[Pass]] = [[] for _ in range(pipeline.devices)]
        for item in self.tables[0].passes:
            lines[self.rows[item.shard][item.microbatch]].append(item)
        self.network = Network.of(pipeline, tuple(map(tuple, lines)))

    def lines(self, rule: Rule) -> list[list[int]]:
        """The schedule of a rule, as numbers of the network."""
        tables, numbers = self.tables[rule.eager], self.network.numbers
        taken: list[list[int]] = [[] for _ in range(tables.devices)]
        list_makespan(tables, self.rows, tables.loads(self.rows), rule=rule, taken=taken)
        return [[numbers[tables.passes[i]] for i in line] for line in taken]

    def order(self, rule: Rule) -> Order:
        """The schedule of a rule."""
        return self.network.order(self.lines(rule))

    def ranked(self) -> list[Rule]:
        """All rules, the best first; judged with fewer microbatches where there are many."""
        enough, judges = ENOUGH * self.pipeline.devices, self
        if self.pipeline.microbatches > enough:
            few = replace(self.pipeline, microbatches=enough)
            judges = Schedules(few, self.places, self.split)
        rules = _rules(judges.pipeline, self.places)
        values = [max(spans_of(judges.network, judges.lines(rule))) for rule in rules]
        own = _rules(self.pipeline, self.places)
        return [own[place] for place in sorted(range(len(own)), key=values.__getitem__)]


def _rules(pipeline: Pipeline, places: Places) -> list[Rule]:
    """With all depths and the usual percentages."""
    return [
        Rule(depth, (wait,) * pipeline.devices, eager)
        for depth in _depths(pipeline, places)
        for eager in (False, True)
        for wait in (0, 50, 100)
    ]


def _depths(pipeline: Pipeline, places: Places) -> list[tuple[int, ...]]:
    """Depth that memory alone limits, and what keeps devices busiest before the first backward."""
    return [(pipeline.microbatches,) * pipeline.shards, ladder(pipeline, places).depth]


def searched(pipeline: Pipeline, places: Places, budget: int, split: bool = True) -> Order:
    """The best order found by timing so many passes; `split` lets backwards be I and W."""
    schedules = Schedules(pipeline, places, split)
    exchanges = Exchanges(pipeline, schedules.network)
    enough = max(bounds(pipeline, places).values())
    size, rng = len(schedules.network.time), random.Random(0)

    starts = schedules.ranked()[:BEST]
    tried = {rule: exchanges.score(schedules.lines(rule)) for rule in starts}
    best = min(starts, key=lambda rule: tried[rule])
    lines, least, left = schedules.lines(best), tried[best], budget
    while left > 0 and least[0] > enough:
        rule = rng.choice(starts)
        score = tried[rule]
        for _ in range(min(ROUND, left // size)):
            other = _varied(rule, rng)
            found = exchanges.score(schedules.lines(other))
            if found <= score:
                rule, score = other, found
            if score[0] <= enough:
                break
        found_lines = exchanges.run(schedules.lines(rule), min(left, 4 * ROUND * size), enough)
        found = exchanges.score(found_lines)
        left -= 5 * ROUND * size
        if found < least:
            lines, least = found_lines, found
    return schedules.network.order(lines)


def _varied(rule: Rule, rng: random.Random) -> Rule:
    """A rule with another depth of a shard, or another wait of a device."""
    depth, wait = list(rule.depth), list(rule.wait)
    if rng.random() < 0.5:
        shard = rng.randrange(len(depth))
        depth[shard] = max(1, depth[shard] + rng.choice((-1, 1)))
    else:
        wait[rng.randrange(len(wait))] = rng.choice(PERCENT)
    return Rule(tuple(depth), tuple(wait), rule.eager)
