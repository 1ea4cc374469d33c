"""Small problems, and every way to train one: all cuts, modes, blocks and microbatches.

What a strategy's streams are busy for bounds its period from below, so strategies are laid out and
simulated in ascending order of that, until no other can be shorter.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product

from msgspec import structs

from planner.inputs.problem import DeviceGroup, Problem
from planner.lowering import host_bytes as host
from planner.lowering.round import DeviceRound
from planner.lowering.walk import walked
from planner.rounds.slab import bytes_alive
from planner.shards.costs import TaskCosts, microbatch_costs
from planner.shards.modes import HELD, Activations, Held, Mode, Place, possible
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from profiles.schema import Device, Link, Rate, Task
from tests.support import synthetic


@dataclass(frozen=True)
class Palette:
    """Which modes are tried."""

    held: tuple[Held, ...] = HELD
    activations: tuple[Activations, ...] = ("recompute", "saved", "offload")
    spilled: tuple[bool, ...] = (False, True)

    def modes(self, links: Links) -> tuple[Mode, ...]:
        """All modes; nothing is packed at a rate that is not known."""
        acts = [act for act in self.activations if act != "offload" or links.d2d]
        return tuple(Mode(*held, *rest) for held, *rest in product(self.held, acts, self.spilled))


WHOLE = Palette()
PLAIN = Palette(
    (("streamed", "host"), ("kept", "host"), ("resident", "device")),
    ("recompute", "saved"),
    (False,),
)


@dataclass(frozen=True)
class Small:
    """One small task and one device."""

    task: Task
    device: Device
    device_bytes: int

    @cached_property
    def links(self) -> Links:
        return Links.of(self.device)

    @property
    def problem(self) -> Problem:
        kind = DeviceGroup("cpu", (self.task,), self.device, 1, self.device_bytes)
        return Problem((kind,), 1 << 40)


def small(seed: int, layers: int, *, norms: bool = False) -> Small:
    """A heterogeneous chain and a device that can just train it or nearly holds it, all random;
    its updates may wait for norms."""
    rng = random.Random(f"{seed}/{layers}")
    task = synthetic.task(
        "a",
        layers=layers,
        seed=seed,
        steps=1_000,
        batch=rng.choice([1, 2, 3, 4]),
        param_bytes=rng.choice([1 << 16, 1 << 18, 1 << 20]),
        boundary_bytes=rng.choice([1 << 12, 1 << 16, 1 << 18]),
        forward_us=rng.choice([200, 1_000, 5_000]),
        states=rng.choice([0, 2, 2, 6]),
        host_slowness=rng.choice([1, 1, 4, 20]),
        norms=norms,
    )
    costs = TaskCosts(task, task.batches[-1].microbatch)
    least = _streamed_bytes(task)
    whole = max(least, _whole_bytes(costs))
    # Around the rate at which copies take as long as what is computed beside them.
    balanced = costs.total("param_bytes") * 1_000_000 // costs.total("backward_us")
    return Small(
        task,
        device(rng, max(1, round(balanced * rng.choice([0.5, 1, 2, 4])))),
        least + round((whole - least) * rng.uniform(0, 1) ** 2),
    )


def _whole_bytes(costs: TaskCosts) -> int:
    held = costs.total("param_bytes") + costs.total("grad_bytes") + costs.total("state_bytes")
    return held + costs.batch_bytes + costs.backward_transient(0, len(costs.layers))


def _streamed_bytes(task: Task) -> int:
    """What the task needs with every layer a shard and every shard streamed."""
    count = len(task.layers)
    modes = (*(Mode(),) * (count - 1), Mode("kept"))
    costs, cuts = TaskCosts(task, 1), tuple(range(count + 1))
    return least_bytes(Strategy(costs, cuts, modes, count - 1))


def device(rng: random.Random, bytes_per_s: int) -> Device:
    """A device whose copies out may be slower, and slower still beside copies in."""
    made = synthetic.machine(usable_bytes=1 << 40, bytes_per_s=bytes_per_s).devices[0]
    inside = [link for link in made.links if link.kind == "d2d"]
    latency = rng.choice([0, 20, 200])
    both = rng.choice([100, 60, 120])  # percent
    links = [
        Link(kind, *(Rate(max(1, rate * share // 100), latency) for share in (100, both)))
        for kind, rate in (("h2d", bytes_per_s), ("d2h", bytes_per_s * rng.choice([1, 1, 2]) // 2))
    ]
    return structs.replace(made, links=(*links, *inside[: rng.choice([0, 1, 1])]))


def in_less(strategy: Strategy, percent: int) -> Strategy:
    """The strategy with the least memory on the host, or so much of what more it could use."""
    least, most = host.least_bytes(strategy), host.store(strategy).bytes
    fits = host.fitted(strategy, least + (most - least) * percent // 100)
    assert fits
    return fits


def faster(links: Links, way: str, percent: int) -> Links:
    """The links with one direction at so many percent of its rate, alone and beside the other."""
    names = way, f"{way}_both"
    rates = {name: getattr(links, name) for name in names}
    return replace(
        links,
        **{
            name: Rate(rate.bytes_per_s * percent // 100, rate.latency_us)
            for name, rate in rates.items()
        },
    )


def every_choice(task: Task, links: Links, palette: Palette = WHOLE) -> Iterator[Strategy]:
    """All microbatches, cuts, blocks and combinations of modes of a task."""
    count, modes = len(task.layers), palette.modes(links)
    for costs in microbatch_costs(task):
        for inner in (c for n in range(count) for c in combinations(range(1, count), n)):
            cuts = (0, *inner, count)
            last = len(cuts) - 2
            for block in range(last + 1) if costs.microbatches > 1 else (last,):
                ways = [
                    [mode for mode in modes if possible(costs.shard(*piece), mode, place)]
                    for k, piece in enumerate(pairwise(cuts))
                    for place in (Place(not k, k == last, block <= k < last),)
                ]
                for chosen in product(*ways):
                    yield Strategy(costs, cuts, chosen, block)


def some_choice(case: Small, rng: random.Random) -> Strategy:
    """One of all strategies of the case, a good or a bad one; microbatches packed may queue."""
    costs = rng.choice(microbatch_costs(case.task))
    return drawn(costs, range(len(costs.layers) + 1), case.links, rng)


def drawn(costs: TaskCosts, points: Sequence[int], links: Links, rng: random.Random) -> Strategy:
    """Cuts at some of these points, any mode that each shard may have, any block."""
    _, *inner, end = points
    cuts = (0, *sorted(rng.sample(inner, rng.randint(0, len(inner)))), end)
    last, modes = len(cuts) - 2, WHOLE.modes(links)
    block = rng.randint(0, last) if costs.microbatches > 1 else last
    chosen = tuple(
        partly(
            rng.choice([m for m in modes if possible(costs.shard(*piece), m, place)]), costs, rng
        )
        for k, piece in enumerate(pairwise(cuts))
        for place in (Place(not k, k == last, block <= k < last),)
    )
    depth = min(costs.microbatches, rng.choice([2, 2, 4]))
    return Strategy(costs, cuts, chosen, block, depth)


def partly(mode: Mode, costs: TaskCosts, rng: random.Random) -> Mode:
    """The mode; of a shard that packs, any number of microbatches may be recomputed."""
    some = rng.choice([0, rng.randrange(costs.microbatches)])
    return replace(mode, recomputed=some) if mode.activations == "offload" else mode


def fitted(strategy: Strategy, links: Links, device_bytes: int) -> DeviceRound | None:
    """The strategy laid out, or None when it takes more than there is."""
    made = DeviceRound(strategy, links, device_bytes)
    return made if made.device_bytes <= device_bytes else None


def least_bytes(strategy: Strategy) -> int:
    """No less memory would do: what is alive at once, beside the reserve."""
    walk = walked(strategy)
    return strategy.reserve_bytes + max(bytes_alive(walk.values[0], walk.lives.count[0]))


def describe(strategy: Strategy) -> str:
    """A strategy in a line."""
    shards = " ".join(
        f"{first}-{end}:{mode.params}/{mode.update}/{mode.activations}{'/spilled' * mode.spilled}"
        for (first, end), mode in zip(pairwise(strategy.cuts), strategy.modes, strict=True)
    )
    count = strategy.costs.microbatches
    return f"microbatches {count} block {strategy.block} depth {strategy.depth} {shards}"


class Loads:
    """How long the busiest stream is busy in a round of a strategy.

    What a shard adds to each stream depends on its own mode only, so it is found once. Norms are
    copied where any shard is updated on the host.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.known: dict[object, dict[str, int]] = {}

    def us(self, strategy: Strategy) -> int:
        keys = [
            (strategy.costs.microbatch, piece, mode, k == strategy.last)
            for k, (piece, mode) in enumerate(
                zip(pairwise(strategy.cuts), strategy.modes, strict=True)
            )
        ]
        if any(key not in self.known for key in keys):
            self._learn(strategy, keys)
        busy = dict.fromkeys(("0.compute", "0.h2d", "0.d2h", "host.0"), 0)
        for key in (strategy.costs.microbatch, *keys):
            for stream, us in self.known[key].items():
                busy[stream] += us
        pairs = zip(strategy.shards, strategy.modes, strict=True)
        if strategy.costs.noted and any(s.grad_bytes and m.update == "host" for s, m in pairs):
            busy["0.d2h"] += self.links.spill_us(strategy.costs.task.norm_bytes)
        return max(busy.values())

    def of(self, strategy: Strategy, k: int) -> dict[str, int]:
        """What shard k adds to each stream."""
        self.us(strategy)
        first, end = strategy.cuts[k : k + 2]
        return self.known[
            strategy.costs.microbatch, (first, end), strategy.modes[k], k == strategy.last
        ]

    def _learn(self, strategy: Strategy, keys: Sequence[object]) -> None:
        """From the round's ops by shard; those of no shard load the batch."""
        added: dict[object, dict[str, int]] = {}
        for item in DeviceRound(strategy, self.links).entries:
            name, stream = item.name, str(item.stream)
            if name.item == "norm":
                continue
            key = strategy.costs.microbatch if name.item == "batch" else keys[name.number]
            busy = added.setdefault(key, {})
            busy[stream] = busy.get(stream, 0) + item.us
        self.known |= added


def shortest(
    task: Task, links: Links, device_bytes: int, palette: Palette = WHOLE, below: int | None = None
) -> DeviceRound | None:
    """The round of the shortest period of all that fit; None when none is `below` so many µs."""
    loads = Loads(links)
    strategies = [
        (loads.us(strategy), number, strategy)
        for number, strategy in enumerate(every_choice(task, links, palette))
    ]
    best: DeviceRound | None = None
    for load, _, strategy in sorted(strategies, key=lambda item: item[:2]):
        if below is not None and load >= below:
            break
        if least_bytes(strategy) > device_bytes:
            continue
        made = fitted(strategy, links, device_bytes)
        if made and (below is None or made.period_us < below):
            best, below = made, made.period_us
    return best
