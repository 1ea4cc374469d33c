"""The registry of bounds on the makespan, and bounds on a step that stand in for others."""

from pathlib import Path

from planner.bounds.named import NAMED
from planner.bounds.step import TaskBound

README = Path(__file__).parents[3] / "planner" / "README.md"


def test_the_readme_says_of_every_bound_what_the_registry_says() -> None:
    """The table has these rows, in the order in which plans name them."""
    rows = "".join(f"| {one.name} | {one.says} |\n" for one in NAMED)
    assert f"| bound | says |\n|---|---|\n{rows}\n" in README.read_text()


def test_a_weaker_bound_stands_for_one_that_is_not_known() -> None:
    """By phases no more is known on several devices than fill and drain; with lengths nothing of
    the link."""
    several = TaskBound({"compute": 2, "link": 1, "load": 3, "fill-and-drain": 5})
    assert (several.us("phase"), several.us("longest"), several.period_us) == (5, 2, 5)
    lengths = TaskBound({"compute": 2, "longest": 4})
    assert (lengths.us("load"), lengths.us("link"), lengths.period_us) == (4, 0, 4)
