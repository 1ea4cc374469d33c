"""Emulated compute: ops of slow devices last as long as planned, and can be interrupted."""

import json
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import failing_soon, tasks_for
from support.cli import executor_cli, succeeded
from support.clock import Clock
from support.fit import fit
from support.lab import LAB
from support.retime import retimed
from support.same import assert_same

import profiles
from executor import report, run
from executor.devices import cpu
from executor.devices.device import Device as Face
from executor.devices.device import Queue, QueueKind
from executor.devices.machine import open_devices
from executor.devices.pace import least_us, wait_until
from executor.driver import Options as RunOptions
from executor.errors import RunError, UsageError
from executor.profiling import layer, profiler
from executor.profiling import links as link_profiler
from executor.profiling.layer import timed
from executor.profiling.profiler import Options, profile, table
from planner.inputs.residuals import residuals
from planner.views import compare
from planner.views import table as comparison
from planner.views.show import describe
from plans import runlog
from plans.schema import Device, Plan, Program
from plans.trace import happened
from profiles.schema import Emulation, Link, Rate

PACED = Emulation(10**9, 10**9, 20, compute_slowdown=7)
LONG_US = 30_000
TOYS = str(Path(__file__).parents[2] / "support" / "toys.py")


def slowed(plan: Plan, us: int, emulation: Emulation = PACED) -> Plan:
    """The plan on slow devices, each op of which lasts so long."""
    devices = tuple(structs.replace(device, emulation=emulation) for device in plan.devices)
    programs = tuple(_lasting(program, us) for program in plan.programs)
    return retimed(structs.replace(plan, devices=devices, programs=programs))


def _lasting(program: Program, us: int) -> Program:
    ops = (structs.replace(op, start_us=0, end_us=us) for op in program.round)
    return structs.replace(program, round=tuple(ops))


@pytest.mark.parametrize("name", ["resident", "streamed"])
def test_ops_last_as_long_as_planned(name: str, tmp_path: Path) -> None:
    """Compute and updates, on the device and on the host; bits do not change."""
    tasks = tasks_for(handmade.PLANS[name]())
    plan = slowed(fit(handmade.PLANS[name](), tasks), LONG_US)
    result = run(plan, tasks, RunOptions(folder=tmp_path))
    assert_same(plan, tasks, result)
    log = runlog.load(tmp_path)
    ops = list(happened(plan, log))
    computed = [o for o in ops if o.stream.endswith("compute") or o.stream.startswith("host")]
    assert {o.op.id.partition(".")[2].split(".")[1][0] for o in computed} >= {"B", "U"}
    assert all(o.end_us - o.start_us >= LONG_US - 1 for o in computed)
    assert result.actual_us >= plan.prediction.makespan_us // 2


def test_other_devices_wait_for_nothing() -> None:
    """Only compute of slowed devices has a least time."""
    plan = slowed(handmade.streamed(), LONG_US)
    (device,), ops = plan.devices, plan.programs[0].round
    quick = structs.replace(device, emulation=structs.replace(PACED, compute_slowdown=1))
    real = structs.replace(device, emulation=None)
    assert {least_us(other, op) for other in (quick, real) for op in ops} == {0}
    kinds = {op.stream.partition(".")[2]: least_us(device, op) for op in ops}
    assert kinds == {"compute": LONG_US, "h2d": 0, "d2h": 0, "0": LONG_US}


SLOW_LINK = Device("cpu", "cpu", 1 << 16, 1, Emulation(1 << 19, 1 << 19, 0, compute_slowdown=2))
COPY_S = (1 << 16) / (1 << 19)


def _none() -> None:
    """Nothing ends a wait early."""


def _next(queue: Queue) -> float:
    """When the next op begins, which does nothing."""
    start = queue.begin()
    queue.end(start, 0, _none)
    return start.seconds()


@pytest.mark.parametrize("kind", ["compute", "h2d"])
def test_a_thread_that_comes_late_to_an_op_catches_up(kind: QueueKind, clock: Clock) -> None:
    """An op begins when what it waits for ended, and lasts as long as planned from there."""
    (device,) = open_devices([SLOW_LINK], [1 << 16])
    queue = device.queue(kind)
    queue.enter()
    waited_for = queue.mark()
    clock.sleep(0.002)
    queue.wait(waited_for, _none)
    start = queue.begin()
    if kind == "h2d":
        device.copy_in(device.slab, torch.zeros(1 << 16, dtype=torch.uint8))
    end = queue.end(start, 0 if kind == "h2d" else round(COPY_S * 1e6), _none)
    assert start.seconds() == waited_for.seconds()
    assert end.seconds() == pytest.approx(start.seconds() + COPY_S, abs=1e-9)
    assert clock.now >= end.seconds()
    assert _next(queue) == end.seconds()


