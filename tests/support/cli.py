"""Both command lines as a user meets them: what they answer, and what they leave on disk."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from support.steady import US, steady, timeless

import executor.cli
import planner.cli.parser
import profiles


class Answer(NamedTuple):
    """Exit code and both outputs of a command."""

    code: int
    out: str
    err: str


def planner_cli(*arguments: object) -> Answer:
    """`python -m planner` with these arguments, in this process."""
    return _call(planner.cli.parser.main, arguments)


def executor_cli(*arguments: object) -> Answer:
    """`python -m executor` with these arguments, in this process."""
    return _call(executor.cli.main, arguments)


def _call(main: Callable[[list[str]], int], arguments: tuple[object, ...]) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = stop.code if isinstance(stop.code, int) else -1
    return Answer(code, out.getvalue(), err.getvalue())


def succeeded(answer: Answer) -> Answer:
    """The answer, once it is certain that the command did not fail."""
    assert answer.code == 0, answer.err
    return answer


_PROGRESS = re.compile(r"note: |planning |\d+/\d+ steps")  # steps of runs on a busy machine


def refused(answer: Answer, code: int, text: str) -> None:
    """The command ended with `code` and one line that begins with `error:` and holds `text`.

    Only progress may stand before that line, and only the violations of a plan after it.
    """
    assert answer.code == code, answer
    lines = answer.err.splitlines()
    errors = [number for number, line in enumerate(lines) if "error:" in line]
    assert len(errors) == 1, answer.err
    assert all(_PROGRESS.match(line) for line in lines[: errors[0]])
    assert lines[errors[0]].startswith("error: ")
    assert all(line.startswith("  ") for line in lines[errors[0] + 1 :])
    assert text in "\n".join(lines[errors[0] :])


@contextmanager
def nothing_written() -> Iterator[None]:
    """Every file below the current directory stays as it is, and none is added."""
    before = _files()
    yield
    assert _files() == before


def _files() -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def profile(ref: str, output: str, *options: object, us: int = US) -> None:
    """Profile the workload on one emulated device of 1 MiB, once each; the file says the same time
    for everything."""
    quick = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1)
    with timeless():
        succeeded(executor_cli("profile", ref, *quick, "-o", output, *options))
    profiles.save(output, steady(profiles.load(output), us))


def smallest_budget(source: str, *options: object) -> int:
    """The bytes that `build` says would do when it is given a single one."""
    output = "too-small.json"
    answer = planner_cli("build", source, "-o", output, *options, "--device-memory", 1)
    refused(answer, 3, "smallest --device-memory that would do: ")
    assert not Path(output).exists()
    return int(answer.err.rpartition("would do: ")[2].split()[0])
