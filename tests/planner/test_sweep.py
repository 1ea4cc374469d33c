"""What if: other links, other budgets, other microbatches."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic, texts, timetables
from support.cli import planner_cli, succeeded
from support.stored import as_stored

import plans
import profiles
from planner import NoPlanFound, Problem, build
from planner.inputs.whatif import only_microbatch, override
from planner.sweep import Setting, bottleneck, in_memory_bytes, judged, no_longer, sweep
from planner.sweep_table import (
    Line,
    Sweep,
    SweepOutcome,
    SweepRow,
    figure,
    side_by_side,
    table,
    to_json,
)
from plans.schema import Op, Plan, Program, RoundKind, Segment
from plans.timing import device_times, step_us
from profiles.errors import FormatError
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick")

MIB = 1 << 20
GB = 10**9
SLOW = GB // 5


def chain(**given: int) -> Profile:
    """Four layers of a MiB each, link-bound on 1 GB/s; the rate with both busy is 0.8 GB/s."""
    task = synthetic.task("t", layers=4, steps=30, batch=4, heterogeneous=False)
    sizes = {"usable_bytes": 64 * MIB, "bytes_per_s": GB, "both_bytes_per_s": 8 * GB // 10}
    return synthetic.profile(task, **(sizes | given))


def batches() -> Profile:
    """The chain with whole batches only, which takes a third of the time to plan."""
    return only_microbatch(chain(), 4)


# Overrides


# What a plan says


def test_bottleneck_is_the_stream_that_is_busiest_in_a_period() -> None:
    """Not the one with the longest op, and its share is of the period."""
    program = timetables.plan().programs[0]
    ops = (
        Op("a.s0.B0", "0.compute", 0, 100),
        Op("a.s0.P0", "0.h2d", 0, 60),
        Op("a.s0.P1", "0.h2d", 60, 130),
        Op("a.s0.U0", "host.0", 0, 90),
    )
    for own, period_us, busiest in ((ops, 260, ("h2d", 0.5)), (ops[3:], 100, ("host", 0.9))):
        changed = structs.replace(program, round=own, period_us=period_us)
        assert bottleneck(with_segments([changed], [(0, 4)])) == busiest


def with_segments(programs: Sequence[Program], parts: Sequence[tuple[int, int]]) -> Plan:
    """Task c on one device, by segments of so many rounds of a program each."""
    segments = tuple(Segment(programs[at].name, (0,), rounds, 0, 1) for at, rounds in parts)
    steps = sum(rounds for at, rounds in parts if not programs[at].evaluates)
    tasks, plan = (timetables.task("c", 1, 1, steps),), timetables.tiny()
    return structs.replace(plan, tasks=tasks, programs=tuple(programs), segments=segments)


def shaped(name: str, period_us: int, round_us: int) -> Program:
    """Task c with rounds of 40 µs of compute, and 7 µs to enter and to leave."""
    ops = (Op("c.s0.B0", "0.compute", 0, 40),)
    program = timetables.program(name, [timetables.task("c", 1, 1, 1)])
    times = {"enter_us": 4, "period_us": period_us, "round_us": round_us, "leave_us": 3}
    return structs.replace(program, round=ops, enter=(), leave=(), **times)


def test_step_is_the_mean_one_where_rounds_are_of_several_kinds() -> None:
    """80, 100 | 60 | 100, of which the last is followed by another as soon as by any."""
    kind = RoundKind((256,), 50, 60, (Op("c.s0.B0", "0.compute", 0, 30),))
    program = structs.replace(shaped("c", 80, 100), tokens=(512,), kinds=(kind,))
    plan = with_segments([program], [(0, 4)])
    (segment,) = plan.segments
    plan = structs.replace(
        plan, segments=(structs.replace(segment, kinds=((0, 2), (1, 1), (0, 1))),)
    )
    assert step_us(plan) == (80 + 100 + 60 + 80) // 4
    assert bottleneck(plan) == ("compute", (3 * 40 + 30) / (80 + 100 + 60 + 80))


def test_going_on_with_another_program_counts_as_evaluating_does_not() -> None:
    """Two programs of a task in turn; each change takes what a segment does beside its rounds."""
    one, other = shaped("c.1", 80, 90), shaped("c.2", 50, 55)
    judge = structs.replace(shaped("c.judge", 1000, 1000), evaluates=True)
    plan = with_segments([one, other, judge], [(0, 4), (2, 9), (1, 2), (2, 9), (0, 2)])
    assert step_us(plan) == (4 * 80 + 2 * 50 + 12 + 2 * 80 + 17) // 8
    assert bottleneck(plan) == ("compute", 0.5)


# Sweeps


@pytest.fixture(scope="module")
def swept() -> Sweep:
    """One budget too small, three that do, over two links."""
    return sweep(batches(), [6 * MIB, 12 * MIB, MIB, 32 * MIB], [(SLOW, SLOW), (4 * GB, 4 * GB)])


def lines(of: Sweep) -> list[list[SweepRow]]:
    found: dict[Line, list[SweepRow]] = {}
    for row in of.rows:
        found.setdefault(row.line, []).append(row)
    return list(found.values())


def test_budget_that_is_too_small_says_which_would_do(swept: Sweep) -> None:
    """With it there is a plan, with a byte less there is none."""
    row = swept.rows[0]
    assert row.outcome is None
    assert row.smallest_bytes
    (enough,) = sweep(batches(), [row.smallest_bytes], [(SLOW, SLOW)]).rows
    (short,) = sweep(batches(), [row.smallest_bytes - 1], [(SLOW, SLOW)]).rows
    assert enough.outcome
    assert not short.outcome


def test_memory_and_links_buy_time(swept: Sweep) -> None:
    """A small budget costs time, a faster link gives some back, and enough memory costs none."""
    slow, fast = (rows[1:] for rows in lines(swept))
    assert slow[0].outcome
    assert fast[0].outcome
    assert slow[0].outcome.step_us > fast[0].outcome.step_us
    assert slow[0].spill_tax
    assert slow[0].spill_tax > 1.05
    assert slow[-1].spill_tax
    assert 1 <= slow[-1].spill_tax <= 1.05


def test_rows_are_what_build_says(swept: Sweep) -> None:
    """A row is the plan of its budget and link, nothing else."""
    asked = override(batches(), h2d=SLOW, d2h=SLOW)
    problem = Problem.of(asked, devices=1, device_bytes=6 * MIB, host_bytes=None)
    plan = build(problem, profile_sha256="0" * 64)
    found = swept.rows[1].outcome
    assert found
    assert found.step_us == plan.programs[0].period_us
    assert found.gap == plan.prediction.gap_ppm / 1e6
    assert found.host_bytes == plan.host.bytes
    assert found.peak_bytes == device_times(plan)[0].peak_bytes


USUAL = Line(GB, GB, None)


def made(*steps: int | None, line: Line = USUAL) -> Sweep:
    """A line of budgets 1, 2, ... GiB with these step times, None where there is no plan."""
    rows = [
        SweepRow(
            line,
            (i + 1) << 30,
            (us and SweepOutcome(us, "h2d", 0.9, 0.1, 1, 1)) or None,
            "infeasible: x",
        )
        for i, us in enumerate(steps)
    ]
    return Sweep(tuple(rows), estimated=False, emulated="")


def test_knee_is_the_smallest_budget_within_five_percent_of_the_best() -> None:
    """One knee per line, not at a budget without a plan, and the last budget at the latest."""
    for steps, expected in (
        ((None, 200, 105, 100), 2),
        ((None, 200, 106, 100), 3),
        ((100, 100, 100), 0),
        ((100, 103, 90), 2),
    ):
        rows = judged(made(*steps).rows, made(100).rows[0])
        assert [i for i, row in enumerate(rows) if row.knee] == [expected]


def test_more_memory_is_never_slower() -> None:
    """Where the search found less, or nothing in time, the plan of a smaller budget does."""
    rows = judged([*no_longer(made(None, 120, 130, None, 110, 115).rows)], made(100).rows[0])
    assert steps_of(rows) == [None, 120, 120, 120, 110, 110]
    assert [bool(row.problem) for row in rows] == [True] + [False] * 5
    assert [row.spill_tax for row in rows[1:]] == [1.2, 1.2, 1.2, 1.1, 1.1]
    assert [row.knee for row in rows] == [False] * 4 + [True, False]


def test_faster_link_is_never_slower() -> None:
    """A slower link's plan does, of as many bytes and as large microbatches."""
    slow, fast, other = (Line(GB, GB, 1), 130, 110), (Line(GB, 2 * GB, 1), 140, 105), GB // 2
    across, large = (Line(2 * GB, other, 1), 150, 100), (Line(2 * GB, 2 * GB, 2), None, 120)
    lines = [fast, across, slow, large]
    rows = [row for line, *steps in lines for row in made(*steps, line=line).rows]
    assert steps_of([*no_longer(rows)]) == [130, 105, 150, 100, 130, 110, None, 120]


