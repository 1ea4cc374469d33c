"""The best way to train one task, its tied layers joined in one shard or apart in several."""

from dataclasses import replace

from planner.errors import Infeasible, NoPlanFound, nearest
from planner.problem import Effort
from planner.search import Found, Search
from planner.ties import separable
from plans.metrics import duration_us


def best_of(search: Search, effort: Effort) -> Found:
    """The best candidate with all ties joined, or with those apart that may be; the effort is
    shared. Errors as of `Search.best`."""
    if separable(search.task) is None:
        return search.best(effort)
    ways = [replace(search, ops=search.ops // 2, apart=apart) for apart in (False, True)]
    found: list[Found] = []
    errors: list[Infeasible | NoPlanFound] = []
    for way in ways:
        try:
            found.append(way.best(effort))
        except (Infeasible, NoPlanFound) as error:
            errors.append(error)
        if found and way.plain:
            break
    if not found:
        late = [error for error in errors if isinstance(error, NoPlanFound)]
        short = [error for error in errors if isinstance(error, Infeasible)]
        raise late[0] if late else nearest(short)
    best = min(found, key=lambda one: duration_us(one.program, search.task.steps))
    complete = all(one.complete for one in found)
    return replace(best, candidates=sum(one.candidates for one in found), complete=complete)
