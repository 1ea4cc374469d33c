"""Devices of several kinds: profiles that must agree, placement against every timetable, bounds."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from support import synthetic
from support.cli import planner_cli, succeeded
from support.searches import effort
from support.synthetic import profile
from support.texts import SIZES, cost, text_task, us_of
from support.time_indexed import shortest, sound

import plans
import profiles
from planner import Infeasible, build
from planner.bounds.configuration import Column, Demand, configuration
from planner.inputs import token_costs
from planner.inputs.kinds import across, one_generator
from planner.inputs.problem import Problem
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Job, Run, makespan
from profiles import Profile, violations
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


@pytest.mark.parametrize("devices", [(0, 1), (0, 1, 1)])
def test_tiny_cases_are_as_short_as_any_timetable(devices: tuple[int, ...]) -> None:
    """Against an integer program over every instant: at most one unit in all of them longer."""
    lost = 0
    for seed in range(4):
        jobs = tiny(2 + len(devices), seed=seed)
        floor = least_us(jobs, devices)
        found = assign_jobs(jobs, devices, floor, effort())
        sound(jobs, devices, found)
        lost += makespan(found) - shortest(jobs, devices, floor)
    assert 0 <= lost <= 1


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


FORMULA = (20_000, 3_000_000, 50_000)
TASK = text_task(formula=FORMULA, fixed_bytes=10_000)
TOKENS = st.integers(1, 64).map(lambda n: 256 * n)


@given(TOKENS, st.integers(1, 20))
def test_times_are_those_of_the_formula(tokens: int, sequences: int) -> None:
    """So many tokens in sequences of one length: squares of each, not of all."""
    squares = tokens * tokens // sequences
    (made,) = token_costs.at(TASK, tokens, squares).layers[0].costs
    for factor, time in ((1, made.forward), (2, made.backward), (3.5, made.pack_backward)):
        assert time is not None
        expected = factor * us_of(FORMULA, tokens, squares)
        assert abs(time.median_us - expected) <= 2 + expected / 200
        assert time.p10_us <= time.median_us <= time.p90_us


@given(TOKENS)
def test_bytes_are_linear_or_more(tokens: int) -> None:
    """Boundaries exactly so; all else no less than it is, nor much more."""
    (made,) = token_costs.at(TASK, tokens).layers[0].costs
    true = cost(tokens, FORMULA, fixed_bytes=10_000)
    for name in ("microbatch", "in_bytes", "out_bytes", "rng_draws"):
        assert getattr(made, name) == getattr(true, name), name
    for name in ("offload_bytes", "saved_bytes", "forward_peak_bytes", "backward_peak_bytes"):
        assert 0 <= getattr(made, name) - getattr(true, name) <= 40_000, name
    assert token_costs.at(TASK, tokens).batches[0].batch_bytes == 4 * 8 * tokens


@pytest.mark.parametrize("size", SIZES)
def test_at_a_measured_length_costs_are_those_measured(size: int) -> None:
    made = token_costs.at(TASK, size)
    measured = TASK.layers[0].costs[SIZES.index(size)]
    (found,) = made.layers[0].costs
    for name in ("in_bytes", "saved_bytes", "backward_peak_bytes", "offload_bytes", "left_bytes"):
        assert getattr(found, name) == getattr(measured, name)
    assert abs(found.forward.median_us - measured.forward.median_us) <= 2


def test_draws_are_those_of_the_line_that_was_measured() -> None:
    """The same at all lengths, so many a token, both, or unknown."""

    def drawn(*draws: int | None) -> int | None:
        layer = TASK.layers[0]
        costs = tuple(replace(c, rng_draws=n) for c, n in zip(layer.costs, draws, strict=True))
        task = replace(TASK, layers=(replace(layer, costs=costs),))
        return token_costs.at(task, 768).layers[0].costs[0].rng_draws

    assert drawn(7, 7, 7, 7) == 7
    assert drawn(256, 512, 1024, 4096) == 768
    assert drawn(2 * 256 + 5, 2 * 512 + 5, 2 * 1024 + 5, 2 * 4096 + 5) == 2 * 768 + 5
    assert drawn(256, 512, 1024, 4097) is None
    assert drawn(256, None, 1024, 4096) is None
    assert drawn(256, 512, 1024, None) is None


@pytest.mark.parametrize("tokens", [0, 100, -256])
def test_other_numbers_of_tokens_are_refused(tokens: int) -> None:
    """Their bytes would not be exactly linear."""
    with pytest.raises(ValueError, match=f"{tokens} tokens are no multiple of 256"):
        token_costs.at(TASK, tokens)


def test_rules_of_profiles_with_lengths() -> None:
    """Enough lengths, one a multiple of 256, and numbers that can be."""

    def broken(**change: object) -> str:
        return " ".join(violations(profile(replace(TASK, **change), usable_bytes=1 << 30)))

    assert TASK.lengths is not None
    assert broken() == ""
    few = text_task(sizes=SIZES[:3])
    assert "measured at lengths [256, 512, 1024], expected 4 or more" in broken(
        batches=few.batches, layers=few.layers
    )
    assert "a step has 9 samples, but there are 8" in broken(batch=9)
    assert "cannot have 7 tokens together" in broken(lengths=replace(TASK.lengths, tokens=7))
