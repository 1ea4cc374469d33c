"""The page: what it says without a script, that texts stay texts, and that its commands parse."""

import argparse
import re
import shlex
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace
from support import timetables
from support.cli import planner_cli, refused, succeeded
from support.timetables import PLAN_SHA256 as SHA

import planner.cli.parser
import plans
from planner.inputs import Options
from planner.report import page, report
from planner.report.report import BESIDE, COMPUTE
from planner.views import bounds, compare, compared, device_rows
from plans.runlog import CheckpointRecord, DropRecord, RunLog, encode
from plans.schema import Plan
from plans.timing import device_times
from profiles import console
from profiles.codec import file_sha256

ROOT = Path(plans.__file__).parents[1]


def words(plan: Plan, *logs: RunLog, **others: RunLog) -> str:
    """What the page says, without its marks."""
    beside = {name: [log] for name, log in others.items()}
    text = page(report(plan, SHA, logs, others=beside)).decode()
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_tables_say_what_the_commands_say() -> None:
    """Each cell of `show` and `compare` stands in the page, without a script."""
    plan = timetables.plan()
    log = timetables.log(plan)
    told = words(plan, log)
    for rows in (bounds(plan), device_rows(plan), *compared(compare(plan, log, SHA))):
        for row in rows:
            assert " ".join(" ".join(row).split()) in told


def test_a_plan_that_was_not_run_has_a_page() -> None:
    """It says what is planned, and nothing of a run."""
    plan = timetables.plan()
    told = words(plan)
    assert "The plan trains 4 tasks on 2 devices in" in told
    assert "of which at most 10.0 % could be saved by any plan (link bound" in told
    assert "The run against its plan" not in told


def test_the_verdict_is_of_how_the_run_ended() -> None:
    """Late, killed: as far as it came."""
    plan = timetables.plan()
    log = timetables.log(plan, percent=110)
    assert "The run ended well after" in words(plan, log)
    assert "+10.0% against" in words(plan, log)
    killed = replace(log, ops=log.ops[:-3], end=None)
    assert "The run was killed after" in words(plan, killed)
    assert "3 planned ops are not in the log" in words(plan, killed)


def test_other_runs_stand_beside_the_first() -> None:
    """How each ended and its losses; the rest of the page is of the first."""
    plan = timetables.plan()
    first = timetables.log(plan, percent=110)
    lower = [replace(step, loss=step.loss / 2) for step in first.steps]
    told = words(plan, first, other=replace(first, steps=tuple(lower), end=None))
    assert "+10.0% against" in told
    assert "RUN ok" in told
    assert "other killed" in told
    assert f"loss of a: RUN {first.steps[0].loss:.4g} at step 1" in told
    assert f"other {lower[0].loss:.4g} at step 1" in told


def test_a_devices_second_is_whole() -> None:
    """Shares add up to one; compute is that of the plan."""
    plan = timetables.plan()
    for one, used in zip(report(plan, SHA).seconds, device_times(plan), strict=True):
        assert sum(one.shares.values()) == pytest.approx(10**6, abs=10)
        assert one.shares[BESIDE] >= 0
        again = one.shares["computes again for backward"]
        share = used.compute_us * 10**6 / plan.prediction.makespan_us
        assert one.shares[COMPUTE] + again == pytest.approx(share, abs=3)


def test_events_are_in_order_of_time() -> None:
    """Checkpoints and drops of the log, whenever it has them."""
    plan = timetables.plan()
    log = timetables.log(plan)
    log = replace(
        log,
        checkpoints=(CheckpointRecord("a", 2, 9_000),),
        drops=(DropRecord("b", 1, "b.s0.F0", "no memory", 5_000),),
    )
    told = words(plan, log)
    assert told.index("b: dropped in step 1 in b.s0.F0: no memory") < told.index(
        "a: checkpoint after step 2"
    )


def test_texts_stay_texts() -> None:
    """Nothing that a plan or a log says becomes part of the page."""
    bad = "</script><img src=x onerror=alert(1)>"
    plan = timetables.plan()
    plan = replace(
        plan,
        provenance={bad: bad},
        devices=tuple(replace(one, name=bad) for one in plan.devices),
        inputs={bad: "0" * 64},
    )
    log = timetables.log(plan)
    header = replace(log.header, software={bad: bad}, started=log.header.started)
    log = replace(log, header=header, drops=(DropRecord("a", 1, "", bad, 5),))
    text = page(report(plan, SHA, [log], (bad, bad))).decode()
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "onerror" in unescape(text)


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    """It needs nothing from elsewhere."""
    made = tmp_path / "r.html"
    succeeded(planner_cli("report", "plans/sample.json", "-o", made))
    assert not re.search(rb"https?:|src=|@import|url\(", made.read_bytes())


def test_a_page_follows_a_run(tmp_path: Path) -> None:
    """It says that the run goes on, and how it ended once the input has; Ctrl-C does not end it."""
    plan, made, log = "plans/sample.json", tmp_path / "r.html", tmp_path / "log.jsonl"
    run = timetables.log(plans.load(plan))
    run = replace(run, header=replace(run.header, plan_sha256=file_sha256(plan)))
    log.write_bytes(encode((run.header, *run.steps, *run.ops)))
    command = [sys.executable, "-m", "planner", "report", plan, tmp_path, "-o", made, "--follow"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as writer:
        while not made.exists():
            assert writer.poll() is None
            time.sleep(0.05)
        assert b"The run goes on after" in made.read_bytes()
        writer.send_signal(signal.SIGINT)
    assert writer.returncode == 0
    assert b"The run was killed after" in made.read_bytes()


def test_its_commands_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options that a plan tells of, and files with spaces in their names."""
    asked = Options(layout="2+1+1", net="12GB/s", h2d="1GB/s", start=(("a", 5_000_000),))
    plan = replace(timetables.plan(), provenance=asked.told())
    made = report(plan, SHA, [timetables.log(plan)], ("my plan.json", "runs/x")).commands
    parsed = list[argparse.Namespace]()
    monkeypatch.setattr(console, "run", lambda parser, line: parsed.append(parser.parse_args(line)))
    for line in (command for command in made if "executor" not in command):
        planner.cli.parser.main(shlex.split(line)[3:])
    build, check, again = parsed
    assert build.layout == asked.layout
    assert (build.net, build.h2d, build.start) == (asked.net, asked.h2d, [*asked.start])
    assert (build.device_memory, build.seed) == ((plan.devices[0].budget_bytes,), 0)
    assert build.output == check.plan == again.plan == "my plan.json"


def test_a_book_has_no_page(tmp_path: Path) -> None:
    """One line says so."""
    book = tmp_path / "x.book"
    book.write_text('{"format":"book","version":1}')
    refused(planner_cli("report", book, "-o", tmp_path / "r.html"), 2, "a book of several plans")
