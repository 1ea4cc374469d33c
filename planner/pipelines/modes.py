"""The modes of all shards of a pipeline, from one program over the windows of all its devices.

minimise   T + what one microbatch takes through all shards
T     >=   what each device computes, loads and sends to the host, and its host updates
room  >=   what each device holds in each of its windows
host  >=   what the host keeps and what waits there
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from planner.inputs import Effort
from planner.lp import minimise, solve, total
from planner.pipelines.strategy import PipelineStrategy
from planner.pipelines.windows import Held, Window, loads, windows
from planner.shards import Links, Mode, backward_us, forward_us, holdings
from profiles.codec import align

_MEGA = 1e6  # bytes of a unit of memory rows, which the solver likes better
_GAP, _NODES = 5e-3, 100  # of the search for whole modes
_SLOTS = 3  # through which boundaries come and go


@dataclass(frozen=True, eq=False)
class Choices:
    """The modes that each shard may have in a pipeline."""

    strategy: PipelineStrategy
    links: Links

    def modes(self, k: int) -> list[Mode]:
        """Of a shard: with its graph saved or not, and held in any way that does it."""
        shard, last = self.strategy.shards[k], self.strategy.last
        found = []
        for params, update in holdings(shard):
            if params == "streamed" and k == last:
                continue
            found.append(Mode(params, update))
            if params != "streamed" and k < last:
                found.append(Mode(params, update, "saved"))
            if shard.offload_bytes and k < last:
                found.append(Mode(params, update, "offload"))
            if 0 < k < last:
                found.append(Mode(params, update, spilled=True))
        return found

    def held_bytes(self, window: Window, held: Held, mode: Mode) -> int:
        """The bytes that a shard has on a device in a window."""
        k = held.shard
        shard, home = self.strategy.shards[k], self.strategy.homes[k] == window.device
        few = min(held.flying, _SLOTS)
        size = (few if mode.spilled else held.flying) * align(shard.in_bytes)
        if mode.activations == "offload":
            size += few * align(shard.offload_bytes or 0)
        if mode.params != "streamed" or held.near:
            size += align(shard.param_bytes)
        if home and mode.update == "device":
            size += align(shard.state_bytes)
        if held.learns:
            size += align(shard.grad_bytes)
            size += align(shard.state_bytes) if home and mode.update == "device-streamed" else 0
        if mode.activations == "saved":
            size += held.flying * shard.saved_bytes
        return size + self._transient(window, held, mode)

    def _transient(self, window: Window, held: Held, mode: Mode) -> int:
        """The bytes that the op takes, if it is one of this shard."""
        k, now = held.shard, window.now
        if now.shard != k:
            return 0
        shard, saved = self.strategy.shards[k], mode.activations == "saved"
        if now.kind == "F":
            # The graph that it makes is among those in flight.
            size = shard.backward_transient_bytes - shard.saved_bytes
            packs = shard.graph_transient_bytes, shard.forward_transient_bytes
            return size if saved else packs[mode.activations == "recompute"]
        again = mode.activations == "recompute"
        return shard.backward_transient_bytes if again else shard.graph_transient_bytes

    def compute_us(self, k: int, device: int, mode: Mode, count: int) -> int:
        """A shard's time on a device in a round."""
        shard = self.strategy.shards[k]
        forward = forward_us(shard, mode) if k < self.strategy.last else 0
        own = shard.update_device_us if mode.update != "host" else 0
        forward += self.links.pack_us(shard) if mode.activations == "offload" else 0
        each = forward + backward_us(shard, mode)
        return count * each + (own + shard.norm_us) * (self.strategy.homes[k] == device)

    def copies_us(self, k: int, device: int, mode: Mode, times: int, count: int) -> tuple[int, int]:
        """The time of a shard's copies from the host in a round, and of those to it."""
        shard, home = self.strategy.shards[k], self.strategy.homes[k] == device
        aside = shard.in_bytes if mode.spilled else 0
        aside += (shard.offload_bytes or 0) if mode.activations == "offload" else 0
        come, go = count * self._in(aside), count * self._out(aside)
        if mode.params != "resident":
            come += (times if mode.params == "streamed" else 1) * self._in(shard.param_bytes)
        if home and mode.update == "host":
            go += self._out(shard.grad_bytes)
        if home and mode.update == "device-streamed":
            come += self._in(shard.state_bytes)
            go += self._out(shard.state_bytes)
            go += self._out(shard.param_bytes) if mode.params != "resident" else 0
        return come, go

    def _in(self, count: int) -> int:
        return self.links.prefetch_us(count) if count else 0

    def _out(self, count: int) -> int:
        return self.links.spill_us(count) if count else 0


