"""The registry of bounds on the makespan, and bounds on a step that stand in for others."""

from pathlib import Path

from planner.bounds.named import NAMED
from planner.bounds.task import TaskBound

README = Path(__file__).parents[3] / "planner" / "README.md"


def test_the_readme_says_what_every_bound_is() -> None:
    """Its table has them in the order in which plans name them."""
    _, _, table = README.read_text().partition("| bound | says |\n|---|---|\n")
    rows, _, _ = table.partition("\n\n")
    assert [row.split(" | ")[0] for row in rows.split("\n")] == [f"| {one.name}" for one in NAMED]


def test_a_weaker_bound_stands_for_one_that_is_not_known() -> None:
    """By phases no more is known on several devices than fill and drain, with lengths than the
    longest samples."""
    several = TaskBound({"compute": 2, "fill-and-drain": 5})
    assert (several.us("phase"), several.us("longest"), several.period_us) == (5, 2, 5)
    lengths = TaskBound({"compute": 2, "longest": 4})
    assert (lengths.us("fill-and-drain"), lengths.period_us) == (4, 4)
