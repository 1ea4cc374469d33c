"""When what moves must be on the only device and can leave it, and how long its steps compute.

Steps are counted as `sweep` numbers them, and wrap around: what is loaded ahead for step 0 lives at
the end of the round before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from planner.lowering.turns import Turn, computes, sweep
from planner.shards import Into, Mode, Out, ShardCost, Strategy, backward_us, forward_us
from plans.schema import Role


@dataclass
class Moves:
    """The copies of parameters, state, gradients, boundaries and packed activations, by the names
    of their values. us: µs that every step computes. waits: what the host holds for a while, as its
    role, its shard and its copy there."""

    us: list[int]
    into: dict[str, Into] = field(default_factory=dict)
    out: dict[str, Out] = field(default_factory=dict)
    waits: list[tuple[Role, int, Out]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Steps of a round."""
        return len(self.us)

    def aside(self, role: Role, k: int, made: int, back: int, size: int) -> None:
        """Add the copies of a boundary or of packed activations, which go microbatch by microbatch
        and come back so."""
        name, gap = ("x", 2) if role == "x" else ("a", 1)
        out = self.out[f"{name}{k}"] = Out(made, back, size, steady=True)
        self.into[f"{name}{k}b"] = Into(back, size, made + gap, f"{name}{k}", steady=True)
        self.waits.append((role, k, out))


@lru_cache(maxsize=64)
def moves(strategy: Strategy) -> Moves:
    """The copies of a strategy, which several look at one after the other."""
    turns = [turn for turn in sweep(strategy) if computes(strategy, turn)]
    found, at = Moves(_computing(strategy, turns)), _Steps(strategy, turns)
    for k, (shard, mode) in enumerate(zip(strategy.shards, strategy.modes, strict=True)):
        count, back = strategy.costs.microbatches, at.backward[k]
        if mode.spilled:
            found.aside("x", k, at.forward[k - 1], back, count * shard.in_bytes)
        if mode.activations == "offload":
            found.aside("saved", k, at.forward[k], back, count * (shard.offload_bytes or 0))
        free = at.update[k] + 1  # when what this round has updated may come for the next one
        if strategy.costs.noted and mode.update == "host" and shard.grad_bytes:
            free = strategy.sweeps  # behind all norms, before which none is updated
        _updated(found, at, k, shard, mode, free - found.count)
        if mode.params != "resident" and shard.param_bytes:
            _parameters(found, at, k, shard, mode, free - found.count)
    return found


class _Steps:
    """By shard the steps of its first pass, its last forward, its last backward, and its update on
    the device, or else that backward."""

    def __init__(self, strategy: Strategy, turns: Sequence[Turn]) -> None:
        self.first: dict[int, int] = {}
        self.forward: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        self.update: dict[int, int] = {}
        for turn in turns:
            block = range(turn.shard, strategy.last + 1)
            for k in block if turn.kind == "block" else (turn.shard,):
                self.first.setdefault(k, turn.step)
            if turn.kind == "F":
                self.forward[turn.shard] = turn.step
            elif turn.kind == "B":
                self.backward[turn.shard] = self.update[turn.shard] = turn.step
            elif turn.kind == "U":
                self.update[turn.shard] = turn.step


def _updated(found: Moves, at: _Steps, k: int, shard: ShardCost, mode: Mode, free: int) -> None:
    """Gradients that go to the host, state that comes and goes."""
    if mode.update == "host" and shard.grad_bytes:
        again = at.first[k] + found.count
        out = Out(at.backward[k], again, shard.grad_bytes, shard.update_host_us)
        found.out[f"s{k}.grad"] = out
        found.waits.append(("grad", k, out))
    elif mode.update == "device-streamed" and shard.state_bytes:
        name, step = f"s{k}.state", at.update[k]
        found.into[name] = Into(step, shard.state_bytes, free, name)
        if shard.grad_bytes:
            found.out[name] = Out(step, step + found.count, shard.state_bytes)


def _parameters(found: Moves, at: _Steps, k: int, shard: ShardCost, mode: Mode, free: int) -> None:
    """Parameters come for the first pass, behind what updates them, and where they do not stay for
    the last backward; they go if they have changed here."""
    own, after = f"s{k}.param", f"s{k}.grad"
    twice = mode.params == "streamed" and at.forward.get(k, at.backward[k]) < at.backward[k]
    last = f"{own}.1" if twice else own
    if mode.update == "device-streamed" and shard.grad_bytes:
        after = f"s{k}.state" if shard.cast else last
        if not shard.cast:
            again = at.first[k] + found.count
            found.out[last] = Out(at.update[k], again, shard.param_bytes)
    found.into[own] = Into(at.first[k], shard.param_bytes, free, after, cast=shard.cast)
    if twice:
        gone = at.first[k] + 1
        found.into[last] = Into(at.backward[k], shard.param_bytes, gone, cast=shard.cast)


def _computing(strategy: Strategy, turns: Sequence[Turn]) -> list[int]:
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
