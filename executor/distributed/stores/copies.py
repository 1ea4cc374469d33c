"""The nodes whose stores have each shard's latest state."""

from collections.abc import Iterable

from plans.nodes import Kept, held, nodes_of, uses
from plans.schema import Plan


class Copies:
    """At first every node that uses a shard has it. Whoever trains it has the only copy then."""

    def __init__(self, plan: Plan, nodes: int) -> None:
        self._plan = plan
        self._at: dict[Kept, set[int]] = {}
        for node in range(nodes):
            for shard in held(plan, node):
                self._at.setdefault(shard, set()).add(node)

    def trained(self, index: int) -> None:
        """A segment has ended."""
        segment = self._plan.segments[index]
        program = self._plan.program(segment.program)
        tasks = map(self._plan.task, program.tasks)
        for shard, use in uses(program, tasks, nodes_of(self._plan, segment)).items():
            if use.writes:
                self._at[shard] = set(use.writes)

    def copied(self, shards: Iterable[Kept], node: int) -> None:
        """A node has these as well."""
        for shard in shards:
            self._at[shard].add(node)

    def lost(self, shards: Iterable[Kept], node: int) -> None:
        """A node has them no more."""
        for shard in shards:
            self._at[shard].discard(node)

    def lacking(self, task: str, node: int) -> dict[int, list[int]]:
        """The shards of a task that a node lacks, by the node to fetch them from."""
        found: dict[int, list[int]] = {}
        for number in range(len(self._plan.task(task).shards)):
            at = self._at.get((task, number), {node})
            if node not in at:
                found.setdefault(min(at), []).append(number)
        return found
