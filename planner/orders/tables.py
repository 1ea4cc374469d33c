"""A pipeline's passes as whole numbers in flat lists, for list schedules, and rankings of them."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.orders.memory import changes
from planner.orders.moves import DeviceRows
from planner.orders.passes import Pass, Pipeline
from planner.orders.timing import NONE, source_of


def ranking_of(
    pipeline: Pipeline, split: bool = False, eager: bool = False, lowest: bool = False
) -> list[Pass]:
    """All passes, the first to be taken first: backwards, then forwards, or, if eager, before them,
    then gradients of weights, the deepest first. lowest: of forwards the lowest. split: backwards
    are I and W wherever there are weights."""
    up, each = range(pipeline.shards), range(pipeline.microbatches)
    down = up[::-1]
    halved = [split and any(costs[s].weight for costs in pipeline.costs) for s in up]
    ways = up if lowest else down
    forwards = [Pass("F", s, m) for s in ways if pipeline.has_forward(s) for m in each]
    backwards = [Pass("I" if halved[s] else "B", s, m) for s in down for m in each]
    weights = [Pass("W", s, m) for s in down if halved[s] for m in each]
    return [*forwards, *backwards, *weights] if eager else [*backwards, *forwards, *weights]


class Tables(NamedTuple):
    """A pipeline and a ranking as flat lists; a pass's number is its rank.

    cost, hop, take, give: by device and pass; memory is taken at the begin, given at the end.
    bit: 1 << microbatch. home: the place in the rows one after another. then: the pass that gets
    the result, or -1. up: True where the input comes from the shard before. adds: shard x devices
    where gradients are added, else -1. weights: the W of an I, or -1. adders: by shard and
    microbatch, the pass that adds its gradients. begins: the passes that wait for none.
    """

    devices: int
    microbatches: int
    passes: tuple[Pass, ...]
    cost: list[list[int]]
    hop: list[list[int]]
    take: list[list[int]]
    give: list[list[int]]
    bit: list[int]
    home: list[int]
    then: list[int]
    up: list[bool]
    adds: list[int]
    weights: list[int]
    adders: list[int]
    begins: list[int]
    limits: tuple[int, ...] | None

    @classmethod
    def of(cls, pipeline: Pipeline, ranking: Sequence[Pass]) -> "Tables":
        """The tables of a ranking of all passes."""
        M, number = pipeline.microbatches, {item: i for i, item in enumerate(ranking)}
        sources = [source_of(pipeline, number, item) for item in ranking]
        then, weights = [NONE] * len(ranking), [NONE] * len(ranking)
        for i, source in enumerate(sources):
            if source != NONE:
                (weights if ranking[i].kind == "W" else then)[source] = i
        deeper = [  # of a pass's shard and that of its source, the one whose hop is between them
            max(item.shard, ranking[source].shard if source != NONE else 0)
            for item, source in zip(ranking, sources, strict=True)
        ]
        adders = {(i.shard, i.microbatch): number[i] for i in ranking if i.kind in "BW"}
        kinds = {costs: device for device, costs in enumerate(pipeline.costs)}
        alike = {c: _numbers(pipeline, device, ranking, deeper) for c, device in kinds.items()}
        cost, hop, take, give = map(list, zip(*(alike[c] for c in pipeline.costs), strict=True))
        return cls(
            devices=pipeline.devices,
            microbatches=M,
            passes=tuple(ranking),
            cost=cost,
            hop=hop,
            take=take,
            give=give,
            bit=[1 << i.microbatch for i in ranking],
            home=[i.shard * M + i.microbatch for i in ranking],
            then=then,
            up=[i.shard == s for i, s in zip(ranking, deeper, strict=True)],
            adds=[i.shard * pipeline.devices if i.kind in "BW" else NONE for i in ranking],
            weights=weights,
            adders=[adders[s, m] for s in range(pipeline.shards) for m in range(M)],
            begins=[i for i, source in enumerate(sources) if source == NONE],
            limits=pipeline.limits,
        )

    def where(self, rows: DeviceRows) -> list[int]:
        """The device of each pass."""
        flat = [device for row in rows for device in row]
        return [flat[place] for place in self.home]

    def loads(self, rows: DeviceRows) -> list[int]:
        """The time that each device computes."""
        loads = [0] * self.devices
        for i, device in enumerate(self.where(rows)):
            loads[device] += self.cost[device][i]
        return loads


def _numbers(
    pipeline: Pipeline, device: int, ranking: Sequence[Pass], deeper: Sequence[int]
) -> tuple[list[int], ...]:
    """A device's cost, hop, take and give of all passes."""
    costs = pipeline.costs[device]
    memory = [changes(pipeline, device, item) for item in ranking]
    return (
        [costs[item.shard].of(item.kind) for item in ranking],
        [costs[shard].hop for shard in deeper],
        [first for first, _ in memory],
        [-last for _, last in memory],
    )
