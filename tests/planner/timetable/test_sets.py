"""The shortest schedule of gangs against the program of all sets, and against timetables."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.searches import effort

from planner.bounds.configuration import Column, Demand, configuration
from planner.bounds.solver import Status, minimise, solve, total
from planner.timetable.sets import richest, sets


def feasible(demand: Demand, columns: list[Column]) -> list[tuple[int, ...]]:
    """All sets of columns of different tasks that there are devices for."""
    found = []
    for count in range(1, 1 + sum(demand.devices.values())):
        for chosen in combinations(range(len(columns)), count):
            own = [columns[at] for at in chosen]
            tasks = {one.task for one in own}
            taken = {k: sum(c.devices for c in own if c.kind == k) for k in demand.devices}
            if len(tasks) == count and all(n <= demand.devices[k] for k, n in taken.items()):
                found.append(chosen)
    return found


def shortest(demand: Demand, columns: list[Column]) -> float:
    """The least time of all sets together, of every set that there is, in one program."""
    model, every = minimise("all"), feasible(demand, columns)
    runs = [model.add_variable(f"x{n}", 0) for n in range(len(every))]
    model += total((1, run) for run in runs)
    for task in {one.task for one in columns}:
        model += (
            total(
                (1000 / columns[at].us, run)
                for chosen, run in zip(every, runs, strict=True)
                for at in chosen
                if columns[at].task == task
            )
            >= 1
        )
    assert solve(model, seconds=10, seed=0) is Status.FOUND
    return sum(float(run.value()) for run in runs) * 1000


cases = st.tuples(
    st.lists(
        st.tuples(st.integers(50, 500), st.sampled_from([(1,), (1, 2), (2,), (1, 3), (2, 3)])),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 4),
    st.integers(0, 2),
)


def columns_of(tasks: list[tuple[int, tuple[int, ...]]], other: int) -> list[Column]:
    """Programs on one to three devices, of which each takes a tenth longer in all than with one
    less, and on one of another kind that is twice as slow, if there is any."""
    found = []
    for number, (us, widths) in enumerate(tasks):
        for k in widths:
            found.append(Column(f"t{number}", "a", us * (9 + k) // (10 * k), k))
        if other and number % 2:
            found.append(Column(f"t{number}", "b", 2 * us, 1))
    return found


@settings(max_examples=60)
@given(cases)
def test_sets_are_as_short_as_the_program_of_all_sets_has_it(
    case: tuple[list[tuple[int, tuple[int, ...]]], int, int],
) -> None:
    """A bound that is proven, slices that reach it, and both no more than rounding away."""
    tasks, devices, other = case
    columns, demand = columns_of(tasks, other), Demand({"a": devices, "b": other})
    found, best = sets(demand, columns, effort()), shortest(demand, columns)
    assert best * (1 - 1e-5) - 1 <= found.us <= best + 1
    assert abs(sum(one.us for one in found.slices) - best) <= 1e-4 * best + len(found.slices)
    assert {one.columns for one in found.slices} <= set(feasible(demand, columns))
    for task in {one.task for one in columns}:
        runs = [(s.us, columns[at]) for s in found.slices for at in s.columns]
        assert sum(us / one.us for us, one in runs if one.task == task) >= 0.98
    assert found.us >= configuration(demand, columns, effort()).us * (1 - 1e-5) - 1


def test_gangs_that_do_not_fit_beside_each_other_follow_each_other() -> None:
    """Three gangs of two on three devices: sums of devices say two thirds of that."""
    columns = [Column(name, "cpu", 600, 2) for name in "abc"]
    demand = Demand({"cpu": 3})
    assert configuration(demand, columns, effort()).us == 1200
    assert sets(demand, columns, effort()).us == 1800


@given(cases, st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_the_richest_set_is_that_of_all_sets(
    case: tuple[list[tuple[int, tuple[int, ...]]], int, int], prices: list[int]
) -> None:
    """Tried one by one."""
    tasks, devices, other = case
    columns, demand = columns_of(tasks, other), Demand({"a": devices, "b": other})
    worth = {f"t{n}": price * 10**6 for n, price in enumerate(prices)}

    def earns(chosen: tuple[int, ...]) -> int:
        return sum(-(-worth[columns[at].task] // columns[at].us) for at in chosen)

    earned, chosen = richest(demand, columns, worth)
    assert earned == max(1, earns(chosen)) == max(1, *map(earns, feasible(demand, columns)))
