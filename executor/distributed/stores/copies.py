"""The nodes whose stores have each shard's latest state."""

from collections.abc import Iterable, Mapping

from plans.order import Kept, Use, nodes_of, uses
from plans.schema import Plan


class Copies:
    """At first every node that uses a shard has it. Whoever trains it has the only copy then."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._uses: dict[tuple[str, tuple[int, ...]], Mapping[Kept, Use]] = {}
        self._at: dict[Kept, set[int]] = {}
        for index in range(len(plan.segments)):
            for shard, use in self._of(index).items():
                self._at.setdefault(shard, set()).update(use.reads | use.writes)

    def trained(self, index: int) -> None:
        """A segment has ended."""
        for shard, use in self._of(index).items():
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

    def _of(self, index: int) -> Mapping[Kept, Use]:
        """The use that a segment has of the shards of its tasks."""
        segment = self._plan.segments[index]
        program, nodes = self._plan.program(segment.program), nodes_of(self._plan, segment)
        if (known := self._uses.get((program.name, nodes))) is None:
            known = uses(program, map(self._plan.task, program.tasks), nodes)
            self._uses[program.name, nodes] = known
        return known
