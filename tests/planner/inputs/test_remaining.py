"""Tasks go on as they began: with their microbatches, added as before, where a window ends."""

from collections.abc import Mapping

import pytest
from support import synthetic

from planner.inputs.remaining import Asked, Rest, after
from plans.additions import Addition
from plans.runlog import CheckpointRecord, Header, RunLog
from profiles.errors import FormatError

PROFILE = synthetic.profile(synthetic.task("a", layers=1, steps=20), usable_bytes=24 << 20)


SUMS = (Addition(0, 1, "(0 + 1)"),)  # of a run on several devices


def went_on(done: int, windows: Mapping[str, tuple[int, int]] = {}, asked: Asked = ()) -> Rest:
    """The rest after a run of 20 steps that was kept after so many."""
    header = Header(
        plan_sha256="0" * 64,
        started="2025",
        devices=("cpu0",),
        emulated=True,
        microbatch={"a": 1},
        windows=dict(windows),
        additions={"a": SUMS},
    )
    kept = (CheckpointRecord("a", done, "a.pt", 0),)
    return after(PROFILE, [RunLog(header, (), (), None, kept)], "run.jsonl", asked)


@pytest.mark.parametrize(("done", "first"), [(8, 0), (10, 2)])
def test_a_task_goes_on_where_a_window_ended(done: int, first: int) -> None:
    """Windows are counted from the first step of the plan that ran."""
    assert went_on(done, {"a": (first, 4)}).done == {"a": done}


@pytest.mark.parametrize(("done", "first"), [(9, 0), (8, 2)])
def test_a_task_that_stopped_within_a_window_is_refused(done: int, first: int) -> None:
    """Its other steps would train some samples again, and others never."""
    with pytest.raises(FormatError, match=f"a stopped after {done} steps, within a window of 4"):
        went_on(done, {"a": (first, 4)})


@pytest.mark.parametrize(
    ("asked", "keeps"),
    [((), True), ([("", 1)], True), ([("a", 1)], True), ([("", 0)], False), ([("", 2)], False)],
)
def test_the_size_that_a_task_had_is_as_good_as_none(asked: Asked, keeps: bool) -> None:
    """Who asks for it gets the same bits, or no plan; another size may add in any order."""
    rest = went_on(8, asked=asked)
    assert (rest.kept, rest.additions) == (({"a": 1}, {"a": SUMS}) if keeps else ({}, {}))
