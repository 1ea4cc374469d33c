"""Ways to train a task with lengths that are tried: the most tokens of a microbatch."""

import time
from dataclasses import replace

import numpy as np
import pytest
from support import synthetic
from support.texts import text_task

from planner.inputs import DeviceGroup, Effort, Layout
from planner.lowering import PipelineRound
from planner.packing.asked import LengthsTask
from planner.sequences.ways import FINEST, PipelineConfig, tried, ways
from planner.shards import Mode
from planner.shards.modes import HELD
from profiles.codec import ALIGNMENT

LONGEST = 3 * ALIGNMENT
LENGTHS = np.array([LONGEST, 100, 300], np.uint32)
EFFORT = Effort(time.monotonic() + 600, 0)


def asked(mib: int) -> LengthsTask:
    """Four layers on a device with so much memory."""
    task = text_task(lengths=LENGTHS)
    kind = DeviceGroup.of("cpu", synthetic.profile(task, usable_bytes=mib << 20), 1, None)
    return LengthsTask(task, LENGTHS, kind, 1 << 40)


def graphs_stay(one: LengthsTask, tokens: int) -> bool:
    """True if graphs of so many tokens fit, with parameters and state held in any way."""
    trial = tried(one, PipelineConfig(Layout.beside([1]), {1: tokens}), FINEST, EFFORT)
    assert trial
    modes = [
        (*[Mode(*held, "saved")] * (FINEST - 1), Mode(*held))
        for held in HELD
        if held[0] != "streamed"
    ]
    rounds = [PipelineRound(replace(trial.strategy, modes=own), one.links) for own in modes]
    return min(full.device_bytes for full in rounds) <= one.kind.device_bytes


@pytest.mark.parametrize("mib", [16, 24, 28])
def test_the_most_tokens_are_tried_whose_graphs_can_stay(mib: int) -> None:
    """Beside the longest sample, twice as many, and what memory holds of four times as many."""
    one = asked(mib)
    found = [way.most[1] for way in ways(one, [Layout.beside([1])], EFFORT)]
    sizes = range(ALIGNMENT, 4 * LONGEST, ALIGNMENT)
    stay = max(tokens for tokens in sizes if graphs_stay(one, tokens))
    assert found[:2] == [LONGEST, 2 * LONGEST]
    assert stay not in found[:3]
    assert found[3:] == [stay]
