"""The only file that knows the solver: PuLP 3.3 and 4.x, with HiGHS behind both; for the load
program, solved some ninety times in a search, HiGHS itself.

PuLP 3 calls a time-limited incumbent "Optimal", so that sol_status is read for what was found.
Nothing but this file sees it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from planner.bounds.rows import Constraint

Numbers = NDArray[np.int32]


class Status(Enum):
    """FOUND: a solution, be it the best or not."""

    FOUND = "found"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Outcome:
    """The end of a linear program's solving, and its objective where a solution was found."""

    status: Status
    objective: float | None = None

    @property
    def found(self) -> bool:
        return self.status is Status.FOUND


def minimise(name: str) -> Any:
    """An empty minimisation model."""
    return pulp.LpProblem(name, pulp.LpMinimize)


_NODES = 20_000  # so that the answer does not depend on the machine
_LEAST, _MOST = 1_000, 2**31 - 1  # iterations
_SURE, _MANY = 0.999, 256  # from when on a part is a whole, and columns are many
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


def solve(model: Any, *, seconds: float, seed: int, gap: float = 1e-6) -> Status:
    """Solve; one thread and a node limit, so that the answer does not depend on the machine. The
    values are those of the model's variables."""
    solver = pulp.HiGHS(
        msg=False,
        timeLimit=max(0.1, seconds),
        threads=1,
        gapRel=gap,
        mip_max_nodes=_NODES,
        random_seed=seed,
    )
    try:
        raw = model.solve(solver)
    except KeyError:  # PuLP 3 has no name for a solution or node limit
        return Status.UNKNOWN
    if isinstance(raw, int):  # 3.3
        infeasible = model.status == pulp.LpStatusInfeasible
        found = model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    else:
        infeasible, found = raw.status.name == "Infeasible", raw.has_solution
    if infeasible:
        return Status.INFEASIBLE
    return Status.FOUND if found else Status.UNKNOWN


def duals(model: Any) -> dict[str, float]:
    """The duals of a solved program without integers: the optimum's gain per unit of each named
    constraint's right-hand side."""
    held = model.constraints
    rows = held() if callable(held) else held.values()  # 4.x, 3.3
    return {row.name: row.pi or 0.0 for row in rows}


