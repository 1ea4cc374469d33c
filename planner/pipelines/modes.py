"""The modes of all shards of a pipeline, from one program over the windows of all its devices.

minimise   T + a part of all work
T     >=   what each device computes and waits for others, loads and sends to host and replicas
T     >=   host updates, and a shard's passes until its parameters are back for the next round
slab  >=   what each device holds there in each of its windows
room  >=   its slab, and what is beside that in each of its windows
host  >=   what the host keeps and what waits there
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from planner.bounds import MB, MS, Constraint, Linear, Row
from planner.inputs import Effort
from planner.lowering import PipelineStrategy
from planner.pipelines.choices import Choices
from planner.pipelines.delays import Delays
from planner.pipelines.windows import Held, Window, loads, windows
from planner.shards import Links, Mode, backward_us, forward_us
from profiles.codec import align

_GAP, _NODES = 1e-2, 30  # of the search for whole modes
_T, _CHAIN, _WORK, _SLABS = 1, 2, 3, 4  # columns
_EASE = 0.03  # that work of all streams counts for: what is not waited for may yet be in the way


class Chosen(NamedTuple):
    """Strategies of the same shards in the same modes, one or several, and about how long their
    rounds are, weighed."""

    strategies: tuple[PipelineStrategy, ...]
    us: int

    @property
    def strategy(self) -> PipelineStrategy:
        """The first."""
        return self.strategies[0]


@dataclass(frozen=True, eq=False)
class ModeProgram:
    """The program of a strategy. room: bytes of each device, beside buffers of layers; host_room:
    bytes that may wait on the host of each node.

    Columns: 1, T (ms), what one microbatch takes through all shards, a part of what all streams do,
    the slab (MB) of each device, and one for each mode of each shard, which is between 0 and 1.
    """

    strategy: PipelineStrategy
    links: Links
    room: tuple[int, ...]
    host_room: tuple[int, ...]

    @cached_property
    def choices(self) -> Choices:
        """The modes that each shard may have."""
        return Choices(self.strategy, self.links)

    @cached_property
    def delays(self) -> Delays:
        return Delays(self.strategy, self.links)

    @cached_property
    def slabs(self) -> list[int]:
        """The column of each device's slab. Replicas have one, since all that is beside their slabs
        is the same."""
        own, known = self.strategy, dict[object, int]()
        return [
            known.setdefault((room, id(on), tuple((p.kind, p.shard) for p in passes)), at)
            for room, on, passes in zip(self.room, own.on, own.order, strict=True)
            for at in [_SLABS + len(known)]
        ]

    @property
    def first(self) -> int:
        """The first column of a mode."""
        return max(self.slabs) + 1

    @cached_property
    def takes(self) -> list[tuple[int, Mode]]:
        """The shard and the mode of every column from the first one of a mode on."""
        shards = range(len(self.strategy.shards))
        return [(k, mode) for k in shards for mode in self.choices.modes(k)]

    @cached_property
    def of(self) -> list[list[tuple[int, Mode]]]:
        """For every shard its columns, with their modes."""
        found: list[list[tuple[int, Mode]]] = [[] for _ in self.strategy.shards]
        for column, (k, mode) in enumerate(self.takes, self.first):
            found[k].append((column, mode))
        return found

    @cached_property
    def windows(self) -> list[Window]:
        """Where devices may hold most."""
        return list(windows(self.strategy))

    @cached_property
    def memory(self) -> list[tuple[float | None, Row]]:
        """For every window what is there in MB: of the slab less the slab, which is at most 0, and
        with the slab what is beside it, and the room for that; of replicas once."""
        found = dict[tuple[float | None, tuple[tuple[float, int], ...]], None]()
        for window in self.windows:
            slab = self.slabs[window.device]
            inside, beside = [(-1.0, slab)], [(1.0, slab)]
            for held in window.held:
                for column, mode in self.of[held.shard]:
                    sizes = self.choices.held_bytes(window, held, mode)
                    inside.append((sizes[0] / MB, column))
                    beside += [(sizes[1] / MB, column)] if sizes[1] else []
            found[None, tuple(inside)] = found[self.room[window.device] / MB, tuple(beside)] = None
        return [(room, list(row)) for room, row in found]

    @cached_property
    def rows(self) -> list[Constraint]:
        """All that must hold, beside memory on the devices."""
        chain: Row = [(-1, _CHAIN)]
        waits: list[Row] = [[] for _ in self.host_room]
        for column, (k, mode) in enumerate(self.takes, self.first):
            shard = self.strategy.shards[k]
            chain.append(((forward_us(shard, mode) + backward_us(shard, mode)) / MS, column))
            for node, row in enumerate(waits):
                row.append((self._waiting(k, mode, node) / MB, column))
        one = [Constraint([(1, column) for column, _ in own], 1, 1) for own in self.of]
        times = list(self._times())
        work = [(by * _EASE / self.strategy.devices, c) for row in times for by, c in row]
        every = [*times, *self._updates()]
        # Replicas are alike.
        limits = [
            Constraint([(1, _T), *row], 0, math.inf) for row in dict.fromkeys(map(tuple, every))
        ]
        host = [
            Constraint(row, -math.inf, room / MB)
            for row, room in zip(waits, self.host_room, strict=True)
        ]
        return [
            *one,
            *limits,
            Constraint(chain, 0, 0),
            Constraint([(1, _WORK), *work], 0, math.inf),
            *host,
        ]

    @cached_property
    def _passing(self) -> Counter[tuple[int, int]]:
        """The microbatches of every shard on each node."""
        where = self.strategy.where.items()
        return Counter((k, self.links.node_of(device)) for (k, _), device in where)

    def _waiting(self, k: int, mode: Mode, node: int) -> int:
        """The bytes of a shard that wait on a node's host."""
        shard, home = self.strategy.shards[k], self.links.node_of(self.strategy.homes[k])
        aside = align(shard.in_bytes) if mode.spilled else 0
        aside += align(shard.offload_bytes or 0) if mode.activations == "offload" else 0
        updated = mode.update == "host" and node == home
        return align(shard.grad_bytes) * updated + self._passing[k, node] * aside

    def _times(self) -> Iterator[Row]:
        """The time of each device's computing, loads, spills, host updates and sends to replicas;
        negative."""
        strategy, choices, times = self.strategy, self.choices, loads(self.strategy)
        counts = Counter((device, k) for (k, _), device in strategy.where.items())
        for device in range(strategy.devices):
            # Others that take longer are waited for longer.
            waited = self.delays.idle[device] / max(1, self.delays.chain_us)
            rows: list[Row] = [[(-waited, _CHAIN)], [], [], [], []]
            for k in (k for k in range(len(strategy.shards)) if counts[device, k]):
                home, count = strategy.homes[k] == device, counts[device, k]
                for column, mode in self.of[k]:
                    host = strategy.shards[k].update_host_us * (mode.update == "host" and home)
                    copies = choices.copies_us(k, device, mode, times[device, k], count)
                    sent = choices.sent_us(k, device, mode)
                    every = (choices.compute_us(k, device, mode, count), *copies, host, sent)
                    for row, us in zip(rows, every, strict=True):
                        row.append((-us / MS, column))
            yield from rows

    def _updates(self) -> Iterator[Row]:
        """Forwards of the next round wait for parameters, behind those of others; negative."""
        delays = self.delays
        for device in range(self.strategy.devices):
            mine = [k for k, shard in enumerate(self.strategy.shards) if shard.grad_bytes]
            mine = [k for k in mine if self.strategy.homes[k] == device]
            mine.sort(key=lambda k: delays.gathered[k])
            for place, k in enumerate(mine):
                yield _negative((delays.back_us(k, k, mode), c) for c, mode in self.of[k])
                for lane in ("host", "p2p") if place else ():
                    on = [[p for p in self.of[n] if delays.lane(n, p[1]) == lane] for n in mine]
                    for at in range(place if on[place] else 0):
                        row = _negative(
                            (delays.back_us(mine[at], k, mode), c) for c, mode in on[place]
                        )
                        for other, pairs in zip(mine[at:place], on[at:place], strict=True):
                            row += _negative(
                                (delays.served_us(other, mode), c) for c, mode in pairs
                            )
                        yield row

    def held(self, modes: Sequence[Mode]) -> list[int]:
        """The bytes of each device's slab and the most beside it."""
        slab, beside = ([0] * self.strategy.devices for _ in range(2))
        for window in self.windows:
            pairs = [self.choices.held_bytes(window, own, modes[own.shard]) for own in window.held]
            for most, sizes in zip((slab, beside), zip(*pairs, strict=True), strict=True):
                most[window.device] = max(most[window.device], sum(sizes))
        return [sum(pair) for pair in zip(slab, beside, strict=True)]

    def relaxed(self, effort: Effort) -> Chosen | None:
        """The period where shards may have parts of several modes, with whole modes of which each
        device has about as much; None where none fit."""
        fits = [Constraint(row, -math.inf, room or 0) for room, row in self.memory]
        linear = Linear(self.first + len(self.takes), [*self.rows, *fits], {_T: 1.0, _WORK: 1.0})
        outcome, values = linear.solve((), seconds=max(1.0, effort.left), seed=effort.seed)
        if not outcome.objective:
            return None
        owed, modes = defaultdict[tuple[int, Mode], float](float), list[Mode]()
        for home, own in zip(self.strategy.homes, self.of, strict=True):
            for column, mode in own:
                owed[home, mode] += values[column]
            modes.append(max((mode for _, mode in own), key=lambda mode: owed[home, mode]))
            owed[home, modes[-1]] -= 1
        return Chosen((replace(self.strategy, modes=tuple(modes)),), round(values[_T] * MS))

    def thrifty(self, effort: Effort, *, saved: bool = False) -> PipelineStrategy | None:
        """The strategy in the modes that hold least, shard by shard in all windows together; where
        the host has no room for what they put there, in those that hold least in the fullest one.
        saved: of those in which graphs stay, where they can."""
        size = self.choices.held_bytes
        held: list[list[tuple[Window, Held]]] = [[] for _ in self.of]
        for window in self.windows:
            for own in window.held:
                held[own.shard].append((window, own))
        modes = tuple(
            min(
                [mode for mode in self.choices.modes(k) if mode.activations == "saved" or not saved]
                or self.choices.modes(k),
                key=lambda mode: sum(sum(size(*pair, mode)) for pair in pairs),
            )
            for k, pairs in enumerate(held)
        )
        waits = [
            sum(self._waiting(k, mode, node) for k, mode in enumerate(modes))
            for node in range(len(self.host_room))
        ]
        if any(need > room for need, room in zip(waits, self.host_room, strict=True)):
            chosen = self.chosen(effort, least=True)
            return chosen.strategy if chosen else None
        return replace(self.strategy, modes=modes, tight=True)

    def chosen(self, effort: Effort, *, least: bool = False) -> Chosen | None:
        """Whole modes, the best ones found, or those that take the least of all devices; None where
        there are none."""
        return chosen_for((self,), (1,), effort, least=least)