def steps_of(rows: Sequence[SweepRow]) -> list[int | None]:
    return [row.outcome.step_us if row.outcome else None for row in rows]


def texted() -> Profile:
    """A task whose samples have lengths."""
    task = texts.text_task(layers=2, batch=4, steps=4, formula=(2_000_000, 3_000_000, 50_000))
    return synthetic.profile(task, usable_bytes=64 * MIB, bytes_per_s=GB)


LENGTHS = {"text": np.array(texts.LENGTHS, np.uint32)}


def test_samples_with_lengths_have_rows_that_say_how_they_are_packed() -> None:
    """Too little for the longest one, just enough, and as much as there is use for."""
    profile = texted()
    found = sweep(profile, [MIB, 16 * MIB, in_memory_bytes(profile)], lengths=LENGTHS)
    short, tight, plenty = found.rows
    assert short.outcome is None
    assert short.smallest_bytes
    assert tight.outcome
    assert plenty.outcome
    assert MIB < short.smallest_bytes <= 16 * MIB
    assert tight.outcome.step_us > plenty.outcome.step_us
    assert tight.spill_tax == tight.outcome.step_us / plenty.outcome.step_us
    assert (plenty.spill_tax, plenty.knee) == (1, True)
    assert plenty.outcome.layout.startswith("1x1, ")
    assert "layout" in table(found)


