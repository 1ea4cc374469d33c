"""A plan in words."""

import json
from pathlib import Path

import msgspec
import pytest
from support import noded, sketched, timetables
from support.cli import planner_cli, refused, succeeded
from support.kinded import kinded

from planner.views.show import describe
from planner.views.summary import summary
from plans.prediction import Alternative
from plans.timing import kinds_of, step_us
from profiles.units import show_us


def _lines(text: str, head: str) -> list[str]:
    """The lines of a section, its heading first."""
    return next(part for part in text.split("\n\n") if part.startswith(head)).splitlines()


def _section(text: str, head: str) -> list[list[str]]:
    """The words of each line of a section, without its first line."""
    return [line.split() for line in _lines(text, head)[1:]]


def test_summary_names_makespan_bound_and_gap() -> None:
    """The first line is the result."""
    first = describe(timetables.tiny()).splitlines()[0]
    assert first.endswith("makespan 200 µs, link bound 180 µs, gap 10.00 %")


def test_devices_have_their_memory_and_their_busy_share() -> None:
    """Compute of 100 in 200 µs is half busy, and copies of 70 µs beside no compute are exposed."""
    row = next(line for line in describe(timetables.tiny()).splitlines() if line[2:7] == "0 box")
    expected = "0 box cpu 8.0 MiB 5.0 MiB 50.0% 50.0% 70 µs"
    assert row.split() == expected.split()


def test_alike_neighbour_shards_share_a_line() -> None:
    """One resident and two streamed shards are two lines, with layer ranges and bytes."""
    lines = describe(timetables.plan(shards=3)).splitlines()
    place = lines.index("  a: steps 4, batch 8 = 2 x 4, work.py:tasks")
    assert lines[place + 1 : place + 4] == [
        "    a step: 2 microbatches of 4, not compared with the whole batch (its profile does not "
        "say)",
        "    s0: layer 0, resident, updated on the host, parameters 1.0 MiB",
        "    s1-s2: layers 1-2, streamed, updated on the host, parameters 2.0 MiB",
    ]


def test_segments_come_in_order_of_time() -> None:
    """The table of segments ascends by start."""
    rows = _section(describe(timetables.plan()), "segments")[1:]
    assert [row[4] for row in rows] == ["ab", "d", "c"]


def test_many_segments_are_cut_with_a_count() -> None:
    """A plan of a hundred turns lists the first and says how many are left."""
    plan = timetables.plan()
    many = msgspec.structs.replace(plan, segments=plan.segments[:1] * 100)
    assert _lines(describe(many), "segments")[-1] == "  … and 76 more segments"


def test_bounds_come_best_first_with_their_gaps() -> None:
    """The bound that the plan is certified by is the first."""
    rows = _section(describe(timetables.tiny()), "bounds")[1:]
    assert rows == [["link", "180", "µs", "10.00%"], ["compute", "100", "µs", "50.00%"]]


def test_round_lists_ops_with_times() -> None:
    """Each stream of the tiny round has its one op."""
    lines = describe(timetables.tiny()).splitlines()
    assert "  0.compute: s0.B0@40+100" in lines
    assert "  host.0: s0.U0@170+30" in lines


def test_long_rounds_are_cut_with_a_count() -> None:
    """A stream of 34 ops is listed to its eighth, and says that 26 are left."""
    lines = describe(timetables.plan(shards=7, microbatches=2)).splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("round of d"))
    assert lines[head + 1].count("@") == 8
    assert lines[head + 1].endswith("… and 26 more")


@pytest.mark.parametrize("emulated", [False, True])
def test_emulated_times_are_called_so(emulated: bool) -> None:
    """The word stands beside the makespan when and only when devices are paced."""
    first = describe(timetables.plan(emulated=emulated)).splitlines()[0]
    assert first.endswith("(emulated)") is emulated


