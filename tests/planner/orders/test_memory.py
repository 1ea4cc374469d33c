"""What passes hold; orders that are none of their pipeline, each with the pass that is wrong."""

import pytest
from support.order_check import check

from planner.orders import Cost, InvalidOrder, Order, Pass, Pipeline, gpipe, peaks

PIPELINE = Pipeline.alike([Cost(1, 1, 1, held=3, left=1)] * 2, 2, 2, limit=6)
GOOD = gpipe(PIPELINE, ((0,), (1,)))


def _line(text: str) -> tuple[Pass, ...]:
    """0F1 is the forward of microbatch 1 through shard 0."""
    return tuple(Pass(p[1], int(p[0]), int(p[2])) for p in text.split())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0", "microbatch 1 of shard 1 has the passes F, not"),
        ("0F0 0F1 0B0 0B1 0B1", "1F0 1F1 1B0 1B1", "has the passes FBB, not FB or FIW"),
        ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1W1 1I1", "has the passes FWI, not"),
        ("0F0 0F1 0B0 0B1 1B1", "1F0 1F1 1B0", "microbatch 1 of shard 1 is on two devices"),
        ("0F0 0F1 0B0 0B1 0F2", "1F0 1F1 1B0 1B1", "there is no microbatch 2 of shard 0"),
        ("0F0 0F1 0B1 0B0", "1F0 1F1 1B0 1B1", "s0.B0 on device 0 adds its gradients after"),
        ("0F0 0B1 0F1 0B0", "1F0 1F1 1B0 1B1", "microbatch 1 of shard 0 has the passes BF"),
    ],
)
def test_what_is_wrong_is_said(first: str, second: str, message: str) -> None:
    """One mistake each."""
    with pytest.raises(InvalidOrder, match=message.replace(".", r"\.")):
        check(PIPELINE, (_line(first), _line(second)))


def test_an_order_for_fewer_devices_is_rejected() -> None:
    """A line per device, empty or not."""
    with pytest.raises(InvalidOrder, match="the order is for 1 devices of 2"):
        check(PIPELINE, GOOD[:1])


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
