"""Messages between the processes of a run, by way of torchrun's store; a thread reads those that
come.

A process that ends without a word, or is stopped, says nothing: the others of its node ask the
system for it, and torchrun ends all processes when one has ended. Between nodes a connection to
process 0 ends with the process that holds it.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from math import inf
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from executor.distributed.messages import AnyMessage, Bye, Gone, Message
from executor.distributed.world import Mates, World
from executor.errors import ProcessError, RunError, text_of

M = TypeVar("M", bound=Message)

_LOOK_S = 0.004  # between two looks for messages
_STORE = "torchrun is gone, and with it the store by which processes talk"
_LINE = (1 << 31) - 1  # tag of what is never sent
_MATES_S = 0.25  # between two looks at the processes of this node

Heard = Callable[[int, Message], None]  # a message of a process, the last of which is Gone


class Mesh:
    """The messages of a process to and from all others; `store` makes a connection of its own.
    pids: of those of this node.

    silence_s: so long no process may be stopped. gone: the processes that are, and how that is
    known; codes: of those that have said that they end, their exit codes."""

    def __init__(
        self, world: World, store: Callable[[], Store], pids: Mapping[int, int], silence_s: float
    ) -> None:
        self.gone: dict[int, str] = {}
        self.codes: dict[int, int] = {}
        self.others = [rank for rank in range(world.size) if rank != world.rank]
        self._rank, self._silence_s, self._mates = world.rank, silence_s, Mates(pids)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)
        self._out, self._sending = store(), threading.Lock()
        self._in, self._next = store(), 1
        self._kept: list[tuple[int, Message]] = []  # until somebody listens
        self._heard: Heard | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._cut = False  # from the store
        self._far = [
            rank for rank in self.others if rank not in world.mates and 0 in (rank, world.rank)
        ]
        self._ended: dict[int, str] = {}  # of other nodes
        threading.Thread(target=self._read, daemon=True, name="messages").start()

    def hold(self, group: dist.ProcessGroup) -> None:
        """Know of the ends of processes on other nodes: process 0 of all, and these of it."""
        for rank in self._far:
            thread = threading.Thread(target=self._hold, args=(group, rank), daemon=True)
            thread.start()

    def _hold(self, group: dist.ProcessGroup, rank: int) -> None:
        with suppress(RuntimeError):
            dist.recv(torch.empty(1), rank, group=group, tag=_LINE)
        self._ended[rank] = f"process {rank} is gone, with its node or by itself: see its output"

    def listen(self, heard: Heard) -> None:
        """Hand on all that has come and comes from now on, from one thread."""
        with self._changed:
            for rank, message in self._kept:
                heard(rank, message)
            self._heard = heard

    def send(self, rank: int, message: Message) -> None:
        """RunError where the process is gone."""
        if rank in self.gone:
            raise RunError(self.gone[rank])
        content = self._rank.to_bytes(4) + self._encoder.encode(message)
        try:
            with self._sending:
                number = self._out.add(f"to {rank}", 1)
                self._out.set(f"{rank} {number}", content)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise RunError(f"{_STORE}: {text_of(error)}") from None

    def receive(self, ranks: Collection[int], deadline: float = inf) -> tuple[int, Message]:
        """The next message of any of these processes, before `listen`; RunError where one of them
        is gone, or process 0, or none has come when time.monotonic() is the deadline."""
        with self._changed:
            while True:
                for place, (rank, message) in enumerate(self._kept):
                    if isinstance(message, Gone) and rank in {0, *ranks}:
                        raise RunError(message.text)
                    if rank in ranks:
                        del self._kept[place]
                        return rank, message
                left_s = deadline - time.monotonic()
                if left_s < 0:
                    raise RunError(
                        f"process {min(ranks)} is alive and does not get ready; raise "
                        "--stall-seconds if its models only take long to build"
                    )
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))

    def loss(self, seconds: float) -> str:
        """The reason why a process is gone, or is within so many seconds; empty if none is."""
        with self._changed:
            self._changed.wait_for(lambda: self.gone, seconds)
            return next(iter(self.gone.values()), "")

    @property
    def tells(self) -> bool:
        """True if this process is the one to say why the run ends: the first of those that are
        left."""
        if self._cut:
            return self._rank == 0
        left = {*self.others, self._rank} - self.gone.keys()
        return min(left) == self._rank and 0 not in self.codes

    def part(self, seconds: float) -> list[int]:
        """Wait until all others have left, no longer than so; those that have not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left(), seconds)
            return self._left()

    def _left(self) -> list[int]:
        return [rank for rank in self.others if rank not in self.codes and rank not in self.gone]

    def expect(self, rank: int, kind: type[M]) -> M:
        """The next message of a process, which is of this kind; ProcessError where it is Bye."""
        _, message = self.receive([rank])
        if isinstance(message, Bye):
            raise ProcessError("process 0 has ended the run", message.code)
        assert isinstance(message, kind), message
        return message

    def close(self) -> None:
        """Read no more."""
        self._closed.set()

    def _read(self) -> None:
        look = 0.0
        while not self._closed.wait(_LOOK_S):
            try:
                self._take()
                if time.monotonic() > look:
                    look = time.monotonic() + _MATES_S
                    if lost := {**self._mates.lost(self._silence_s), **self._ended}:
                        self._take()  # what they have said last
                    for rank in lost.keys() - self.codes.keys():
                        self._hand_on(rank, Gone(lost[rank]))
            except RuntimeError as error:
                self._cut = True
                for rank in self.others:
                    self._hand_on(rank, Gone(f"{_STORE}: {text_of(error)}"))
                return

    def _take(self) -> None:
        """Hand on the messages that have come."""
        while self._in.check([key := f"{self._rank} {self._next}"]):
            content = self._in.get(key)
            self._in.delete_key(key)
            self._next += 1
            other = int.from_bytes(content[:4])
            try:
                self._hand_on(other, self._decoder.decode(content[4:]))
            except Exception as error:
                text = f"process {other} sends what cannot be used: {text_of(error)}"
                self._hand_on(other, Gone(text))

    def _hand_on(self, other: int, message: Message) -> None:
        with self._changed:
            if isinstance(message, Gone):
                if other in self.gone:
                    return
                self.gone[other] = message.text
            if isinstance(message, Bye):
                self.codes[other] = message.code
            if (heard := self._heard) is None:
                self._kept.append((other, message))
            self._changed.notify_all()
        if heard:
            heard(other, message)
