"""The only file that knows the solver: PuLP 3.3 and 4.x, with HiGHS behind both.

PuLP 3 calls a time-limited incumbent "Optimal" and a missing one an objective of 0.0, so its
status is never read; sol_status and the solver's own bound are. Nothing but this file sees it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pulp


class Status(Enum):
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Outcome:
    """bound: proven on the objective (minimised); values are read off the model's variables."""

    status: Status
    objective: float | None
    bound: float | None

    @property
    def found(self) -> bool:
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)


def minimise(name: str) -> Any:
    """An empty minimisation model."""
    return pulp.LpProblem(name, pulp.LpMinimize)


Row = list[tuple[float, Any]]  # coefficients and variables, or numbers in their place
_expression = getattr(pulp.LpAffineExpression, "from_list", pulp.LpAffineExpression)  # 4.x, 3.3


def total(row: Iterable[tuple[float, Any]]) -> Any:
    """The sum of a row as an expression; much faster than adding up its terms."""
    constant, sums = 0.0, dict[Any, float]()
    for by, variable in row:
        if isinstance(variable, int | float):
            constant += by * variable
        else:
            sums[variable] = sums.get(variable, 0.0) + by
    made = _expression(list(sums.items()))
    return made + constant if constant else made


def solve(
    model: Any, *, seconds: float, seed: int, nodes: int = 20_000, gap: float = 1e-6
) -> Outcome:
    """Solve; one thread and a node limit, so that the answer does not depend on the machine."""
    solver = pulp.HiGHS(
        msg=False,
        timeLimit=max(0.1, seconds),
        threads=1,
        gapRel=gap,
        mip_max_nodes=nodes,
        random_seed=seed,
    )
    try:
        raw = model.solve(solver)
    except KeyError:  # PuLP 3 has no name for a solution or node limit
        return Outcome(Status.UNKNOWN, None, None)
    if isinstance(raw, int):
        return _pulp3(model)
    return _pulp4(model, raw)


def _pulp3(model: Any) -> Outcome:
    if model.status == pulp.LpStatusInfeasible:
        return Outcome(Status.INFEASIBLE, None, None)
    if model.sol_status == pulp.LpSolutionOptimal:
        status = Status.OPTIMAL
    elif model.sol_status == pulp.LpSolutionIntegerFeasible:
        status = Status.FEASIBLE
    else:
        return Outcome(Status.UNKNOWN, None, None)
    objective = float(pulp.value(model.objective))
    # A pure LP has no MIP bound (HiGHS says 0): its optimum is its own bound.
    bound = float(model.solverModel.getInfo().mip_dual_bound) if model.isMIP() else objective
    return Outcome(status, objective, bound)


def _pulp4(model: Any, raw: Any) -> Outcome:
    if not raw.has_solution:
        infeasible = raw.status.name == "Infeasible"
        return Outcome(Status.INFEASIBLE if infeasible else Status.UNKNOWN, None, None)
    objective = float(pulp.value(model.objective))
    bound = objective if raw.best_bound is None else float(raw.best_bound)
    optimal = abs(objective - bound) <= 1e-6 * max(1.0, abs(objective))
    return Outcome(Status.OPTIMAL if optimal else Status.FEASIBLE, objective, bound)


def duals(model: Any) -> dict[str, float]:
    """Of a solved program without integers: how much the optimum gains per unit of each named
    constraint's right-hand side."""
    held = model.constraints
    rows = held() if callable(held) else held.values()  # 4.x, 3.3
    return {row.name: row.pi or 0.0 for row in rows}
