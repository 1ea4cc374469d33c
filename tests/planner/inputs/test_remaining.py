"""Tasks go on as they began: with their microbatches, added as before, in the same order."""

import pytest
from support import synthetic
from support.texts import text_task

from planner.inputs.remaining import Asked, after
from plans.additions import Addition
from plans.runlog import CheckpointRecord, Header, RunLog
from profiles.errors import FormatError

PROFILE = synthetic.profile(synthetic.task("a", layers=1, steps=20), usable_bytes=24 << 20)
TEXTS = synthetic.profile(text_task("a"), usable_bytes=24 << 20)


SUMS = (Addition(0, 1, "(0 + 1)"),)  # of a run on several devices


def log_of(done: int, reordered: int = 1) -> RunLog:
    """A run that was kept after so many steps."""
    header = Header(
        plan_sha256="0" * 64,
        started="2025",
        devices=("cpu0",),
        microbatch={"a": 1},
        reordered={"a": reordered} if reordered > 1 else {},
        additions={"a": SUMS},
    )
    return RunLog(header, (), (), None, (CheckpointRecord("a", done, 0),))


@pytest.mark.parametrize("window", [1, 4])
def test_a_task_goes_on_in_the_order_that_its_samples_had(window: int) -> None:
    """Wherever it stopped."""
    rest = after(TEXTS, [log_of(3, window)], "run.jsonl", (), window)
    assert rest.done == {"a": 3}


@pytest.mark.parametrize(("was", "window"), [(4, 1), (1, 4), (4, 8)])
def test_another_order_of_what_is_left_is_refused(was: int, window: int) -> None:
    """Some samples would be trained again, and others never."""
    text = f"a has trained 3 steps .* of {was} step.* give --reorder-window {was}"
    with pytest.raises(FormatError, match=text):
        after(TEXTS, [log_of(3, was)], "run.jsonl", (), window)


@pytest.mark.parametrize(
    ("asked", "keeps"),
    [((), True), ([("", 1)], True), ([("a", 1)], True), ([("", 0)], False), ([("", 2)], False)],
)
def test_the_size_that_a_task_had_is_as_good_as_none(asked: Asked, keeps: bool) -> None:
    """Who asks for it gets the same bits, or no plan; another size may add in any order."""
    rest = after(PROFILE, [log_of(8)], "run.jsonl", asked)
    assert (rest.microbatch, rest.additions) == ({"a": 1}, {"a": SUMS} if keeps else {})