def test_an_op_that_is_late_ends_when_it_is_done(clock: Clock) -> None:
    """Work that takes longer than planned is not hidden, and what follows begins after it."""
    (device,) = open_devices([SLOW_LINK], [1 << 16])
    queue = device.queue("compute")
    queue.enter()
    start = queue.begin()
    clock.sleep(0.003)
    done = clock.now
    end = queue.end(start, 1000, _none)
    assert end.seconds() == pytest.approx(done, abs=1e-8)
    assert _next(queue) == end.seconds()


@pytest.mark.parametrize("slowdown", [1, 2])
def test_a_copy_that_its_thread_comes_late_to(slowdown: int, clock: Clock) -> None:
    """It ends with its link where compute is emulated, but not long before it is done; elsewhere
    when it is done."""
    quick = Emulation(1 << 40, 1 << 40, 0, compute_slowdown=slowdown)
    (device,) = open_devices([structs.replace(SLOW_LINK, emulation=quick)], [256])
    for late_s in (0.001, 0.02):
        queue = device.queue("h2d")
        queue.enter()
        queue.wait(queue.mark(), _none)
        clock.sleep(late_s)
        came = clock.now
        start = queue.begin()
        device.copy_in(device.slab, torch.zeros(256, dtype=torch.uint8))
        end = queue.end(start, 0, _none)
        assert (end.seconds() < came) is (slowdown > 1)
        assert end.seconds() > start.seconds() + late_s - 0.003


def test_compute_that_is_not_emulated_begins_when_it_does(clock: Clock) -> None:
    """Its ops take the time that they take, from when their thread runs them."""
    emulation = structs.replace(SLOW_LINK.emulation, compute_slowdown=1)
    (device,) = open_devices([structs.replace(SLOW_LINK, emulation=emulation)], [1 << 16])
    queue = device.queue("compute")
    queue.enter()
    clock.sleep(0.001)
    assert _next(queue) == clock.now


