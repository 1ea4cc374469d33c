"""Who an op is and where it runs, typed: an op's id and its stream, taken apart."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class OpKind(StrEnum):
    """The kinds of ops, by the letter in an op's id."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRAD = "I"
    WEIGHT_GRAD = "W"
    NORM = "N"
    UPDATE = "U"
    REDUCE = "R"
    PREFETCH = "P"
    SPILL = "S"
    SEND = "X"


COPIES = frozenset({OpKind.PREFETCH, OpKind.SPILL, OpKind.SEND})
COMPUTES = frozenset(OpKind) - COPIES
BACKWARDS = frozenset({OpKind.BACKWARD, OpKind.INPUT_GRAD, OpKind.WEIGHT_GRAD})
PASSES = BACKWARDS | {OpKind.FORWARD}
GRADIENTS = frozenset({OpKind.BACKWARD, OpKind.WEIGHT_GRAD})
"""Kinds that add a microbatch to the gradients of parameters."""


@dataclass(frozen=True)
class OpName:
    """An op id taken apart: `gpt-a.s3.F2` is task gpt-a, item s, number 3, kind F, index 2."""

    task: str
    item: str
    number: int
    kind: OpKind
    index: int

    @property
    def value(self) -> str:
        """The item and its number as an id has them: `s3`, `batch`."""
        return self.item if self.item in ("batch", "norm") else f"{self.item}{self.number}"

    def __str__(self) -> str:
        return f"{self.task}.{self.value}.{self.kind}{self.index}"


class Lane(StrEnum):
    """The queues of a device; `host` is the host's for the updates of what the device trains."""

    COMPUTE = "compute"
    H2D = "h2d"
    D2H = "d2h"
    P2P = "p2p"
    HOST = "host"


class Stream(NamedTuple):
    """A queue of a device: `1.h2d` in text, and `host.1` of the host."""

    device: int
    lane: Lane

    def __str__(self) -> str:
        return f"host.{self.device}" if self.lane == "host" else f"{self.device}.{self.lane}"


_OP_ID = re.compile(
    r"(?P<task>[^.]+)\.(?P<item>[a-z]+)(?P<number>\d*)\.(?P<kind>[FBIWNURPSX])(?P<index>\d+)"
)


@lru_cache(maxsize=1 << 17)  # more than the ops of a round of 100,000
def parse_id(op_id: str) -> OpName:
    """The parts of an op id; ValueError when it is none."""
    match = _OP_ID.fullmatch(op_id)
    if not match:
        raise ValueError(f"{op_id!r} is not an op name")
    task, item, number, kind, index = match.groups()
    return OpName(task, item, int(number or 0), OpKind(kind), int(index))


_LANES = frozenset(Lane)


@lru_cache(maxsize=1 << 12)
def parse_stream(text: str) -> Stream:
    """A stream by its name; ValueError unless that is written canonically."""
    left, _, right = text.partition(".")
    device, lane = (right, left) if left == "host" else (left, right)
    if lane in _LANES and device.isdecimal():
        stream = Stream(int(device), Lane(lane))
        if text == str(stream):
            return stream
    raise ValueError(f"{text!r} is not a stream name")
