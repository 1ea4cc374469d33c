"""A build in several processes, which end with it however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import synthetic

import profiles
from planner.inputs import Effort
from planner.processes import each

ROOT = Path(__file__).parents[2]


def together(group: int) -> int:
    """How many processes of this group there are; those that nobody has waited for count not."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        found += int(of) == group and state != "Z"
    return found


def waited(process: subprocess.Popen[str], enough: int, most: int) -> None:
    """Until so many processes are there, in half a minute at most."""
    for _ in range(3_000):
        if enough <= together(process.pid) <= most:
            return
        time.sleep(0.01)
    raise AssertionError(f"{together(process.pid)} processes")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_build(kind: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, which all processes of a terminal hear, and SIGTERM are one line; no file is left."""
    tasks = [synthetic.task(f"t{n}", layers=16 + n, seed=n, batch=4) for n in range(4)]
    profiles.save(tmp_path / "x.json", synthetic.profile(*tasks, usable_bytes=24 << 20))
    command = ("build", "x.json", "-o", "plan.json", "--jobs", "2", "--time-limit", "600")
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        waited(process, 4, 4)  # two workers, and what Python has beside them
        if kind == signal.SIGINT:
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        _, err = process.communicate(timeout=30)
        waited(process, 0, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if kind != signal.SIGKILL:
        assert process.returncode == 128 + kind
        assert err == "planning 4 task(s) on 1 device(s)\nerror: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_later_searches_have_what_is_left_of_the_time() -> None:
    """One that takes longer than its share leaves the next one a share of the rest."""
    given = list[float]()

    def hungry(seconds: float, effort: Effort) -> None:
        given.append(effort.left)
        time.sleep(seconds)

    each(hungry, [0.12, 0, 0], Effort(time.monotonic() + 0.3, 0), 1)
    assert [round(left, 1) for left in given] == [0.1, 0.1, 0.2]
