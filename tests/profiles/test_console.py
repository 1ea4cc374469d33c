"""What both command lines share."""

import re

import pytest

pytest.importorskip("torch")

from support.cli import executor_cli, planner_cli, succeeded

from profiles import console


@pytest.mark.parametrize(
    ("command", "common", "expert"),
    [
        ("planner build", {"--devices", "--device-memory"}, {"--seed", "--corrections"}),
        ("executor profile", {"--device", "--explain"}, {"--samples"}),
        ("executor run", {"--overwrite", "--save"}, {"--grace"}),
    ],
)
def test_help_has_its_options_in_groups(command: str, common: set[str], expert: set[str]) -> None:
    """In the order of the table, none of them elsewhere, common ones first."""
    package, name = command.split()
    cli = {"planner": planner_cli, "executor": executor_cli}[package]
    text = succeeded(cli(name, "--help")).out
    parts = re.split(r"^(\S.*):$", text.partition("positional arguments:")[2], flags=re.MULTILINE)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(groups) == [title for title in console.GROUPS if title in groups]
    first, last = (set(re.findall(r"--[a-z-]+", groups[one])) for one in ("common", "expert"))
    assert common <= first - last
    assert expert <= last - first
