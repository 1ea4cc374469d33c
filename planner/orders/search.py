"""A good order for given places: rules of the list schedule searched, then exchanges.

Ended by its budget, in passes timed, or where a bound proves that nothing is better.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from planner.orders.bounds import bounds, ladder
from planner.orders.improve import Exchanges
from planner.orders.list_schedule import ListSchedule, Rule
from planner.orders.passes import Order, Pipeline, Places
from planner.orders.stages import NEVER
from planner.orders.timing import InvalidOrder, spans_of

ENOUGH = 8  # microbatches per device that show what a rule is worth
ROUND = 200  # variations of one rule
BEST = 4  # rules that rounds begin with
PERCENT = (0, 25, 50, 75, 100, 200, 1000)


def ranked(pipeline: Pipeline, places: Places, split: bool = True) -> list[Rule]:
    """All rules, the best first; judged with fewer microbatches where there are many."""
    few = min(pipeline.microbatches, ENOUGH * pipeline.devices)
    short = replace(pipeline, microbatches=few)
    schedule, values = ListSchedule(short, places, split), []
    for rule in _rules(short, places):
        lines = schedule.lines(rule)
        ended = schedule.ended(lines)
        values.append(max(spans_of(schedule.network, lines)) if ended else NEVER)
    own = _rules(pipeline, places)
    return [own[place] for place in sorted(range(len(own)), key=values.__getitem__)]


def _rules(pipeline: Pipeline, places: Places) -> list[Rule]:
    """With all depths and the usual percentages."""
    return [
        Rule.alike(pipeline.devices, depth, fill, drain, eager)
        for depth in _depths(pipeline, places)
        for eager in (False, True)
        for fill in (0, 50, 100)
        for drain in (0, 50, 100)
    ]


def _depths(pipeline: Pipeline, places: Places) -> list[tuple[int, ...]]:
    """Depth that memory alone limits, and what keeps devices busiest before the first backward."""
    return [(pipeline.microbatches,) * pipeline.shards, ladder(pipeline, places).depth]


def searched(pipeline: Pipeline, places: Places, budget: int, split: bool = True) -> Order:
    """The best order found by timing so many passes; `split` lets backwards be I and W."""
    schedule = ListSchedule(pipeline, places, split)
    exchanges = Exchanges(pipeline, schedule.network)
    enough = max(bounds(pipeline, places).values())
    size, rng = len(schedule.network.time), random.Random(0)
    depths = _depths(pipeline, places)

    starts = ranked(pipeline, places, split)[:BEST]
    tried = {rule: exchanges.score(schedule.lines(rule)) for rule in starts}
    best = min(starts, key=lambda rule: tried[rule])
    lines, least, left = schedule.lines(best), tried[best], budget
    if not schedule.ended(lines):
        raise InvalidOrder("no list schedule ends in so little memory")
    while left > 0 and least[0] > enough:
        rule = rng.choice(starts)
        score = tried[rule]
        for _ in range(min(ROUND, left // size)):
            other = _varied(rule, depths, rng)
            found = exchanges.score(schedule.lines(other))
            if found <= score:
                rule, score = other, found
            if score[0] <= enough:
                break
        found_lines = exchanges.run(schedule.lines(rule), min(left, 4 * ROUND * size), enough)
        found = exchanges.score(found_lines)
        left -= 5 * ROUND * size
        if found < least:
            lines, least = found_lines, found
    return schedule.network.order(lines)


def _varied(rule: Rule, depths: Sequence[tuple[int, ...]], rng: random.Random) -> Rule:
    """A rule with one to three changes, each for a device or a run of neighbours."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(("depth", "fill", "drain", "eager"))
        row = list(getattr(rule, name))
        first, last = rng.randrange(len(row)), rng.randrange(len(row))
        if first > last or rng.random() < 0.7:
            last = first
        part = slice(first, last + 1)
        if name == "depth":
            row[part] = _deeper(row[part], [depth[part] for depth in depths], rng)
        else:
            value = rng.choice(PERCENT) if name != "eager" else rng.random() < 0.5
            row[part] = [value] * (last + 1 - first)
        rule = replace(rule, **{name: tuple(row)})
    return rule


def _deeper(row: list[int], others: list[tuple[int, ...]], rng: random.Random) -> Sequence[int]:
    """One more or less, or as in one of the others."""
    step = rng.choice((-1, 1, 0))
    return [max(1, depth + step) for depth in row] if step else rng.choice(others)
