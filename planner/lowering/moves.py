"""When what moves must be on the only device and can leave it, and how long its steps compute.

Steps are counted as `sweep` numbers them, and wrap around: what is loaded ahead for step 0 lives at
the end of the round before.
"""

from collections.abc import Sequence

from planner.lowering.lives import Lives
from planner.lowering.stays import Stay
from planner.lowering.turns import Turn
from planner.shards import Into, Mode, Out, ShardCost, Strategy, backward_us, forward_us


class Moves:
    """The copies of parameters, state, gradients, boundaries and packed activations, noted beside
    the values of a round while it is made. turns: those that compute."""

    def __init__(self, strategy: Strategy, turns: Sequence[Turn], lives: Lives) -> None:
        self.strategy, self.lives, self.count = strategy, lives, lives.count[0]
        self.first: dict[int, int] = {}  # by shard the step that computes it first
        self.forward: dict[int, int] = {}  # its last forward
        self.backward: dict[int, int] = {}  # its last backward
        self.update: dict[int, int] = {}  # its update on the device, or its last backward
        for turn in turns:
            block = range(turn.shard, strategy.last + 1)
            for k in block if turn.kind == "block" else (turn.shard,):
                self.first.setdefault(k, turn.step)
                if turn.kind == "F":
                    self.forward[k] = turn.step
                elif turn.kind == "B":
                    self.backward[k] = self.update[k] = turn.step
                elif turn.kind == "U":
                    self.update[k] = turn.step

    def note(self, stays: Sequence[Sequence[Stay]], steps: Sequence[int]) -> None:
        """All copies. stays: of each shard's parameters, in turns of these steps."""
        s, last = self.strategy, self.strategy.sweeps
        for k, (shard, mode) in enumerate(zip(s.shards, s.modes, strict=True)):
            # When what this round has updated may come for the next one.
            free = self.update[k] + 1
            if s.costs.noted and mode.update == "host" and shard.grad_bytes:
                free = last  # behind all norms, before which none is updated
            self._microbatches(k, shard, mode)
            self._updated(k, shard, mode, free - self.count)
            if mode.params != "resident":
                self._parameters(k, stays[k], steps, free - self.count)

    def _microbatches(self, k: int, shard: ShardCost, mode: Mode) -> None:
        """Boundaries and packed activations go microbatch by microbatch, and come back so."""
        count, back = self.strategy.costs.microbatches, self.backward[k]
        if mode.spilled:
            self._around(f"x{k}", self.forward[k - 1], back, count * shard.in_bytes, 2)
        if mode.activations == "offload":
            size = count * (shard.offload_bytes or 0)
            self._around(f"a{k}", self.forward[k], back, size, 1)

    def _around(self, name: str, made: int, back: int, size: int, gap: int) -> None:
        self.lives.out[0, name] = Out(made, back, size, steady=True)
        self.lives.into[0, f"{name}b"] = Into(back, size, made + gap, name, steady=True)

    def _updated(self, k: int, shard: ShardCost, mode: Mode, free: int) -> None:
        """Gradients that go to the host, state that comes and goes."""
        if mode.update == "host":
            again = self.first[k] + self.count
            out = Out(self.backward[k], again, shard.grad_bytes, shard.update_host_us)
            self.lives.out[0, f"s{k}.grad"] = out
        elif mode.update == "device-streamed":
            name, at, size = f"s{k}.state", self.update[k], shard.state_bytes
            self.lives.into[0, name] = Into(at, size, free, name)
            if shard.grad_bytes:
                self.lives.out[0, name] = Out(at, at + self.count, size)

    def _parameters(self, k: int, stays: Sequence[Stay], steps: Sequence[int], free: int) -> None:
        """Parameters come for each stay, at first behind what updates them, and go if they have
        changed here."""
        shard, after = self.strategy.shards[k], f"s{k}.grad"
        if self.strategy.modes[k].update == "device-streamed" and shard.grad_bytes:
            after = f"s{k}.state" if shard.cast else stays[-1].name
            if not shard.cast:
                again = self.first[k] + self.count
                self.lives.out[0, after] = Out(self.update[k], again, shard.param_bytes)
        for stay in stays:
            need = steps[stay.first]
            into = Into(need, shard.param_bytes, free, after, cast=shard.cast)
            self.lives.into[0, stay.name] = into
            free, after = need + 1, ""


def computing(strategy: Strategy, turns: Sequence[Turn]) -> list[int]:
    """µs that every step computes."""
    found = [0] * (turns[-1].step + 1)
    for turn in turns:
        shard, mode = strategy.shards[turn.shard], strategy.modes[turn.shard]
        match turn.kind:
            case "F":
                us = forward_us(shard, mode)
            case "B":
                us = backward_us(shard, mode)
            case "N":
                us = shard.norm_us
            case "U":
                us = shard.update_device_us
            case _:
                block = range(turn.shard, strategy.last + 1)
                pairs = [(strategy.shards[k], strategy.modes[k]) for k in block]
                us = sum(backward_us(*pair) for pair in pairs)
                us += sum(forward_us(*pair) for pair in pairs[:-1])
        found[turn.step] += us * turn.each
    return found
