"""Tasks whose samples moved within windows of steps go on only where a window ends."""

import pytest
from support import synthetic

from planner.inputs.remaining import Rest, after
from plans.runlog import CheckpointRecord, Header, RunLog
from profiles.errors import FormatError

PROFILE = synthetic.profile(synthetic.task("a", layers=1, steps=20), usable_bytes=24 << 20)


def went_on(done: int, windows: dict[str, tuple[int, int]]) -> Rest:
    """The rest after a run of 20 steps that was kept after so many."""
    header = Header(
        plan_sha256="0" * 64,
        started="2025",
        devices=("cpu0",),
        emulated=True,
        microbatch={"a": 1},
        windows=windows,
    )
    kept = (CheckpointRecord("a", done, "a.pt", 0),)
    return after(PROFILE, [RunLog(header, (), (), None, kept)], "run.jsonl", ())


@pytest.mark.parametrize(("done", "first"), [(8, 0), (10, 2)])
def test_a_task_goes_on_where_a_window_ended(done: int, first: int) -> None:
    """Windows are counted from the first step of the plan that ran."""
    assert went_on(done, {"a": (first, 4)}).done == {"a": done}


@pytest.mark.parametrize(("done", "first"), [(9, 0), (8, 2)])
def test_a_task_that_stopped_within_a_window_is_refused(done: int, first: int) -> None:
    """Its other steps would train some samples again, and others never."""
    with pytest.raises(FormatError, match=f"a stopped after {done} steps, within a window of 4"):
        went_on(done, {"a": (first, 4)})
