"""One pass of longest-first."""

import numpy as np
from hypothesis import given, settings
from support.dispatching import problems

from planner.packing import Curve, PipelineType, Pool, longest_first
from planner.packing.pipes import Array


@settings(max_examples=100, deadline=None)
@given(problems(most=12, fixed=50))
def test_each_goes_where_it_is_done_first(problem: tuple[Pool, Array]) -> None:
    """As trying every pipeline for every sequence gives, up to equal pipelines, if microbatches are
    full."""
    pool, lengths = problem
    places, pool = longest_first(pool, lengths), pool.full
    times = pool.times(lengths)
    for item in np.argsort(-lengths, kind="stable"):
        before = [i for i in range(len(lengths)) if (-lengths[i], i) < (-lengths[item], item)]
        done = []
        for number in range(pool.pipelines):
            trial = np.array([*places[before], number])
            done.append(int(pool.finishes(times[:, [*before, item]], trial)[number]))
        assert done[places[item]] == min(done)


def test_the_depth_of_a_pipeline_counts() -> None:
    """Twice as fast, but eight stages deep: one sequence for itself goes to the slow one."""
    deep = PipelineType(Curve(0, 1), 8, 100)
    flat = PipelineType(Curve(0, 2), 1, 100)
    assert longest_first(Pool((deep, flat)), np.array([50])).tolist() == [1]
    assert longest_first(Pool((deep, flat)), np.array([100, *[10] * 40])).tolist().count(0) > 20