@pytest.mark.parametrize(
    ("devices", "cores", "slowdown"),
    [(1, 2, 1), (2, 4, 1), (1, 1, 3), (2, 2, 3), (3, 4, 3), (12, 2, 18)],
)
def test_devices_compute_as_much_slower_as_the_cores_ask_for(
    devices: int, cores: int, slowdown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at all where half of the cores are left, else until two thirds are."""
    monkeypatch.setattr(profiler, "cores", lambda: range(cores))
    assert profiler.slowdown(devices) == slowdown


@pytest.mark.parametrize(("asked", "told"), [((), 3), (("--slow-compute", 1), 1)])
def test_a_profile_is_of_slower_devices_unless_it_is_asked_otherwise(
    asked: tuple[object, ...], told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices on two cores, and the table says it."""
    monkeypatch.setattr(profiler, "cores", lambda: range(2))
    target = ("-o", tmp_path / "p.json", "--device-memory", "1MiB", "--samples", 1)
    answer = succeeded(executor_cli("profile", f"{TOYS}:mlp", *target, *asked))
    (emulation,) = {d.emulation for d in profiles.load(tmp_path / "p.json").machine.devices}
    assert emulation.compute_slowdown == told
    assert ("times slower" in answer.out) is (told > 1)


@pytest.mark.timeout(60)
def test_a_run_can_be_ended_while_an_op_waits() -> None:
    """A failure elsewhere ends the run long before a paced op would have ended."""
    tasks = tasks_for(handmade.fleet())
    plan = slowed(fit(handmade.fleet(), tasks), 600_000_000)
    with pytest.raises(RunError, match="enough"):
        run(plan, [failing_soon(tasks[0]), *tasks[1:]])


def test_waiting_is_never_short() -> None:
    """The moment has come when the wait is over, whether it is near, far, or past."""
    for seconds in (-1.0, 0.0, 30e-6, 0.01, 0.12):
        end, checks = time.perf_counter() + seconds, [0]
        wait_until(end, lambda checks=checks: checks.append(0))  # type: ignore[misc]
        assert time.perf_counter() >= end
        assert len(checks) > (seconds > 0)


def test_times_are_told_as_many_times_as_long() -> None:
    """The measured time, multiplied by the slowdown."""
    lab = replace(LAB, samples=3, slowdown=7)
    (time_,) = timed(lambda: (2_000_000,), lab)
    assert (time_.median_us, time_.p10_us, time_.p90_us) == (14_000, 14_000, 14_000)


def test_a_profile_of_slow_devices_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies inside the device are its work and take longer, those of links do not; fewer devices
    than there are compute at once while one is measured."""
    rate = Rate(bytes_per_s=7000, latency_us=3)
    monkeypatch.setattr(link_profiler._Line, "rate", lambda *_: rate)
    options = Options(1 << 20, PACED, devices=8, samples=1, host_bytes=1 << 30)
    found = profile(f"{TOYS}:mlp", options)
    assert found.machine.load == 2
    inside = Rate(bytes_per_s=1000, latency_us=21)
    links = Link("h2d", rate, rate), Link("d2h", rate, rate), Link("d2d", inside, inside)
    assert found.machine.devices[0].links == links
    assert table(found).endswith("times are emulated compute, 7 times slower")
    assert "7 times slower" in found.provenance["timing"]


def test_layers_are_measured_beside_copies_and_updates_beside_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a round: copies go both ways while a layer computes, and it computes while updates
    run."""
    beside: list[str] = []
    copying, loaded = layer.copying, layer.loaded

    def copies(device: Face) -> AbstractContextManager[None]:
        beside.append("copies")
        return copying(device)

    def computes(load: int, *given: Any) -> AbstractContextManager[None]:
        beside.append(f"{load - 1} computing")
        return loaded(load, *given)

    monkeypatch.setattr(layer, "copying", copies)
    monkeypatch.setattr(layer, "loaded", computes)
    profile(f"{TOYS}:mlp", Options(1 << 20, PACED, devices=1, samples=1, host_bytes=1 << 30))
    assert set(beside) == {"copies", "0 computing", "1 computing"}


def test_every_table_says_that_compute_is_emulated(tmp_path: Path) -> None:
    """The report of a run, in words and for scripts; the plan in words; the comparison."""
    tasks = tasks_for(handmade.resident())
    plan = slowed(fit(handmade.resident(), tasks), 1000)
    result = run(plan, tasks, RunOptions(folder=tmp_path))
    words = "emulated compute, 7 times slower"
    assert f"({words})" in report.table(plan, result, tmp_path)
    assert json.loads(report.to_json(plan, result, tmp_path))["compute_slowdown"] == 7
    assert words in describe(plan)
    read = runlog.load(tmp_path)
    found = compare(plan, read, read.header.plan_sha256)
    assert words in comparison(found)
    assert (found.emulated, found.plan.compute_slowdown) == (True, 7)
    taught = residuals(plan, read, plan_sha256="0" * 64, log_sha256="1" * 64)
    assert taught.emulation == PACED
    ratios = [r for by in taught.tasks.values() for ones in by.values() for r in ones.values()]
    assert min(ratios) >= 1_000_000


BYTES, RATE = 1 << 16, 1 << 22
LATENCY_S = 0.001
SPEC = Device("cpu", "cpu", BYTES, 1, Emulation(RATE, 2 * RATE, 1000))
ALONE_S = BYTES / RATE + LATENCY_S


def at_once(devices: list[Face], clock: Clock) -> list[float]:
    """Seconds until each of these has a copy that all are given in one moment."""
    ends: list[float] = []
    with mock.patch.object(cpu, "wait_until", ends.append):
        for device in devices:
            device.copy_in(device.slab, torch.zeros(BYTES, dtype=torch.uint8))
    return [end - clock.now for end in ends]


def test_a_copy_lasts_as_long_as_on_its_link(clock: Clock) -> None:
    """Latency and bytes over rate, each direction at its own."""
    (device,) = open_devices([SPEC], [BYTES])
    host = torch.zeros(BYTES, dtype=torch.uint8)
    device.copy_in(device.slab, host)
    assert clock.passed() == pytest.approx(ALONE_S)
    device.copy_out(host, device.slab)
    assert clock.passed() == pytest.approx(BYTES / (2 * RATE) + LATENCY_S)


def test_what_is_sent_to_another_device_has_a_link_of_its_own(clock: Clock) -> None:
    """A send lasts as long as there, not as on the sixteen times slower one to the host; devices
    without such a link use that."""
    fast = structs.replace(SPEC, emulation=Emulation(RATE, RATE // 16, 1000, 1, RATE))
    same = structs.replace(SPEC, emulation=Emulation(RATE, RATE, 1000))
    one, other, joined = open_devices([fast, fast, same], [BYTES] * 3)
    one.slab.fill_(7)
    for device in (one, joined):
        device.send(other.slab, device.slab)
        assert clock.passed() == pytest.approx(ALONE_S)
        assert torch.equal(other.slab, device.slab)


def test_devices_of_a_plan_draw_the_same_random_numbers() -> None:
    """A plan with both kinds of generators is refused before a device is opened."""
    other = structs.replace(SPEC, kind="cuda", emulation=None)
    with pytest.raises(UsageError, match="cpu and cuda devices"):
        open_devices([SPEC, other], [BYTES] * 2)
