"""A pipeline's rounds with the best modes that fit: the program of its modes, asked again with less
memory where a round that is laid out takes more than the program sees.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from planner.inputs import Effort
from planner.lowering import PipelineRound, PipelineStrategy
from planner.pipelines.modes import ModeProgram, chosen_for
from planner.shards import Links

_SHRINKS = 4  # times that modes are asked for with less memory
_LONGER = 32  # by 1/n longer rounds are not made with less memory
NO_ROOM = "does not fit"


def mode_program(
    strategy: PipelineStrategy, links: Links, room: int, host_bytes: int
) -> ModeProgram:
    """The program that chooses the modes of a strategy. room: bytes of each device; host_bytes: of
    each node's host, with all that is kept there."""
    rooms = (room - strategy.costs.total("buffer"),) * strategy.devices
    return ModeProgram(strategy, links, rooms, tuple(host_bytes - n for n in kept(strategy, links)))


def kept(strategy: PipelineStrategy, links: Links) -> list[int]:
    """The bytes that the host of each node keeps: of the shards that its devices use."""
    sizes = [0] * (links.node_of(strategy.devices - 1) + 1)
    for k, shard in enumerate(strategy.shards):
        for node in {links.node_of(d) for d in (strategy.homes[k], *strategy.users[k])}:
            sizes[node] += shard.kept_bytes
    return sizes


def fitted(program: ModeProgram, room: int, shortest: int, effort: Effort) -> PipelineRound | str:
    """The round with the best modes on devices of so many bytes; or why there is none, also where a
    round that takes too much is no shorter than `shortest` µs: with less memory it is longer."""
    found = all_fitted((program,), (1,), room, shortest, effort)
    return found if isinstance(found, str) else found[0]


def all_fitted(
    programs: Sequence[ModeProgram],
    weights: Sequence[float],
    room: int,
    shortest: int,
    effort: Effort,
) -> list[PipelineRound] | str:
    """The same for several strategies of the same shards, which get the same modes. The rounds of
    each count by its weight."""
    least = False
    for _ in range(_SHRINKS):
        chosen = chosen_for(programs, weights, effort, least=least)
        if chosen:
            pairs = zip(chosen.strategies, programs, strict=True)
            made = [PipelineRound(strategy, program.links, room) for strategy, program in pairs]
            if all(one.device_bytes <= room for one in made):
                return made
            took = zip(weights, made, strict=True)
            us = sum(weight * one.period_us for weight, one in took)
            if us - shortest >= shortest // _LONGER:
                return "longer with less memory"
            programs = [*map(smaller, programs, made, repeat(room))]
        if least:
            break
        least = chosen is None
    return NO_ROOM


def smaller(program: ModeProgram, made: PipelineRound, room: int) -> ModeProgram:
    """The program with less room, by what a round in modes of it takes that the program does not
    see: gaps between values, or more of them."""
    seen = zip(program.room, program.held(made.strategy.modes), made.memory, strict=True)
    rooms = (min(own, held + room - one.bytes) for own, held, one in seen)
    return replace(program, room=tuple(rooms))