class Linear:
    """A linear program, minimised, that stays in the solver to be solved again with other bounds.

    Columns by number, from 0 on, of which the first is 1; the objective is the sum of some, each
    by its weight. Built in one call: the same model as a PuLP object takes ten times as long to
    make as to solve.
    """

    def __init__(
        self, columns: int, rows: Sequence[Constraint], objective: Mapping[int, float]
    ) -> None:
        self._solver: Any = cast("Any", highspy.Highs())  # type: ignore[no-untyped-call]
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        cost, lower, upper = np.zeros(columns), np.zeros(columns), np.full(columns, np.inf)
        cost[list(objective)] = list(objective.values())
        lower[0] = upper[0] = 1.0
        starts, index, value = _sparse(rows)
        self._rows = len(rows)
        self._basis: Any = None  # of the last solution from scratch
        self._iterations = _LEAST  # that one from there may take
        self._whole = False  # some columns are whole numbers
        self._solver.passModel(
            columns,
            len(rows),
            len(index),
            int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize),
            0.0,
            cost,
            lower,
            upper,
            np.array([row.low for row in rows]),
            np.array([row.high for row in rows]),
            starts,
            index,
            value,
            np.zeros(columns, np.int32),
        )

    def bound_columns(self, bounds: Mapping[int, tuple[float, float]]) -> None:
        """Other bounds for some columns."""
        low, high = zip(*bounds.values(), strict=True)
        numbers = np.array(list(bounds), np.int32)
        self._solver.changeColsBounds(len(numbers), numbers, np.array(low), np.array(high))

    def bound_rows(self, bounds: Mapping[int, tuple[float, float]]) -> None:
        """Other bounds for some rows."""
        for row, (low, high) in bounds.items():
            self._solver.changeRowBounds(row, low, high)

    def solve_whole(
        self, columns: Sequence[int], *, seconds: float, seed: int, gap: float, nodes: int
    ) -> tuple[Outcome, list[float]]:
        """Solve with 0 or 1 for these columns. Of many, those that are 1 without that stay so,
        unless nothing is found: what is left is much smaller, and about as good."""
        solver = self._solver
        outcome, values = self.solve((), seconds=seconds, seed=seed)
        if not outcome.found:
            return outcome, values
        whole = np.full(len(columns), int(highspy.HighsVarType.kInteger), np.uint8)
        solver.changeColsIntegrality(len(columns), np.array(columns, np.int32), whole)
        self._whole = True
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_max_nodes", nodes)
        sure = [column for column in columns if values[column] >= _SURE]
        if sure and len(columns) > _MANY:
            self.bound_columns(dict.fromkeys(sure, (1.0, 1.0)))
            outcome, values = self.solve((), seconds=seconds, seed=seed)
            if outcome.found:
                return outcome, values
            self.bound_columns(dict.fromkeys(sure, (0.0, 1.0)))
        return self.solve((), seconds=seconds, seed=seed)

    def whole_bound(
        self,
        columns: Sequence[int],
        more: Sequence[Constraint],
        *,
        seconds: float,
        seed: int,
        nodes: int,
    ) -> float:
        """A lower bound on solutions with 0 or 1 for these columns, and more rows, from a search of
        so many nodes; infinity where there are none."""
        solver, numbers = self._solver, np.array(columns, np.int32)
        kinds = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        whole, parts = (np.full(len(columns), int(kind), np.uint8) for kind in kinds)
        self._add(more)
        solver.clearSolver()
        solver.changeColsIntegrality(len(columns), numbers, whole)
        self._limit(seconds, seed, _MOST)
        solver.setOptionValue("mip_max_nodes", nodes)
        for often in ("mip_allow_restart", "mip_detect_symmetry"):  # long, and of no use here
            solver.setOptionValue(often, False)
        solver.run()
        status = _LINEAR.get(solver.getModelStatus(), Status.UNKNOWN)
        bound = float(solver.getInfo().mip_dual_bound)
        solver.changeColsIntegrality(len(columns), numbers, parts)
        self._remove(more)
        return math.inf if status is Status.INFEASIBLE else bound

    def solve(
        self, more: Sequence[Constraint], *, seconds: float, seed: int, near: bool = False
    ) -> tuple[Outcome, list[float]]:
        """Solve with more rows, for this once; from scratch, so that the answer does not depend on
        what was solved before, or with `near` from the basis of the last one solved from scratch:
        several times as fast, but another vertex where several are optimal; from scratch after all
        where that takes more iterations, since it may never end. The values are those of the
        columns."""
        solver = self._solver
        solver.clearSolver()
        if near and self._basis is not None:
            solver.setBasis(self._basis)
        self._add(more)
        self._limit(seconds, seed, self._iterations if near else _MOST)
        solver.run()
        if near and solver.getModelStatus() == highspy.HighsModelStatus.kIterationLimit:
            solver.clearSolver()
            self._limit(seconds, seed, _MOST)
            solver.run()
        status = _LINEAR.get(solver.getModelStatus(), Status.UNKNOWN)
        if status is Status.UNKNOWN and self._whole and _found(solver):
            status = Status.FOUND  # the nodes are used up
        values: list[float] = []
        outcome = Outcome(status)
        if outcome.found:
            objective = float(solver.getInfo().objective_function_value)
            outcome, values = Outcome(status, objective), solver.getSolution().col_value
        if not (near or more or self._whole):
            self._basis = solver.getBasis() if outcome.found else None
            self._iterations = max(_LEAST, solver.getInfo().simplex_iteration_count // 4)
        self._remove(more)
        return outcome, list(values)

    def _add(self, more: Sequence[Constraint]) -> None:
        """More rows, behind those that stay."""
        if more:
            starts, index, value = _sparse(more)
            low, high = (np.array([row[end] for row in more]) for end in (1, 2))
            self._solver.addRows(len(more), low, high, len(index), starts, index, value)

    def _remove(self, more: Sequence[Constraint]) -> None:
        """The same rows away again."""
        rows = np.arange(self._rows, self._rows + len(more), dtype=np.int32)
        self._solver.deleteRows(len(more), rows)

    def _limit(self, seconds: float, seed: int, iterations: int) -> None:
        solver = self._solver
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.1, seconds))
        solver.setOptionValue("random_seed", seed)
        solver.setOptionValue("simplex_iteration_limit", iterations)


_LINEAR = {
    highspy.HighsModelStatus.kOptimal: Status.FOUND,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Status.INFEASIBLE,
}


def _found(solver: Any) -> bool:
    """True if there is a solution, be it the best or not."""
    feasible = highspy.SolutionStatus.kSolutionStatusFeasible
    return bool(solver.getInfo().primal_solution_status == feasible)


def _sparse(rows: Sequence[Constraint]) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
    """Rows as HiGHS takes them: where each starts, columns, coefficients; each column once."""
    starts, index, value = [], list[int](), list[float]()
    for constraint in rows:
        starts.append(len(index))
        sums: dict[int, float] = {}
        for by, column in constraint.row:
            sums[column] = sums.get(column, 0.0) + by
        index += sums.keys()
        value += sums.values()
    return np.array(starts, np.int32), np.array(index, np.int32), np.array(value, np.float64)
