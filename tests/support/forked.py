"""Processes that need not load torch: they are forked from one that has.

All else is as if `python` had been called: folder, environment, arguments, signals, output and exit
code. So are the processes of a torchrun that is started here.
"""

import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
_LOADED = ["torch.distributed.launcher.api", "executor.cli", "executor.processes"]
_LOADED += ["executor.profiling.profiler"]


def started(
    arguments: Sequence[object], output: Path, folder: Path | None = None, **environment: str
) -> BaseProcess:
    """`python ARGUMENTS` in a folder, by default this one, with more in its environment; both its
    outputs go to a file."""
    own, here = {**os.environ, **environment}, folder or Path.cwd()
    words = [str(word) for word in arguments]
    process = server().Process(target=_first, args=(words, here / output, here, own))
    process.start()
    return process


def server() -> ForkServerContext:
    """Starts processes that have loaded torch and the executor."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    with contextlib.chdir(ROOT):  # where it looks for the executor
        forkserver.ensure_running()
    return context


def ended(process: BaseProcess, seconds: float = 120) -> int:
    """The exit code of a process that ends before so much time is over."""
    process.join(seconds)
    code = process.exitcode
    process.kill()
    assert code is not None, "has not ended"
    return code


def torchrun(processes: int, *command: object, restarts: int = 0) -> list[object]:
    """The arguments for so many processes, which run a command each."""
    many = ["--nproc-per-node", processes, "--max-restarts", restarts]
    return ["-m", "torch.distributed.run", *many, *command]


def children(pid: int) -> list[int]:
    """The processes that a process has started, in turn."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := status(int(entry.name)))[1:2] == [str(pid)]:
            found.append((int(stat[19]), int(entry.name)))
    return [child for _, child in sorted(found)]


def status(pid: int) -> list[str]:
    """State, parent and more of a process; nothing where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _first(arguments: list[str], output: Path, folder: Path, own: Mapping[str, str]) -> None:
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    SubprocessHandler._popen = _fork  # type: ignore[method-assign,assignment]
    _python(arguments, own)


def _fork(_: object, command: Sequence[str], own: dict[str, str]) -> Any:
    """What torchrun wants of subprocess.Popen."""
    return _Forked(command, own)


class _Forked:
    """A child of this process, as subprocess.Popen has it."""

    def __init__(self, command: Sequence[str], own: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        sys.stdout.flush(), sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()  # nothing of the parent's is closed when it is collected
            shared = resource_tracker.getfd()
            os.closerange(3, shared), os.closerange(shared + 1, 1 << 16)
            os.setsid()
            _python([word for word in command[1:] if word != "-u"], own)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, state = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(state) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(0.01)
        return code


def _python(arguments: list[str], own: Mapping[str, str]) -> NoReturn:
    """Go on as `python ARGUMENTS` with this environment."""
    os.environ.clear()
    os.environ.update(own)
    for kind in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(kind, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code: Any = 0
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[:0] = arguments[1:], [""]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[:0] = arguments, [str(Path(arguments[0]).parent)]
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    print(end="", flush=True)
    os._exit(code if isinstance(code, int) else int(code is not None))