def test_lengths_that_are_not_there_are_refused() -> None:
    """As sizes of microbatches are, of which each has its own."""
    with pytest.raises(FormatError, match="text: its samples have lengths, which are not given"):
        sweep(texted(), [64 * MIB])
    with pytest.raises(FormatError, match=r"text: .* with which --microbatch does not go"):
        sweep(texted(), [64 * MIB], microbatches=[256], lengths=LENGTHS)


def test_time_limit_is_a_row_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing in time says so where its numbers would be."""

    def slow(*_: object, seconds: float, **__: object) -> Plan:
        raise NoPlanFound(f"nothing in {seconds} s; raise --time-limit")

    monkeypatch.setattr("planner.sweep.build", slow)
    found = sweep(chain(), [8 * MIB], setting=Setting(seconds=3))
    assert found.rows[0].outcome is None
    assert "8.0 MiB  nothing in 3 s; raise --time-limit" in table(found)


# For people and scripts


def test_words_of_sweeps() -> None:
    """A row for each budget with its knee, or with what would do; models side by side."""
    found = made(None, 200_000, 105_000, 100_000)
    whole = replace(found, rows=judged(found.rows, made(90_000).rows[0]), emulated="emulated")
    both = side_by_side({"here": whole, "there": made(None, 2_000_000)})
    as_stored("sweep", f"{table(whole)}\n\n{both}")


def test_estimates_are_called_so() -> None:
    """Nobody takes a formula for a measurement: in the table, in JSON, on the picture."""
    found = sweep(structs.replace(batches(), estimated=True), [32 * MIB])
    assert table(found).startswith("times are estimated and emulated\n")
    assert to_json(found)["estimated"] is True
    assert "estimated" in figure(found).axes[0].get_ylabel()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    profiles.save("p.json", batches())
    return tmp_path


def test_sweep_command_prints_rows_and_draws(folder: Path) -> None:
    flags = ("--device-memory", "1MiB,6MiB,32MiB", "--h2d", "1GB/s,2GB/s", "--plot", "x.png")
    found = json.loads(succeeded(planner_cli("sweep", "p.json", *flags, "--json")).out)
    assert [(row["device_bytes"], row["h2d_bytes_per_s"]) for row in found["rows"]] == [
        (size * MIB, rate * GB) for rate in (1, 2) for size in (1, 6, 32)
    ]
    assert all(row["d2h_bytes_per_s"] == GB for row in found["rows"])
    assert found["rows"][0]["smallest_bytes"] > MIB
    assert found["rows"][1].keys() >= {"step_us", "spill_tax", "bottleneck", "gap", "host_bytes"}
    assert Path("x.png").stat().st_size > 1000


def test_rates_of_both_directions_go_side_by_side(folder: Path) -> None:
    """Two links, not four; one rate alone goes with each of the others."""
    size = ("--device-memory", "32MiB", "--json")
    paired = ("--h2d", "1GB/s,2GB/s", "--d2h", "3GB/s,4GB/s")
    spread = ("--h2d", "1GB/s,2GB/s", "--d2h", "3GB/s")
    for flags, expected in ((paired, [(1, 3), (2, 4)]), (spread, [(1, 3), (2, 3)])):
        found = json.loads(succeeded(planner_cli("sweep", "p.json", *size, *flags)).out)["rows"]
        rates = [(row["h2d_bytes_per_s"] // GB, row["d2h_bytes_per_s"] // GB) for row in found]
        assert rates == expected


def test_sweep_without_any_plan_is_infeasible(folder: Path) -> None:
    """Exit code 3, and the table still says what would do."""
    answer = planner_cli("sweep", "p.json", "--device-memory", "1MiB,2MiB")
    assert answer.code == 3
    assert answer.out.count("infeasible: smallest --device-memory that would do: ") == 2
    assert "bottleneck" not in answer.out


def test_built_plan_has_the_overridden_links(folder: Path) -> None:
    """The run's pace follows, the override is on record, and JSON tells the period."""
    flags = ("--device-memory", "8MiB", "--h2d", "4GB/s", "--d2h", "2GB/s", "--json")
    found = json.loads(succeeded(planner_cli("build", "p.json", "-o", "x.json", *flags)).out)
    succeeded(planner_cli("check", "x.json"))
    plan = plans.load("x.json")
    pace = plan.devices[0].emulation
    assert pace
    assert (pace.h2d_bytes_per_s, pace.d2h_bytes_per_s) == (4 * GB, 2 * GB)
    assert plan.provenance["h2d"] == "4000000000 bytes/s"
    assert found["period_us"] == plan.programs[0].period_us
    assert found["periods_us"] == {"t": plan.programs[0].period_us}
