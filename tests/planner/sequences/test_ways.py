"""Ways that are looked at: how large their microbatches may be."""

import time

import numpy as np
import pytest
from support import synthetic
from support.texts import text_task

from planner.inputs import Effort, Kind, Layout
from planner.lowering import PipelineRound
from planner.packing.asked import Asked
from planner.sequences.ways import Way, thrifty, ways
from profiles.codec import ALIGNMENT

LONGEST = 3 * ALIGNMENT
LENGTHS = np.array([LONGEST, 100, 300], np.uint32)
EFFORT = Effort(time.monotonic() + 600, 0)


def fits(one: Asked, tokens: int) -> bool:
    """True if microbatches of so many tokens fit in the modes that hold least."""
    trial = thrifty(one, Way(Layout.beside([1]), {1: tokens}), EFFORT)
    assert trial
    return PipelineRound(trial.strategy, one.links).device_bytes <= one.kind.device_bytes


@pytest.mark.parametrize("mib", [8, 10, 11, 12, 28])
def test_microbatches_are_as_large_as_memory_allows(mib: int) -> None:
    """The longest sample, twice as many tokens, four times as many; where there is no memory for
    that as many as there is, and no way where the longest does not fit."""
    task = text_task(lengths=LENGTHS)
    kind = Kind.of("cpu", synthetic.profile(task, usable_bytes=mib << 20), 1, None)
    one = Asked(task, LENGTHS, kind, 1 << 40)
    found = [way.most[1] for way in ways(one, [Layout.beside([1])], EFFORT)]
    sizes = range(ALIGNMENT, 4 * LONGEST + 1, ALIGNMENT)
    most = max((tokens for tokens in sizes if fits(one, tokens)), default=0)
    wanted = [LONGEST, 2 * LONGEST, 4 * LONGEST] if most >= LONGEST else []
    assert found == list(dict.fromkeys(min(most, tokens) for tokens in wanted))
