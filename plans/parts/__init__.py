"""The part of a plan that one of several processes needs. It grows with what its own devices do,
not with the number of all devices.

A process knows its own ops, X that come to it, and by their places in their streams the ops of
other processes that these wait for:

    process 0   0.compute   F0 ─▶          has F0 and X0, which waits for F0 here, and tells
                0.p2p           X0 ─▶      process 2 of X0, if an op there waits for it
    process 1   1.compute           B0     has B0 and X0, which it takes
"""

from plans.parts.make import parts, whole
from plans.parts.part import Pair, Part, PhasePart, ProgramPart, SegmentPart, target_of
from plans.parts.split import phase_of, program_parts

__all__ = [
    "Pair",
    "Part",
    "PhasePart",
    "ProgramPart",
    "SegmentPart",
    "parts",
    "phase_of",
    "program_parts",
    "target_of",
    "whole",
]
