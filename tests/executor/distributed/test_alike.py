"""Several processes train the bits of one: every layout, order and precision, and many tasks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle

import pytest
import torch
from msgspec import structs
from support import device_cases as ways
from support import handmade, pipeline_cases
from support.chains import tasks_for
from support.device_cases import KEPT, SPILLING
from support.disked import ready
from support.fit import fit, later
from support.judged import judged
from support.texted import MOST, moved, packed
from support.together import Bits, Job, Together, differences, divided, done

from executor.driver import Options
from executor.records import above
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick", "warm")

Making = Callable[[], Job]


def of_way(make: Callable[[], ways.Made], **more: object) -> Making:
    """A way as the planner lays it out."""

    def made() -> Job:
        case, way = make()
        return Job((case.planned(way),), [case.task], **more)

    return made


def of_case(case: pipeline_cases.Case) -> Job:
    """A layout and order that the planner finds the rest of."""
    return Job((pipeline_cases.built(pipeline_cases.profiled(case), case),), [case.task])


def of_handmade(make: Callable[[], Plan]) -> Job:
    """Tasks that move between devices, beside each other and in gangs."""
    plan = make()
    return Job((fit(plan, tasks_for(plan)),), tasks_for(plan))


def of_disk(name: str) -> Job:
    """Tasks that wait on the disk in turn."""
    plan, tasks = ready(name)
    return Job((plan,), tasks)


def of_text(name: str, window: int) -> Job:
    """Samples of every length, in kinds of rounds that change at every step, with dropout."""
    kinds = ((MOST, MOST), (256, MOST))
    made = packed(name, kinds, ((0, 1), (1, 1), (0, 1), (1, 2)), dropout=0.3)
    made = moved(made, window)
    return Job((made.plan,), [made.task], Options(tables=made.path))


def of_judged(name: str) -> Job:
    """Samples of every length, on which the task is also evaluated."""
    made = judged(name, ((MOST, MOST), (256, MOST)), ((0, 2), (1, 3)))
    return Job((made.plan,), [made.task], Options(tables=made.path))


def going_on(feature: str) -> Job:
    """One step in one way, and another in another one."""
    (case, before), (_, behind) = ways.one_after_another(feature)
    first, rest = (case.planned(way) for way in (before, behind))
    return Job((later(first, 0, 1), later(rest, 1, 1)), [case.task])


def failing() -> Job:
    """A task that is dropped, and one that goes on."""
    plan, tasks, _ = ways.two_of_which_one_fails()
    return Job((plan,), tasks, Options(keep_going=True))


def ending_early() -> Job:
    """A rule ends the task in a segment's middle."""
    case = ways.dropping()
    plan = case.planned(case.way(ways.layout(2, 1)))
    halves = (structs.replace(plan.segments[0], rounds=1),) * 2
    rule = Options(stop=above("0@1"))
    return Job((structs.replace(plan, segments=halves),), [case.task], rule)


CASES = pipeline_cases.CASES
JOBS: dict[str, Making] = {
    **{f"planned {case}": partial(of_case, case) for case in (CASES[2], CASES[6])},
    "left out": of_way(partial(ways.overflowing, SPILLING)),
    "lacking clipped": of_way(lambda: ways.choosy(0.5, KEPT)[0]),
    "lacking in front": of_way(lambda: ways.choosy(None, SPILLING)[1]),
    "evaluated": partial(of_case, replace(pipeline_cases.JUDGED, least=True)),
    **{f"any {seed}": of_way(partial(ways.any_way, seed)) for seed in range(2)},
    "large": of_way(ways.large),
    "interleaved": of_way(partial(ways.crossing, SPILLING), pauses_us=1000),
    "going on": partial(going_on, "scaled"),
    "failing": failing,
    "ending early": ending_early,
    "halves": partial(of_handmade, handmade.halves),
    "gang": partial(of_handmade, handmade.gang),
    "crowd": partial(of_handmade, handmade.crowd),
    "disk": partial(of_disk, "two-rooms"),
    "lengths": partial(of_text, "parallel", 3),
    "lengths evaluated": partial(of_judged, "pipeline"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Bits, Bits]]:
    """What is left of every job in one process, and in several: in two, and every second one that
    has so many devices in four."""
    folder = tmp_path_factory.mktemp("alike")
    torch.set_num_threads(1)
    teams = {size: Together(folder / f"{size}", size) for size in (2, 4)}
    given: dict[str, tuple[Bits, Together, int]] = {}
    turn = cycle(teams)
    for name, make in JOBS.items():
        made = make()
        job, most = divided(made), max(len(plan.devices) for plan in made.plans)
        team = teams[next(turn) if most >= max(teams) else min(teams)]
        number = team.give(job)
        given[name] = done(job, folder / name), team, number
    for team in teams.values():
        print(team.close())
    return {name: (alone, team.left(number)) for name, (alone, team, number) in given.items()}


@pytest.mark.parametrize("name", JOBS)
def test_several_processes_have_the_bits_of_one(
    name: str, found: dict[str, tuple[Bits, Bits]]
) -> None:
    """Losses, evaluations, and all that a checkpoint holds."""
    alone, several = found[name]
    assert "error" not in alone
    assert not list(differences(alone, several))
