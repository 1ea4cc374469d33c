"""What passes hold; orders that are none of their pipeline, each with the pass that is wrong."""

import pytest
from support.order_check import check

from planner.orders import Cost, InvalidOrder, Order, Pass, Pipeline, peaks

PIPELINE = Pipeline.alike([Cost(1, 1, 1, held=3, left=1)] * 2, 2, 2, limit=6)


def _line(text: str) -> tuple[Pass, ...]:
    """0F1 is the forward of microbatch 1 through shard 0."""
    return tuple(Pass(p[1], int(p[0]), int(p[2])) for p in text.split())  # type: ignore[arg-type]


def test_memory_is_held_from_forward_to_backward_and_partly_to_weights() -> None:
    """3 in flight, 1 from I to W."""
    order: Order = (_line("0F0 0F1 0I0 0I1 0W0 0W1"), _line("1F0 1I0 1F1 1I1 1W0 1W1"))
    assert peaks(PIPELINE, order) == (6, 4)
    tight = Pipeline(PIPELINE.costs, 2, (5, 6))
    with pytest.raises(InvalidOrder, match="passes on device 0 hold 6, but its limit is 5"):
        check(tight, order)


def test_a_shard_without_forward_holds_memory_during_its_backward() -> None:
    """Nothing is held between microbatches."""
    pipeline = Pipeline.alike([Cost(0, 1, 1, held=3)], 1, 2)
    assert peaks(pipeline, (_line("0B0 0B1"),)) == (3,)
