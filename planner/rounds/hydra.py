"""The baseline to beat: Hydra's policy, planned into the same format, judged by the same simulator.

Greedy maximal shards; one shard prefetched ahead (two slots); parameters copied back after every
shard, changed or not; the optimizer on the device right after backward; one sweep per
microbatch; and tasks taken longest remaining time first, minibatch by minibatch, by whichever
device falls free (`timetable.greedy`).

Where updates wait for the norms of all gradients, these go to the host after the last backward of
their shard, and one more sweep updates shard after shard.

More generous than the original: copies have streams of their own, the boundaries stay on the
device, memory is exact, and any optimizer works.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Literal

from planner.errors import Infeasible
from planner.rounds.emit import Copy, Emitter, Turn, TurnKind, Visit
from planner.rounds.program import assembled, one_by_one
from planner.shards import (
    DEVICE,
    Links,
    Mode,
    Planned,
    TaskCosts,
    cut_points,
    extent,
    microbatch_costs,
    pack,
    reserve_bytes,
)
from plans.schema import Buffer, Memory, Program, Role
from profiles.schema import Task
from profiles.units import enough_bytes, exact_bytes

Roles = Sequence[Role]

_MODE = Mode("streamed", "device-streamed")
_MOST_PIECES = 256  # a shard holds about 1/n of the parameters, n below this


@dataclass(frozen=True, eq=False)
class HydraStrategy(Planned):
    """Hydra's cuts of a task and the memory they take.

    Parameters have two slots; optimizer state and gradients two as well, or one when memory is
    short.
    """

    state_slots: int

    @property
    def slots(self) -> dict[Role, int]:
        """Slots in which the shards' values take turns, by role."""
        return {"param": 2, "state": self.state_slots, "grad": self.state_slots}

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        return pack(self._sizes())

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for role, count in self.slots.items():
            largest = max(shard.bytes_of(role) for shard in self.shards)
            yield from ((f"{slot}.{role}", largest) for slot in range(count))
        yield "batch", self.costs.batch_bytes
        yield "norm", self.costs.task.norm_bytes
        for index in range(1, len(self.shards)):
            yield f"x{index}", self.shards[index].in_bytes

    @property
    def slab_bytes(self) -> int:
        return extent(self.buffers)

    @cached_property
    def reserve_bytes(self) -> int:
        return reserve_bytes(self.costs, self.shards, self.modes)

    @property
    def device_bytes(self) -> int:
        return self.slab_bytes + self.reserve_bytes

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Gradients that the host holds between sweeps, by the names of their buffers."""
        if self.costs.microbatches > 1 or self.costs.noted:
            for index, shard in enumerate(self.shards):
                yield f"{self.costs.task.name}.s{index}.grad", shard.grad_bytes


def choose(task: Task, device_bytes: int, taken_bytes: int = 0) -> HydraStrategy:
    """The largest microbatch that fits, cut greedily into maximal shards; else Infeasible, with
    what the device has beside `device_bytes` added to both numbers."""
    points = cut_points(task)
    tried: list[HydraStrategy] = []
    for costs in microbatch_costs(task):
        total = costs.total("param_bytes")
        largest = max(costs.total("param_bytes", a, b) for a, b in pairwise(points))
        caps = sorted({max(largest, -(-total // n)) for n in range(1, _MOST_PIECES)})
        for slots, cap in product((2, 1), caps[::-1]):
            cuts = _greedy(costs, points, cap)
            strategy = HydraStrategy(costs, cuts, (_MODE,) * (len(cuts) - 1), slots)
            if strategy.device_bytes <= device_bytes:
                return strategy
            tried.append(strategy)
    needs = min(strategy.device_bytes for strategy in tried) + taken_bytes
    offered = device_bytes + taken_bytes
    raise Infeasible(
        f"{task.name}: policy hydra needs {exact_bytes(needs)} on its device but the device offers "
        f"{exact_bytes(offered)}; smallest --device-memory that would do: {enough_bytes(needs)}",
        needs,
    )


def _greedy(costs: TaskCosts, points: list[int], cap: int) -> tuple[int, ...]:
    """Shards of at most `cap` parameter bytes, each as long as it can be. The cap must be at
    least what the layers between two neighbouring points hold."""
    cuts = [0]
    for point, following in pairwise(points[1:]):
        if costs.total("param_bytes", cuts[-1], following) > cap:
            cuts.append(point)
    return (*cuts, points[-1])


def program(strategy: HydraStrategy, links: Links) -> Program:
    """One minibatch as Hydra runs it."""
    emitter = Emitter(strategy, links)
    entries = list(emitter.entries(_Rounds(strategy).visits()))
    memory = Memory(strategy.slab_bytes, strategy.reserve_bytes)
    return assembled((strategy.costs.task.name,), [memory], strategy.buffers, one_by_one(entries))


class _Rounds:
    """Hydra's visits: microbatch after microbatch up and down; updates behind the last, or in one
    more sweep.

    Shards use the two slots in turn, so that while one computes, the next one's parameters arrive.
    """

    def __init__(self, strategy: HydraStrategy) -> None:
        self.costs, self.shards = strategy.costs, strategy.shards
        self.slots = strategy.slots
        self.turn = -1  # at the slots, in a round

    def visits(self) -> Iterator[Visit]:
        last, noted = self.costs.microbatches - 1, self.costs.noted
        up = range(len(self.shards) - 1)
        for m in range(last + 1):
            yield Visit(Turn(DEVICE, "P", 0, m), {"batch": "batch"})
            for k in up:
                yield self._turn("F", k, m, ["param"], ["param"])
            for k in (len(up), *reversed(up)):
                ends = m == last and self.shards[k].grad_bytes > 0
                brings: list[Role] = ["param"]
                brings += ["state"] if ends and not noted else []
                brings += ["grad"] if m else []
                yield self._turn("B", k, m, brings, [] if ends else ["grad", "param"])
                if ends and noted:
                    yield self._visit("N", k, 0, [], ["grad", "param"])
                elif ends:
                    yield self._visit("U", k, 0, [], ["state", "param"])
        for k, shard in enumerate(self.shards):
            if noted and shard.grad_bytes:
                yield self._turn("U", k, 0, ["param", "state", "grad"], ["state", "param"])

    def _turn(self, kind: TurnKind, k: int, m: int, brings: Roles, takes: Roles) -> Visit:
        """A visit of the next shard that has the slots."""
        self.turn += 1
        return self._visit(kind, k, m, brings, takes)

    def _visit(self, kind: TurnKind, k: int, m: int, brings: Roles, takes: Roles) -> Visit:
        at: dict[Role, str] = {"batch": "batch", "norm": "norm"}
        at |= {role: f"{self.turn % count}.{role}" for role, count in self.slots.items()}
        at |= {"x": f"x{k}", "dx": f"x{k}", "y": f"x{k + 1}", "dy": f"x{k + 1}"}

        def copies(kind: Literal["P", "S"], roles: Roles) -> list[Copy]:
            sizes = [(role, self.shards[k].bytes_of(role)) for role in roles]
            return [Copy(kind, DEVICE, "s", k, r, size, at[r], f"s{k}.{r}") for r, size in sizes]

        turn = Turn(DEVICE, kind, k, m)
        return Visit(turn, at, copies("P", brings), copies("S", takes))