def chosen_for(
    programs: Sequence[ModeProgram], weights: Sequence[float], effort: Effort, *, least: bool
) -> Chosen | None:
    """Whole modes for strategies of the same shards, the same in all of them; None where there are
    none. The best ones found, where the rounds of each strategy count by its weight; or `least`,
    those that take the least of all devices."""
    more = sum(program.first - 1 for program in programs[1:])  # columns of the others
    before = 0  # columns of those before
    takes = programs[0].first + more
    most = takes + len(programs[0].takes)
    rows, aims = list[Constraint](), {most: 1.0} if least else {}
    for program, weight in zip(programs, weights, strict=True):

        def own(row: Row, first: int = program.first, before: int = before) -> Row:
            return [
                (by, at + (takes - first if at >= first else before if at else 0)) for by, at in row
            ]

        rows += [Constraint(own(row), low, high) for row, low, high in program.rows]
        for room, row in program.memory:
            free = least and room is not None
            limited = [*own(row), *([(-1.0, most)] if free else [])]
            rows.append(Constraint(limited, -math.inf, 0 if free else room or 0))
        if not least:
            aims |= {at + before: weight for at in (_T, _WORK)}
        before += program.first - 1
    found, values = Linear(most + 1, rows, aims).solve_whole(
        range(takes, most),
        seconds=max(1.0, effort.left),
        seed=effort.seed,
        gap=_GAP,
        nodes=_NODES,
    )
    if not found.found:
        return None
    of = programs[0].of
    modes = tuple(max(own, key=lambda pair: values[pair[0] + more])[1] for own in of)
    us = round((found.objective or 0) * MS)
    return Chosen(tuple(replace(one.strategy, modes=modes, tight=least) for one in programs), us)


def _negative(row: Iterable[tuple[int, int]]) -> Row:
    """The least T, on its side of a row."""
    return [(-us / MS, column) for us, column in row]
