"""Writes docs/commands.md, every command and its options, from their parsers: make docs."""

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

import executor.cli
import planner.cli.parser

HEAD = """# Commands

Each is `gantry COMMAND`, or `python -m executor COMMAND` and `python -m planner COMMAND`. This page
is written by `make docs`. `gantry train` takes options of profile, build and run.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for title, cli in (("executor", executor.cli), ("planner", planner.cli.parser)):
        for name, text, parser in _commands(cli._parser()):
            lines += ["", f"## {name}", "", f"Of the {title}: {text}.", *_options(parser)]
    return "\n".join(lines) + "\n"


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action._choices_actions:
                yield one.dest, one.help or "", action.choices[one.dest]


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line for each argument, under the headings that --help has."""
    parser.format_help()  # which puts the groups in order
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
        if actions:
            yield from ("", f"*{group.title}*", "", *map(_line, actions))


def _line(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else action.metavar or "|".join(action.choices or ())
    value = value or ("" if action.nargs == 0 else action.dest.upper())
    names = ", ".join(action.option_strings)
    line = f"- `{' '.join(filter(None, (names, str(value))))}`: {action.help or ''}".rstrip(": ")
    return textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page())
