"""Which values of a device move: when their copies must be there, and when they can leave.

Steps wrap around: what is loaded ahead for step 0 lives at the end of the round before.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from planner.lowering.strategy import PipelineStrategy
from planner.shards import Into, Out, Strategy, Value
from plans.schema import Role


class Moves:
    """The copies of a round of so many steps; lives only while its values are made."""

    def __init__(
        self, strategy: PipelineStrategy | Strategy, values: Iterable[Value], count: int
    ) -> None:
        self.strategy, self.count = strategy, count
        self.of: dict[tuple[Role, int], list[Value]] = {}
        for value in values:
            self.of.setdefault((value.role, value.number), []).append(value)

    def values(self) -> list[Value]:
        """All values, those that move with their copies."""
        found = list[Value]()
        for (role, k), own in self.of.items():
            mode = self.strategy.modes[k]
            if role == "param" and mode.params != "resident":
                own = self._parameters(k, own)
            elif role == "grad" and mode.update == "host":
                own = [self._gradient(k, value) for value in own]
            elif role == "state" and mode.update == "device-streamed":
                own = [self._state(k, value) for value in own]
            elif (role == "x" and mode.spilled) or role == "saved":
                own = self._aside(own)
            found += own
        return found

    def _parameters(self, k: int, own: Sequence[Value]) -> list[Value]:
        """Parameters come for the first pass, behind what updates them, and where they do not stay
        for the last backward; they go if they have changed here."""
        shard, mode = self.strategy.shards[k], self.strategy.modes[k]
        size, begin, end, after = shard.param_bytes, own[0].first, own[-1].last, f"s{k}.grad"
        free, out = end + 1, None  # when what this round has updated may come for the next one
        if self.strategy.costs.noted and mode.update == "host" and shard.grad_bytes:
            free = self.strategy.sweeps  # behind all norms, before which none is updated
        if mode.update == "device-streamed" and shard.grad_bytes:
            after = f"s{k}.state" if shard.cast else own[-1].name
            out = None if shard.cast else Out(end, begin + self.count, size)
        into = Into(begin, size, free - self.count, after, cast=shard.cast)
        found = [own[0]._replace(into=into)]
        for gone, value in pairwise(own):
            into = Into(value.first, size, gone.last + 1, cast=shard.cast)
            found.append(value._replace(into=into))
        return [*found[:-1], found[-1]._replace(out=out)]

    def _gradient(self, k: int, value: Value) -> Value:
        """Gradients go to the host, which updates with them before the shard computes again."""
        shard, again = self.strategy.shards[k], self.of["param", k][0].first + self.count
        out = Out(value.last, again, shard.grad_bytes, shard.update_host_us)
        return value._replace(out=out)

    def _state(self, k: int, value: Value) -> Value:
        """State comes for the update, and goes behind it."""
        size, step = self.strategy.shards[k].state_bytes, value.first
        into = Into(step, size, step + 1 - self.count, value.name)
        return value._replace(into=into, out=Out(step, step + self.count, size))

    def _aside(self, own: Sequence[Value]) -> list[Value]:
        """Boundaries and packed activations go microbatch by microbatch, and come back so."""
        costs, shard = self.strategy.costs, self.strategy.shards[own[0].number]
        one = shard.in_bytes if own[0].role == "x" else shard.offload_bytes or 0
        count = costs.microbatches
        if own[0].role == "saved":
            count -= self.strategy.modes[own[0].number].recomputed
        size, went, came = count * one, own[0], own[-1]
        into = Into(came.first, size, went.last + 1, went.name, steady=True)
        out, back = Out(went.first, came.first, size, steady=True), came.name.split(".")[0]
        return [
            v._replace(into=into) if v.name.split(".")[0] == back else v._replace(out=out)
            for v in own
        ]
