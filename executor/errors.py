"""Errors of profiling and running: one line each, with an exit code."""

from profiles.errors import GantryError


class UsageError(GantryError):
    """Bad input: exit code 2."""

    exit_code = 2


class WorkloadError(UsageError):
    """A workload cannot be loaded, or holds something Gantry cannot train."""


class MismatchError(UsageError):
    """The plan was made for another workload than the one that was loaded, or does not go on from
    these checkpoints. `lines`: all that does not fit."""

    def __init__(self, *lines: str) -> None:
        head = f"{len(lines)} things do not fit, so nothing was trained:"
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([head, *lines]))
        self.lines = lines


class RunError(GantryError):
    """Exit code 1: an op failed, stalled or broke a promise of the plan."""


class InterruptedRun(RunError):
    """A signal ended the run: the exit code that a shell has for it. stepped_s: the
    time.perf_counter() when its latest step was complete; whole: its rounds had ended."""

    def __init__(self, message: str, number: int, stepped_s: float, *, whole: bool) -> None:
        super().__init__(message)
        self.number, self.stepped_s, self.whole = number, stepped_s, whole
        self.exit_code = 128 + number


class ProcessError(GantryError):
    """One of several processes failed, with this exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class LogError(RunError):
    """The run log cannot be written."""


def one_line(error: BaseException) -> str:
    """`error` as `Kind: text` on one line, for a message that quotes it."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    if isinstance(error, KeyboardInterrupt | GantryError):
        return int(getattr(error, "exit_code", 130))
    return 1


def text_of(error: BaseException) -> str:
    """An error of ours says enough; of any other the kind and the text, on one line."""
    return str(error) if isinstance(error, GantryError) else one_line(error)
