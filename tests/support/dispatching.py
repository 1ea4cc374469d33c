"""Small dispatch problems, and the best dispatch of one by trying all."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from planner.dispatch.pipes import Array, Curve, PipelineType, Pool

_TYPES = st.builds(
    PipelineType,
    st.builds(Curve, st.floats(0, 0.1), st.floats(0, 5), st.floats(0, 50)),
    depth=st.integers(1, 4),
    longest=st.integers(20, 200),
    count=st.integers(1, 2),
)
POOLS = st.builds(lambda types: Pool(tuple(types)), st.lists(_TYPES, min_size=1, max_size=2))


@st.composite
def problems(draw: st.DrawFn, most: int = 5) -> tuple[Pool, Array]:
    """A pool, and lengths that it can hold."""
    pool = draw(POOLS)
    lengths = draw(st.lists(st.integers(1, pool.longest), min_size=1, max_size=most))
    return pool, np.array(lengths)


def optimum(pool: Pool, lengths: Array) -> int:
    """When the last pipeline is done in the best of all dispatches."""
    types = [one for one in pool.types for _ in range(one.count)]
    own = [[int(one.curve.us(np.array([s]))[0]) for s in lengths] for one in types]
    may = [
        [number for number, one in enumerate(types) if s <= one.longest] for s in lengths.tolist()
    ]
    best = 1 << 60
    for places in product(*may):
        loads, tops = [0] * len(types), [0] * len(types)
        for item, number in enumerate(places):
            loads[number] += own[number][item]
            tops[number] = max(tops[number], own[number][item])
        latest = max(
            load + (one.depth - 1) * top for load, top, one in zip(loads, tops, types, strict=True)
        )
        best = min(best, latest)
    return best
