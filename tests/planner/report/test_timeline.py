"""The data of a page: what it draws is what plan and log say, and it stays small."""

import base64
import json
import random
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import disked, handmade, timetables

from planner.report.host import host_memory
from planner.report.packed import packed, varints
from planner.report.timeline import NOT_RUN, Sheet, timeline
from plans import timing
from plans.ops import Lane
from plans.schema import Plan
from plans.timing import phases

REAL: dict[str, Callable[[], Plan]] = {
    **handmade.PLANS,
    "halves saved": handmade.halves_saved,
    "halves packed": handmade.halves_packed,
}


def numbers(data: bytes) -> list[int]:
    """Integers out of 7 bits a byte, as the page's script reads them."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(-(value + 1) // 2 if value % 2 else value // 2)
            value = shift = 0
    return found


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The head and the columns of what is in a page."""
    data = zlib.decompress(base64.b64decode(text))
    end = 4 + int.from_bytes(data[:4], "little")
    head = json.loads(data[4:end])
    left = iter(numbers(data[end:]))
    return head, {name: list(islice(left, count)) for name, count in head["columns"].items()}


@given(st.lists(st.integers(-(2**60), 2**60)))
def test_numbers_come_back(values: list[int]) -> None:
    """Of either sign and any size."""
    assert numbers(varints(values)) == values


def test_planned_starts_come_back() -> None:
    """Sheets, repeated as the parts say, are the plan's timeline."""
    plan = timetables.plan(rounds=3)
    head, of = unpacked(packed(timeline(plan)))
    found, first, times = [], 0, dict[int, list[tuple[int, int]]]()
    for number, (_, _, _, _, streams, _) in enumerate(head["sheets"]):
        times[number] = []
        for _, _, count in streams:
            end = 0
            for op in range(first, first + count):
                start = end + of["gap"][op]
                end = start + of["us"][op]
                times[number].append((start, end))
            first += count
    for _, sheet, start, _, rounds, _ in head["parts"]:
        period = head["sheets"][sheet][2]
        for at in (start + number * period for number in range(rounds)):
            found += [(at + begin, at + end) for begin, end in times[sheet]]
    assert sorted(found) == sorted((one.start_us, one.end_us) for one in timing.timeline(plan))


def test_actual_starts_come_back() -> None:
    """Gaps and durations, stream by stream, are the log's times."""
    plan = timetables.plan(rounds=3)
    log = timetables.log(plan, percent=130)
    head, of = unpacked(packed(timeline(plan, log)))
    found, ends, at = [], dict[tuple[int, int], int](), 0
    for segment, sheet, _, _, _, ran in head["parts"]:
        devices = head["segments"][segment][1]
        for device, lane, count in head["sheets"][sheet][4]:
            stream = devices[device], lane
            for k in range(at, at + count * ran):
                start = ends.get(stream, 0) + of["ran_gap"][k]
                ends[stream] = start + of["ran_us"][k]
                found.append((start, ends[stream]))
            at += count * ran
    assert sorted(found) == sorted((one.start_us, one.end_us) for one in log.ops)


def test_what_a_killed_run_did_not_do_is_marked() -> None:
    """Rounds that never began take no room; ops of the last round that did not run say so."""
    plan = timetables.plan(rounds=4)
    log = timetables.log(plan)
    ran = sorted(log.ops, key=lambda op: op.start_us)[: len(log.ops) // 3]
    found = timeline(plan, replace(log, ops=tuple(ran), end=None))
    assert sum(us != NOT_RUN for _, us in found.actual or ()) == len(ran)
    assert any(us == NOT_RUN for _, us in found.actual or ())
    assert len(found.actual or ()) < len(log.ops)


@pytest.mark.parametrize("name", REAL)
def test_memory_stays_within_what_the_program_takes(name: str) -> None:
    """At every moment of a steady round, of a proven plan: buffers alive, graphs and transients of
    ops; and where all of it is used it comes near."""
    plan = REAL[name]()
    for sheet in timeline(plan).sheets:
        for device, memory in enumerate(plan.program(sheet.program).memory):
            assert max(_alive(sheet, device), default=0) <= memory.bytes, (sheet.phase.name, device)


def _alive(sheet: Sheet, device: int) -> list[int]:
    """Bytes at each begin of a life or an op."""
    period = sheet.phase.period_us if sheet.phase.name == "round" else 1 << 60
    spans = [(one.start_us, one.end_us, one.bytes) for one in sheet.lives if one.device == device]
    spans += [
        (op.start_us, op.end_us, op.transient_bytes)
        for op in sheet.ops
        if op.queue.device == device and op.queue.lane is not Lane.HOST
    ]
    moments = {start % period for start, _, _ in spans}
    return [
        sum(
            size * ((t - start) // period - (t - end) // period)
            if period < 1 << 60
            else size * (start <= t < end)
            for start, end, size in spans
        )
        for t in moments
    ]


def test_a_value_lives_from_what_makes_it_to_the_last_that_reads_it() -> None:
    """Streamed parameters from their copy to the last op of the sweep, not longer."""
    plan = handmade.streamed()
    program = plan.programs[0]
    sheet = next(one for one in timeline(plan).sheets if one.phase.name == "round")
    (phase,) = (one for one in phases(program, plan.segments[0]) if one.name == "round")
    for life in sheet.lives:
        uses = [op for op in phase.ops if life.name in (*op.reads.values(), *op.writes.values())]
        ends = {op.end_us + lag * phase.period_us for op in uses for lag in (0, 1)}
        assert life.end_us in ends | {phase.period_us} or life.name.startswith("graph of ")
        assert life.start_us in {op.start_us for op in uses} | {0} or "graph" in life.name


@pytest.mark.slow
def test_a_hundred_thousand_ops_take_less_than_a_megabyte() -> None:
    """50,000 in a round and 50,000 noisy times of a run, in what the page holds."""
    plan = handmade.large(50_000)
    noise, ends = random.Random(0), dict[tuple[int, str], int]()
    streams = {op.id: op.stream for op in plan.programs[0].ops}
    log = timetables.log(plan)
    ops = []
    for op in log.ops:
        if op.round == 0:
            where = op.segment, streams[op.op]
            us = round((op.end_us - op.start_us) * noise.gauss(1.05, 0.1)) + 1
            start = max(ends.get(where, 0) + noise.randrange(5, 60), op.start_us)
            ends[where] = start + us
            ops.append(replace(op, start_us=start, end_us=start + us))
    found = timeline(plan, replace(log, ops=tuple(ops)))
    drawn = sum(len(sheet.ops) for sheet in found.sheets) + len(found.actual or ())
    assert drawn > 99_000
    assert len(packed(found)) < 900_000


def test_host_memory_is_that_of_the_tasks_that_are_not_on_the_disk() -> None:
    """Tasks in one place take turns; beside one that stays, one ends that is not written."""
    turns = [size for _, size in host_memory(disked.disked("in-turn"))]
    assert turns == [6144, 1280, 7680] * 3 + [0]
    beside = [size for _, size in host_memory(disked.disked("beside"))]
    a, b, c, c_kept = 6144, 1280, 3840, 2816
    assert beside == [a + b, a + c, a + c, a + c_kept, 0]
