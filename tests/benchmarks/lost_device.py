"""Half of a run's devices are lost, and come back: the time until the next step, and the bits.

    python -m tests.benchmarks.lost_device [--times 3]

Two tasks are trained by a plan book under two torchruns, as on two nodes of two emulated devices
each. The second one is killed with its processes; later another one is started in its place. The
run is to go on with two devices, then with four, and to end with the losses and saved models of one
process, bit for bit. Exit code 1 unless it does.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import failing_tasks
from support.forked import children

from plans import runlog
from profiles.console import columns
from tests.benchmarks.kills import differs, python

TASKS = """

def pair() -> list[Task]:
    return [_task(name, partial(_batch, seed), 120) for seed, name in enumerate("tu")]
"""
STEP = {"SLOW": "0.15", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LATE_S = 120.0


def prepared(folder: Path) -> None:
    """The book, and what one process makes of it on two devices."""
    (folder / "pair.py").write_text(Path(failing_tasks.__file__).read_text() + TASKS)
    (folder / "now.txt").write_text("one\ntwo\n")
    devices = ("--device-memory", "1MiB", "--devices", 4, "--slow-compute", 1, "--samples", 1)
    sizes = ("--nodes", "1x2,2x2", "--net", "1GB/s", "--layout", "2x1", "--segment-steps", 4)
    for words in (
        ("executor", "profile", "pair.py:pair", *devices, "-o", "profile.json"),
        ("planner", "book", "profile.json", *sizes, "-o", "x.book"),
        ("executor", "run", "x.book", "--devices-file", "now.txt", "-o", "x"),
    ):
        if python(folder, "-m", *words).wait():
            sys.exit((folder / "said").read_text())


class Run:
    """A run in a folder of its own, under two agents."""

    def __init__(self, folder: Path, known: Path) -> None:
        folder.mkdir()
        for name in ("pair.py", "x.book"):
            (folder / name).symlink_to(known / name)
        self._folder, self._log = folder, folder / "x" / runlog.LOG
        self._port = 20000 + random.randrange(9000)
        self.agents = [self.start(host=True), self.start()]

    def start(self, *, host: bool = False) -> "subprocess.Popen[bytes]":
        """A torchrun that joins the others; host: it has the store by which they meet."""
        waits = f"last_call_timeout=1,keep_alive_interval=1,is_host={host:d}"
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}")
        start = ("--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 5, *where)
        run = ("--rdzv-id", "x", "--rdzv-conf", waits, "-m", "executor", "run", "x.book")
        return python(self._folder, "-m", "torch.distributed.run", *start, *run, "-o", "x", **STEP)

    def wait(self, until: Callable[[], bool], what: str) -> float:
        """The seconds until this is so."""
        begun = time.monotonic()
        while not until():
            if time.monotonic() > begun + LATE_S:
                self.end()
                sys.exit(f"{what} does not come\n{(self._folder / 'said').read_text()}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def at(self, devices: int, steps: int) -> bool:
        """True when a start on so many devices has made so many steps."""
        with suppress(OSError):
            head, *rows = self._log.read_bytes().split(b"\n")
            begun = [n for n, row in enumerate(rows) if b'"type":"restart"' in row]
            own = rows[begun[-1] :] if begun else rows
            made = sum(b'"type":"step"' in row for row in own)
            return head.count(b'"cpu') == devices and made >= steps
        return False

    def lose(self, agent: "subprocess.Popen[bytes]") -> None:
        """Kill it and all that it has started."""
        for pid in (agent.pid, *children(agent.pid)):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()

    def end(self) -> None:
        for agent in self.agents:
            self.lose(agent)


def history(folder: Path, known: Path) -> tuple[float, float]:
    """Seconds from the loss, and from the begin of another torchrun, to the next step."""
    run = Run(folder, known)
    run.wait(lambda: run.at(4, 20), "the first step")
    run.lose(run.agents[1])
    lost_s = run.wait(lambda: run.at(2, 1), "a step without them")
    run.wait(lambda: run.at(2, 20), "the twentieth step without them")
    run.agents[1] = run.start()
    back_s = run.wait(lambda: run.at(4, 1), "a step with them again")
    codes = [agent.wait(LATE_S) for agent in run.agents]
    if codes != [0, 0]:
        sys.exit(f"exit codes {codes}\n{(folder / 'said').read_text()}")
    return lost_s, back_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, metavar="N")
    given = parser.parse_args()
    rows = [("run", "lost, s", "back, s", "bits")]
    with TemporaryDirectory() as made:
        known = Path(made) / "known"
        known.mkdir()
        prepared(known)
        found = []
        for number in range(given.times):
            own = Path(made) / str(number)
            found.append(history(own, known))
            wrong = differs(own, known)
            rows.append((str(number), *(f"{one:.1f}" for one in found[-1]), wrong or "the same"))
    rows.append(("median", *(f"{median(one):.1f}" for one in zip(*found, strict=True)), ""))
    print("\n".join(columns(rows, numbers=True)))
    sys.exit(any(row[3] not in ("the same", "") for row in rows[1:]))


if __name__ == "__main__":
    main()