SAMPLE = Path(__file__).parents[3] / "plans" / "sample.json"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--alternatives --task nobody", "the plan has no task 'nobody'; it has gpt-1e-4, "),
        ("--task gpt-1e-4", "--task says of which task --alternatives tells; give"),
        ("--round gpt-1e-4", "give --gantt too"),
        ("--copies", "--copies says what --gantt draws; give --gantt too"),
        ("--gantt new.png --round gpt-1e-4:50", "gpt-1e-4 has the rounds 0 to 49"),
    ],
)
def test_questions_without_an_answer_are_usage_errors(
    options: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, and no picture."""
    monkeypatch.chdir(tmp_path)
    refused(planner_cli("show", SAMPLE, *options.split()), 2, text)
    assert list(tmp_path.iterdir()) == []


def test_json_of_a_plan_is_what_build_prints() -> None:
    """Makespan, bound and gap for scripts."""
    found = json.loads(succeeded(planner_cli("show", SAMPLE, "--json")).out)
    assert found["makespan_us"] >= found["lower_bound_us"] > 0


def test_a_program_on_several_devices_says_what_each_of_them_does() -> None:
    """Its layout, and for each device its shards, the share of a round that it computes, the bubble
    that is left, its peak and its exposed copies."""
    plan = sketched.plan(depth=2, replicas=2)
    program = plan.programs[0]
    layout, head, *rows = _section(describe(plan), "a on devices 0-3, a round every ")
    assert " ".join(layout) == "a: layout 2x2: s0 on 0, 1; s1 on 2, 3"
    assert head == ["device", "shards", "busy", "bubble", "peak", "exposed", "copies"]
    for device, row in enumerate(rows):
        ops = [op for op in program.round if op.stream == f"{device}.compute"]
        busy = sum(op.end_us - op.start_us for op in ops) / program.period_us
        assert row[:4] == [str(device), f"s{device // 2}", f"{busy:.1%}", f"{1 - busy:.1%}"]
        assert row[4:6] == [f"{10 - 2 * device}.0", "MiB"]


def test_a_program_says_how_far_it_is_from_the_bound_of_its_layout() -> None:
    """That of what was taken, not of others that were tried."""
    plan = sketched.plan(depth=2, replicas=2)
    period = plan.programs[0].period_us
    taken = Alternative(
        task="a", devices=4, layout="2x2", order="1f1b", microbatch=1, bound_us=period * 3 // 4
    )
    other = msgspec.structs.replace(taken, bound_us=1, why_not="takes longer")
    solver = msgspec.structs.replace(plan.solver, alternatives=(other, taken))
    told = describe(msgspec.structs.replace(plan, solver=solver))
    head = next(line for line in told.splitlines() if line.startswith("a on devices 0-3"))
    assert head.endswith(f"; of this layout at least {show_us(period * 3 // 4)}, gap 25.0%")
    assert "of this layout" not in describe(plan)


def test_programs_on_one_device_have_no_layout() -> None:
    assert "layout" not in describe(timetables.plan())


def test_memory_tells_devices_of_a_program_apart() -> None:
    rows = _section(describe(sketched.plan(depth=2)), "memory of a program's device")
    assert [" ".join(row[:3]) for row in rows[1:]] == ["a, device 0", "a, device 1"]


@pytest.mark.parametrize(("replicas", "rows"), [(8, [16, 16, 16]), (16, [10, 10, 8])])
def test_many_devices_that_are_alike_share_rows(replicas: int, rows: list[int]) -> None:
    """In the tables of devices, of a program and of its memory, each device in one row; up to
    sixteen have a row each."""
    plan = sketched.plan(depth=2, microbatches=16, replicas=replicas)
    tables = [_section(describe(plan), head) for head in ("devices", "a on", "memory of a")]
    labels = [
        [" ".join(row).partition(" box")[0] for row in tables[0] if "box" in row],
        [
            " ".join(row).partition(" s")[0]
            for row in tables[1][1:]
            if row[1][0] == "s" and row[0][0].isdigit()
        ],
        [" ".join(row[2 : row.index("MiB") - 1]) for row in tables[2][1:]],
    ]
    assert [len(table) for table in labels] == rows
    for table in labels:
        shown = [label.split(" ", 1)[1] if label.startswith("device") else label for label in table]
        found = [number for label in shown for number in _numbers(label)]
        assert sorted(found) == list(range(2 * replicas))


def _numbers(text: str) -> list[int]:
    """The numbers of `0-3, 6`."""
    ends = [tuple(map(int, part.split("-"))) for part in text.split(", ")]
    return [number for own in ends for number in range(own[0], own[-1] + 1)]


def test_many_streams_are_cut_with_a_count() -> None:
    """Of 32 devices' 64 streams the first 40 are listed, device by device."""
    lines = describe(sketched.plan(32, 32)).splitlines()
    assert lines[-1] == "  … and 24 more streams"
    streams = [line.split(":")[0].strip() for line in lines[-41:-1]]
    assert streams[-2:] == ["19.compute", "19.p2p"]


def test_nodes_have_a_host_store_each() -> None:
    """Devices say their node."""
    lines = _lines(describe(noded.turns()), "devices")
    assert [line.split("  ")[1] for line in lines[2:7]] == [
        f"{k} cpu{k}, node {k // 2}" for k in range(5)
    ]
    assert [line.split()[:5] for line in lines[7:10]] == [
        ["host", "store", "of", "node", str(node)] for node in range(3)
    ]


def test_kinds_of_rounds_have_their_tokens_and_rounds() -> None:
    """A line for each, in the summary for scripts too; the task says its samples."""
    plan = kinded("resident", [[512, 512], [256], [512]], ((0, 2), (1, 3), (0, 1)))
    every = [show_us(kind.period_us) for kind in kinds_of(plan.programs[0])]
    blocks = describe(plan).split("\n\n")
    head, columns, *lines = next(b for b in blocks if b.startswith("kinds of")).splitlines()
    assert head == "kinds of rounds of solo: the most tokens of each microbatch"
    assert columns.split() == ["kind", "rounds", "every", "tokens"]
    assert [line.split() for line in lines] == [
        ["0", "3", *every[0].split(), "2", "x", "512"],
        ["1", "3", *every[1].split(), "256"],
        ["2", "0", *every[2].split(), "512"],
    ]
    assert "  a: steps 6, batch 5 samples in up to 2 microbatches of 512 tokens," in blocks[2]
    told = [(kind["tokens"], kind["rounds"]) for kind in summary(plan)["kinds"]["solo"]]
    assert told == [([512, 512], 3), ([256], 3), ([512], 0)]
    assert summary(plan)["period_us"] == step_us(plan) != plan.programs[0].period_us
