"""Devices of several kinds: profiles that must agree, placement against every timetable, bounds."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, succeeded
from support.searches import effort
from support.time_indexed import shortest, sound

import plans
import profiles
from planner import Infeasible, build
from planner.bounds.configuration import Column, Demand, configuration
from planner.bounds.named import named_bounds
from planner.bounds.task import TaskBound
from planner.inputs.kinds import across, one_generator
from planner.inputs.problem import Problem
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Job, Run, makespan
from planner.timetable.list_schedule import list_schedule, longest_remaining
from profiles import Profile
from profiles.errors import FormatError
from profiles.schema import Disk, Rate, Task

pytestmark = pytest.mark.usefixtures("quick")


def least_us(jobs: Sequence[Job], devices: Sequence[int]) -> int:
    """What no timetable of these jobs is shorter than."""
    columns = [
        Column(job.name, str(kind), run.us(job.rounds))
        for job in jobs
        for kind, run in enumerate(job.runs)
        if run
    ]
    counts = {str(kind): list(devices).count(kind) for kind in set(devices)}
    return configuration(Demand(counts), columns, effort()).us


runs = st.tuples(st.integers(0, 20), st.integers(1, 50)).map(lambda found: Run(*found))
cases = st.lists(
    st.tuples(st.integers(1, 30), runs, st.none() | runs, st.booleans()), min_size=1, max_size=6
).map(
    lambda found: [
        Job(f"t{i}", rounds, (one, other) if first else (other, one))
        for i, (rounds, one, other, first) in enumerate(found)
    ]
)


@given(cases)
def test_greedy_orders_run_works_where_they_can(jobs: list[Job]) -> None:
    """All rounds, none on a device of a kind that cannot run them."""
    devices = (0, 1, 1)
    sound(jobs, devices, longest_remaining(jobs, devices))
    sound(jobs, devices, list_schedule(jobs, range(len(jobs)), devices))


def tiny(jobs: int, *, seed: int) -> list[Job]:
    """A seeded case of two kinds: 1 to 5 rounds of one or two units, and for some what it takes
    to enter; a few cannot run on the second kind."""
    rng = random.Random(f"unrelated {jobs} {seed}")
    made = []
    for number in range(jobs):
        fast = Run(rng.choice([0, 0, 1]), rng.randint(1, 2))
        slow = Run(rng.choice([0, 0, 1]), rng.randint(1, 3))
        runs = (fast, None if rng.random() < 0.15 else slow)
        made.append(Job(f"t{number}", rng.randint(1, 5), runs))
    return made


def scaled(jobs: int, kinds: int, *, seed: int) -> list[Job]:
    """A seeded case of realistic times: rounds of up to two seconds, up to three times as long on
    other kinds, where a tenth of the jobs cannot run."""
    rng = random.Random(f"scaled {jobs} {kinds} {seed}")
    made = []
    for number in range(jobs):
        period = rng.randint(100_000, 2_000_000)
        runs = [Run(rng.randint(10**6, 5 * 10**6), period)]
        for _ in range(kinds - 1):
            run = Run(rng.randint(10**6, 5 * 10**6), round(period * rng.uniform(1, 3)))
            runs.append(run if rng.random() < 0.9 else None)
        rounds = rng.randint(1000, 5000)
        made.append(Job(f"t{number}", rounds, tuple(runs)))
    return made


@pytest.mark.parametrize("devices", [(0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1, 1)])
def test_tiny_cases_are_as_short_as_any_timetable(devices: tuple[int, ...]) -> None:
    """Against an integer program over every instant: at most one unit in all of them longer."""
    lost = 0
    for seed in range(8):
        jobs = tiny(2 + len(devices), seed=seed)
        floor = least_us(jobs, devices)
        found = assign_jobs(jobs, devices, floor, effort())
        sound(jobs, devices, found)
        lost += makespan(found) - shortest(jobs, devices, floor)
    assert 0 <= lost <= 1


FOUR = (  # rounds, and µs of each on a V100 and on a K80
    (400, 8_493_481, 33_562_571),
    (700, 9_387_608, 34_025_877),
    (900, 3_436_129, 15_135_860),
    (500, 2_203_535, 9_736_915),
)


def ratio(jobs: list[Job], devices: tuple[int, ...]) -> float:
    """The makespan over the bound of all schedules of the jobs."""
    floor = least_us(jobs, devices)
    return makespan(assign_jobs(jobs, devices, floor, effort())) / floor


def test_tasks_that_all_need_the_fast_device_take_turns_on_it() -> None:
    """Four tasks on a V100 and three K80s: each of three has to be on one of them all the time, so
    that they change places in the right moments or end 9 % later."""
    jobs = [
        Job(f"t{n}", rounds, (Run(10**6, fast), Run(10**6, slow)))
        for n, (rounds, fast, slow) in enumerate(FOUR)
    ]
    assert ratio(jobs, (0, 1, 1, 1)) <= 1.002


def test_mixed_devices_are_used_to_the_end() -> None:
    """Jobs of hours on devices of two or three kinds, within 1 % of the bound of their programs:
    few jobs, that may wait for each other, and many, that are packed."""
    for seed, (count, devices) in enumerate(
        [(5, (0, 1, 1, 1)), (6, (0, 0, 1, 1, 2)), (12, (0, 0, 1, 1, 1)), (24, (0,) * 4 + (1,) * 8)]
    ):
        assert ratio(scaled(count, max(devices) + 1, seed=seed), devices) <= 1.01


def tasks(slow: int = 1, layers: int = 2) -> list[Task]:
    """Two tasks as a device measures them that computes so many times slower."""
    return [
        synthetic.task(name, layers=layers, seed=seed, batch=2, steps=30, forward_us=1000 * slow)
        for seed, name in enumerate("ab")
    ]


def profiled(slow: int = 1, mib: int = 64, rate: int = 10**9) -> Profile:
    return synthetic.profile(*tasks(slow), usable_bytes=mib << 20, bytes_per_s=rate)


def both(one: Profile, other: Profile, *devices: int) -> Problem:
    counts = devices or (1, 1)
    return across(
        [one, other],
        ["p.json", "q.json"],
        devices=counts,
        device_bytes=(None,) * 2,
        host_bytes=None,
    )


def test_each_kind_has_its_own_times_and_memory() -> None:
    """Devices are numbered kind by kind."""
    made = both(profiled(), profiled(slow=3, mib=32), 2, 1)
    assert [kind.device_bytes >> 20 for kind in made.kinds] == [64, 32]
    assert (made.devices, made.kind_of) == (3, (0, 0, 1))
    quick, slow = (kind.tasks[0].layers[0].costs[0].forward.median_us for kind in made.kinds)
    assert slow > 2 * quick


def with_task(of: Profile, **changes: object) -> Profile:
    first, *others = of.tasks
    return structs.replace(of, tasks=(structs.replace(first, **changes), *others))


def with_layer(of: Profile, **changes: object) -> Profile:
    first, *others = of.tasks[0].layers
    return with_task(of, layers=(structs.replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (with_task(profiled(), steps=31), "a.steps is 31, in p.json it is 30"),
        (with_task(profiled(), name="c"), "the list of tasks is b, c, in p.json it is a, b"),
        (with_task(profiled(), optimizer="sgd"), "a.optimizer is sgd"),
        (with_task(profiled(), precision="bf16"), "a.precision is bf16"),
        (with_layer(profiled(), state_bytes=64), "a.layers[0].state_bytes is 64"),
        (
            with_task(profiled(), layers=profiled().tasks[0].layers[:1]),
            "a: the number of layers is 1, in p.json it is 2",
        ),
    ],
)
def test_what_differs_between_profiles_is_named(other: Profile, text: str) -> None:
    """With both values and where they are."""
    with pytest.raises(FormatError) as caught:
        both(profiled(), other)
    assert text in str(caught.value)


def test_what_a_plan_says_once_holds_on_every_kind() -> None:
    """The larger live graph; what cannot be done on one kind is done on none."""
    cost = profiled().tasks[0].layers[0].costs[0]
    costs = profiled().tasks[0].layers[0].costs[1:]
    more = structs.replace(cost, saved_bytes=cost.saved_bytes + 64, rng_draws=None)
    made = both(profiled(), with_layer(profiled(), costs=(more, *costs)))
    for kind in made.kinds:
        found = kind.tasks[0].layers[0].costs[0]
        assert (found.saved_bytes, found.rng_draws) == (cost.saved_bytes + 64, None)


def test_devices_with_other_random_numbers_are_refused() -> None:
    """CPU and CUDA in one plan."""
    device = structs.replace(profiled().machine.devices[0], kind="cuda", emulation=None)
    machine = structs.replace(profiled().machine, devices=(device,))
    mixed = both(profiled(), structs.replace(profiled(), machine=machine))
    with pytest.raises(FormatError, match="different random numbers"):
        one_generator(mixed)
    with pytest.raises(FormatError, match="both cpu and cuda devices"):
        build(mixed, profile_sha256="0" * 64)


def test_a_plan_of_two_kinds_is_proven_and_above_its_bounds() -> None:
    """Both kinds work, each with programs of its own; the bounds are below the makespan, and not
    above those of as many devices of the faster kind."""
    quick, slow = profiled(mib=8), profiled(slow=2, mib=6, rate=2 * 10**9)
    plan = build(both(quick, slow), profile_sha256="0" * 64)
    assert [device.name for device in plan.devices] == ["k0.cpu0", "k1.cpu1"]
    assert [device.budget_bytes >> 20 for device in plan.devices] == [8, 6]
    assert {segment.devices for segment in plan.segments} == {(0,), (1,)}
    for segment in plan.segments:
        assert segment.program.endswith("@k1") <= (segment.devices == (1,))
    told = plan.prediction
    assert max(told.lower_bound_us, told.configuration_us) <= told.makespan_us
    alone = Problem.of(quick, devices=2, device_bytes=None, host_bytes=None)
    faster = {b.name: b.us for b in build(alone, profile_sha256="0" * 64).prediction.bounds}
    bounds = {b.name: b.us for b in told.bounds}
    assert bounds["compute"] >= faster["compute"]
    assert bounds["critical-path"] >= faster["critical-path"]


def test_a_kind_that_is_too_small_is_left_alone() -> None:
    """Everything runs on the other; when both are too small the build says so."""
    plan = build(both(profiled(), profiled(mib=1)), profile_sha256="0" * 64)
    assert {segment.devices for segment in plan.segments} == {(0,)}
    with pytest.raises(Infeasible, match="smallest --device-memory"):
        build(both(profiled(mib=1), profiled(mib=1)), profile_sha256="0" * 64)


def with_disk(of: Profile, disk: Disk | None) -> Profile:
    host = structs.replace(of.machine.host, disk=disk)
    return structs.replace(of, machine=structs.replace(of.machine, host=host))


def test_the_disk_is_as_every_profile_knows_it() -> None:
    """Whichever of them was measured with one."""
    slow, small = Disk(100, Rate(7, 9), Rate(5, 3)), Disk(90, Rate(8, 1), Rate(4, 4))
    for first, second, least in (
        (None, None, None),
        (None, small, small),
        (slow, None, slow),
        (slow, small, Disk(90, Rate(7, 9), Rate(4, 4))),
    ):
        assert both(with_disk(profiled(), first), with_disk(profiled(), second)).disk == least


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """p.json and q.json: the same tasks on a quick device and on a slow one."""
    monkeypatch.chdir(tmp_path)
    profiles.save("p.json", profiled())
    profiles.save("q.json", profiled(slow=2))


@pytest.mark.usefixtures("files")
def test_build_takes_a_profile_of_each_kind() -> None:
    """The plan remembers every profile, and show names devices by their kind."""
    call = ("build", "p.json", "q.json", "--devices", "1,2", "--device-memory", "64MiB,32MiB")
    succeeded(planner_cli(*call, "-o", "plan.json"))
    plan = plans.load("plan.json")
    assert sorted(plan.inputs) == ["profile", "profile-1"]
    for role, name in (("profile", "p.json"), ("profile-1", "q.json")):
        assert plan.inputs[role] == profiles.sha256(Path(name).read_bytes())
    assert [device.budget_bytes >> 20 for device in plan.devices] == [64, 32, 32]
    assert "2 k1.cpu2" in succeeded(planner_cli("show", "plan.json", "--gantt", "x.png")).out


def test_the_baseline_knows_kinds() -> None:
    """Its programs are made for both."""
    plan = build(both(profiled(), profiled(slow=2)), profile_sha256="0" * 64, policy="hydra")
    assert plan.prediction.configuration_us <= plan.prediction.makespan_us
    assert {segment.devices for segment in plan.segments} == {(0,), (1,)}


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=2))
def test_bounds_share_tasks_out_to_all_kinds(times: list[tuple[int, int]]) -> None:
    """Against every way to share the steps of two tasks out in hundredths: a bound on compute is
    below all of them, and as near as the grid is fine."""
    of = [
        {(place, 1): TaskBound({"compute": us}) for place, us in enumerate(each)} for each in times
    ]
    asked = both(profiled(), profiled())
    found = {bound.name: bound.us for bound in named_bounds(asked, of, phased=True)}
    (a, b), (c, d) = ((30 * one, 30 * other) for one, other in times)
    grid = [n / 100 for n in range(101)]
    best = min(max(x * a + y * c, (1 - x) * b + (1 - y) * d) for x in grid for y in grid)
    assert best - 60 <= found["compute"] <= best + 1
    assert found["critical-path"] == max(min(a, b), min(c, d))
