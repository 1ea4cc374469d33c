"""What a book would train on machines that come and go: against a simulation tick by tick."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import synthetic

import plans
import profiles
from planner.surviving import Count, Outcome, Pace, _best, paces_of, read_trace, survive
from profiles.errors import FormatError

PACES = [Pace(2, 1.0, 5), Pace(3, 1.5, 4), Pace(4, 1.2, 4), Pace(6, 3.0, 2)]


def tick_by_tick(counts: list[Count], end: int, start: int, whole: float) -> tuple[float, float]:
    """Work that is trained in the end, and with changes that cost nothing."""
    there, kept, fresh, free = 0, 0.0, 0.0, 0.0
    now: Pace | None = None
    waits = since = 0
    begun = False
    changes = dict(counts)
    for tick in range(end):
        there = changes.get(tick, there)
        fit = [pace for pace in PACES if pace.devices <= there]
        best = max(fit, key=lambda pace: pace.rate, default=None)
        free += best.rate if best else 0.0
        if now and best and there >= now.devices:
            left = whole - (kept + fresh) % whole
            if tick not in changes or left / now.rate - left / best.rate <= start:
                best = now  # a start takes more than the others save
        if best is not now:
            if now and there >= now.devices:
                kept += fresh  # rounds end, states are kept
            fresh, since = 0.0, 0
            waits = start if begun else 0
            now = best
        if now:
            begun = True
            if waits:
                waits -= 1
                continue
            fresh, since = fresh + now.rate, since + 1
            if since % now.kept_us == 0:
                kept, fresh = kept + fresh, 0.0
    return kept + fresh, free


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 7)), min_size=1, max_size=12),
    st.integers(0, 6),
    st.sampled_from([3.3, 17.9, 1e9]),
)
def test_the_outcome_is_that_of_a_simulation_by_ticks(
    steps: list[tuple[int, int]], start: int, whole: float
) -> None:
    """Whatever comes and goes, however long a start takes, and however much is to be trained."""
    counts, at = list[Count](), 0
    for length, count in steps:
        counts.append((at, count))
        at += length
    found = survive(PACES, counts, at, start, whole=whole)
    trained, free = tick_by_tick(counts, at, start, whole)
    assert (found.trained, found.free) == (pytest.approx(trained), pytest.approx(free))
    assert found.free == pytest.approx(found.trained + found.again + found.starting + found.waiting)


def test_a_loss_costs_the_work_since_states_were_kept() -> None:
    """And the start; a device that comes costs the start alone."""
    found = survive(PACES, [(0, 3), (10, 2), (20, 3)], 30, 1)
    assert found == Outcome(
        trained=10 * 1.5 - 2 * 1.5 + 9 * 1.0 + 9 * 1.5,
        free=20 * 1.5 + 10 * 1.0,
        again=2 * 1.5,
        starting=1.0 + 1.5,
        waiting=0.0,
        changes=2,
        losses=1,
    )


def test_with_notice_nothing_is_lost_with_devices() -> None:
    """A start is what a change costs."""
    found = survive(PACES, [(0, 3), (10, 2), (20, 3)], 30, 1, notice=True)
    assert (found.again, found.starting, found.losses) == (0, 1.0 + 1.5, 1)


@pytest.mark.parametrize(("whole", "taken"), [(18.9, False), (19.1, True)])
def test_a_device_that_joins_is_used_only_where_that_pays(whole: float, taken: bool) -> None:
    """10 of the work is done when a third one comes and a start takes 3: at a rate of 1.5 instead
    of 1 that is saved where more than 9 are left. A device that goes is not asked."""
    found = survive(PACES, [(0, 2), (10, 3), (15, 2)], 20, 3, whole=whole)
    assert (found.changes, found.losses) == ((2, 1) if taken else (0, 0))
    assert found.waiting == (0 if taken else 0.5 * 5)
    assert found.free == 10 + 5 * 1.5 + 5


def test_a_run_takes_the_plan_of_the_pace_that_is_assumed() -> None:
    """Whatever number of devices there is: the fastest, of equals that for the fewest."""
    sample = plans.load(Path(plans.__file__).with_name("sample.json"))
    sizes = [
        replace(
            sample,
            devices=sample.devices * more,
            prediction=replace(sample.prediction, makespan_us=us),
        )
        for more, us in enumerate((9, 7, 7, 8, 5), 1)
    ]
    book = plans.Book(plans=tuple(sizes))
    best = _best(paces_of(book))
    for count in range(6 * len(sample.devices)):
        plan, pace = plans.fastest(book, count), best(count)
        assert (plan and len(plan.devices)) == (pace and pace.devices)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], "it has no events"),
        ([[0, "add", "a"], [5, "add", "a"]], "add of a, which is there"),
        ([[0, "remove", "a"]], "remove of a, which is not"),
        ([[9, "add", "a"], [5, "add", "b"]], "b comes before an event"),
        ([[0, "lost", "a"]], "lost of a"),
        ([["now", "add", "a"]], "whole numbers of ms"),
        ([[0, "add"]], "not enough values"),
        (7, "it has no events"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, events: object, told: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(events))
    with pytest.raises(FormatError, match=told):
        read_trace(str(file))


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
