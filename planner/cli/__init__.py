"""The command line: `python -m planner`."""

from planner.cli.parser import main
