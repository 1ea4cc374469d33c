"""Parts of a profile are planned: some of its tasks, some of their steps."""

import pytest

from planner.inputs import Options, read_problem
from profiles.errors import FormatError

SAMPLE = "profiles/sample.json"


def test_only_some_tasks_up_to_a_step() -> None:
    """Those that are named; none longer than it was."""
    every = read_problem(SAMPLE).tasks
    name, steps = every[1].name, every[1].steps
    for until, left in ((7, 7), (steps + 1, steps), (None, steps)):
        (task,) = read_problem(SAMPLE, Options(only=(name,), until=until)).tasks
        assert (task.name, task.steps) == (name, left)
    assert read_problem(SAMPLE, Options(until=7)).provenance == {"until": "7"}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"only": ("none",)}, "--only: there is no task 'none', only "),
        ({"until": 7, "reorder_window": 2}, "--until may cut a window of --reorder-window"),
    ],
)
def test_what_cannot_be_a_part(asked: dict[str, int], text: str) -> None:
    with pytest.raises(FormatError) as found:
        read_problem(SAMPLE, Options(**asked))  # type: ignore[arg-type]
    assert text in str(found.value)