class Chosen(NamedTuple):
    """A strategy with its modes, and about how long its rounds are."""

    strategy: PipelineStrategy
    us: int


def with_modes(
    strategy: PipelineStrategy,
    links: Links,
    room: Sequence[int] | None,
    host_room: int,
    effort: Effort,
) -> Chosen | None:
    """The strategy with the best modes; None where there are none.

    room: bytes of each device, beside buffers of layers; None for modes that take the fewest.
    host_room: bytes that may wait on the host.
    """
    choices = Choices(strategy, links)
    model, shards = minimise("modes"), range(len(strategy.shards))
    takes: list[dict[Mode, Any]] = []
    for k in shards:
        modes = enumerate(choices.modes(k))
        takes.append({m: model.add_variable(f"take_{k}_{n}", 0, 1, cat="Binary") for n, m in modes})
    aim = model.add_variable("period_us" if room else "room", 0)
    chain = [
        (forward_us(shard, mode) + backward_us(shard, mode), take)
        for shard, own in zip(strategy.shards, takes, strict=True)
        for mode, take in own.items()
    ]
    model += total([(1, aim), *chain]) if room else aim
    for own in takes:
        model += total((1, take) for take in own.values()) == 1
    for row in _times(choices, takes) if room else ():
        model += total([(1, aim), *((-us, take) for us, take in row)]) >= 0
    for window in windows(strategy):
        row = [
            (choices.held_bytes(window, held, mode) / _MEGA, take)
            for held in window.held
            for mode, take in takes[held.shard].items()
        ]
        model += total(row) <= (room[window.device] / _MEGA if room else aim)
    waits = [
        (_waiting(strategy, k, mode) / _MEGA, take)
        for k in shards
        for mode, take in takes[k].items()
    ]
    model += total(waits) <= host_room / _MEGA
    seconds = max(1.0, effort.left)
    found = solve(model, seconds=seconds, seed=effort.seed, gap=_GAP, nodes=_NODES)
    if not found.found:
        return None
    best = tuple(max(own, key=lambda mode, own=own: own[mode].value()) for own in takes)  # type: ignore[misc]
    return Chosen(replace(strategy, modes=best), round(found.objective or 0))


def _waiting(strategy: PipelineStrategy, k: int, mode: Mode) -> int:
    """The bytes of a shard that wait on the host."""
    one = replace(strategy, modes=(*strategy.modes[:k], mode, *strategy.modes[k + 1 :]))
    mine = (f"s{k}", f"x{k}", f"a{k}")
    return sum(align(size) for name, size in one.waiting() if name.split(".")[1] in mine)


def _times(
    choices: Choices, takes: Sequence[Mapping[Mode, Any]]
) -> Iterator[list[tuple[float, Any]]]:
    """Of every device what it computes, loads, sends to the host, and updates there."""
    strategy = choices.strategy
    times = loads(strategy)
    counts: dict[tuple[int, int], int] = {}
    for (k, _), device in strategy.where.items():
        counts[device, k] = counts.get((device, k), 0) + 1
    for device in range(strategy.devices):
        compute, come, go, host = (list[tuple[float, Any]]() for _ in range(4))
        for k, own in enumerate(takes):
            if (device, k) not in counts:
                continue
            for mode, take in own.items():
                us = choices.compute_us(k, device, mode, counts[device, k])
                compute.append((us, take))
                there, back = choices.copies_us(
                    k, device, mode, times[device, k], counts[device, k]
                )
                come.append((there, take))
                go.append((back, take))
                if mode.update == "host" and strategy.homes[k] == device:
                    host.append((strategy.shards[k].update_host_us, take))
        yield from (compute, come, go, host)
