"""Signals between processes: counters in the memory that those of a node share, messages between
nodes.

    host store │ counters: rounds, when the latest were over │ rooms: facts, of devices and buffers
"""

import ctypes
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from executor.distributed.stores import PAGE, SharedMemory
from executor.distributed.values import pack_facts, unpack_facts
from executor.errors import RunError
from executor.replay import Facts, Stopped, signal_count
from plans.part import Part

_WORDS = 8  # of a counter: rounds, and the times of the latest
_ROOM = 1 << 17  # words that facts may take; pages are taken when they are touched
_LOOK_S = 0.1  # between two looks at whether the segment has ended
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_LIBC = ctypes.CDLL(None)

Check = Callable[[], None]


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_LONG = _Time(0, int(_LOOK_S * 1e9))


class Board:
    """The counters and rooms of a node, behind its host store of so many bytes."""

    def __init__(self, part: Part, memory: SharedMemory) -> None:
        begin = _paged(part.plan.host.bytes)
        self._words = memory.words[begin // 8 :]
        self._seconds = self._words.cast("B").cast("d")
        self._address = memory.address + begin
        *self._bases, rooms = accumulate(_counts(part), initial=0)
        self._rooms = rooms * _WORDS
        names = [buffer.name for buffer in part.plan.host.buffers]
        self._numbers = {name: n for n, name in enumerate(names, len(part.plan.devices))}

    def place(self, segment: int, number: int) -> int:
        """The number of a signal among those of all segments."""
        return self._bases[segment] + number

    def tell(self, place: int, number: int, at: float) -> None:
        """Round `number` of a signal is over; whoever waits for it is woken."""
        word = place * _WORDS
        self._seconds[word + 1 + number % (_WORDS - 1)] = at
        self._words[word] = number + 1
        if _FUTEX:
            _LIBC.syscall(_FUTEX, ctypes.c_void_p(self._address + 8 * word), 1, 1 << 30)

    def told(self, place: int, number: int, check: Check) -> float:
        """The time when round `number` was over, once it is."""
        word = place * _WORDS
        while (known := self._words[word]) <= number:
            check()
            self._wait(word, known)
        return self._seconds[word + 1 + number % (_WORDS - 1)]

    def _wait(self, word: int, known: int) -> None:
        """Wait until a counter is no longer this, or for a while."""
        if _FUTEX is None:
            time.sleep(50e-6)
            return
        at = ctypes.c_void_p(self._address + 8 * word)
        _LIBC.syscall(_FUTEX, at, 0, ctypes.c_int(known), ctypes.byref(_LONG), None, 0)

    def room(self, device: int) -> memoryview:
        """Where facts are that come with what a device sends."""
        begin = self._rooms + device * _ROOM
        return self._words[begin : begin + _ROOM]

    def tag(self, buffer: str) -> "Tagged":
        """The facts about a buffer of the host store."""
        return Tagged(self.room(self._numbers[buffer]))


def board_bytes(part: Part) -> int:
    """The bytes of a node's shared memory, most of which are never touched."""
    rooms = len(part.plan.devices) + len(part.plan.host.buffers)
    return _paged(part.plan.host.bytes) + 8 * (_WORDS * sum(_counts(part)) + _ROOM * rooms)


def _counts(part: Part) -> list[int]:
    return [
        signal_count(part.plan.program(one.program), part.owners(one)) for one in part.plan.segments
    ]


def _paged(count: int) -> int:
    return -(-count // PAGE) * PAGE


class Counter:
    """A signal within a node; room: for the facts that come with it."""

    def __init__(self, board: Board, place: int, room: memoryview | None) -> None:
        self._board, self._place, self._room = board, place, room
        self._facts: Facts | None = None

    def tell(self, number: int, at: float, facts: Facts | None = None) -> None:
        if self._room is not None:
            self._room[1] = -1 if facts == self._facts else _put(self._room, facts)
            self._facts = facts
        self._board.tell(self._place, number, at)

    def told(self, number: int, check: Check) -> tuple[float, Facts | None]:
        at = self._board.told(self._place, number, check)
        if self._room is not None and (size := self._room[1]) >= 0:
            self._facts = _get(self._room, size)
        return at, self._facts

    def cancel(self) -> None:
        """Who waits looks whether the segment has ended."""


class Tagged:
    """Facts beside a host buffer, written and read in the order of the ops that use it."""

    def __init__(self, room: memoryview) -> None:
        self._room, self._version = room, 0
        self._facts: Facts | None = None

    def write(self, facts: Facts | None) -> None:
        if facts == self._facts and self._version == self._room[0]:
            return
        self._room[1] = _put(self._room, facts)
        self._room[0] += 1
        self._facts, self._version = facts, self._room[0]

    def read(self) -> Facts | None:
        if self._version != self._room[0]:
            self._facts, self._version = _get(self._room, self._room[1]), self._room[0]
        return self._facts


def _put(room: memoryview, facts: Facts | None) -> int:
    """Write facts behind the first two words; their bytes."""
    said = encoded(facts)
    if len(said) > 8 * (_ROOM - 2):
        raise RunError(f"what is known of {facts.buffer if facts else ''} takes {len(said)} bytes")
    room.cast("B")[16 : 16 + len(said)] = said
    return len(said)


def _get(room: memoryview, size: int) -> Facts | None:
    return decoded(bytes(room.cast("B")[16 : 16 + size]))


def encoded(facts: Facts | None) -> bytes:
    return msgspec.msgpack.encode(pack_facts(facts)) if facts else b""


def decoded(said: bytes) -> Facts | None:
    return unpack_facts(msgspec.msgpack.decode(said)) if said else None


class Letter:
    """A signal between two nodes, to or from process `other`: of each round a header, how long the
    facts are (-1: as before), and in how many seconds it is over; and the facts. A negative round:
    no further ones come."""

    def __init__(self, group: dist.ProcessGroup, other: int, tag: int) -> None:
        self._group, self._other, self._tag = group, other, tag
        self._facts: Facts | None = None
        self._round = -1

    def tell(self, number: int, at: float, facts: Facts | None = None) -> None:
        said = b"" if facts == self._facts else encoded(facts)
        size = -1.0 if facts == self._facts else float(len(said))
        self._facts = facts
        left = at - time.perf_counter() if at else 0.0
        self._send(torch.tensor([float(number), size, left], dtype=torch.float64))
        if said:
            self._send(torch.frombuffer(bytearray(said), dtype=torch.uint8))

    def told(self, number: int, check: Check) -> tuple[float, Facts | None]:
        header = torch.empty(3, dtype=torch.float64)
        self._receive(header)
        round_index, size, left = header.tolist()
        if round_index < 0:
            raise Stopped
        if size >= 0:
            said = torch.empty(int(size), dtype=torch.uint8)
            if size:
                self._receive(said)
            self._facts = decoded(said.numpy().tobytes())
        return left + time.perf_counter() if left else 0.0, self._facts

    def cancel(self) -> None:
        last = torch.tensor([-1.0, 0.0, 0.0], dtype=torch.float64)
        with suppress(RuntimeError):  # who is gone waits for nothing
            dist.isend(last, self._other, group=self._group, tag=self._tag)

    def _send(self, flat: Tensor) -> None:
        self._with(dist.send, flat)

    def _receive(self, flat: Tensor) -> None:
        self._with(dist.recv, flat)

    def _with(self, call: Callable[..., object], flat: Tensor) -> None:
        try:
            call(flat, self._other, group=self._group, tag=self._tag)
        except RuntimeError:
            raise RunError(f"process {self._other} is gone or does not answer") from None
