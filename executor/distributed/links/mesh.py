"""Connections between all processes of a run, for messages; each is read by a thread of its own.

A process that ends, however it does, closes its connections: whoever reads from one knows at once.
One that is frozen closes nothing. So the process that leads and each other one let each other hear
a beat, and whoever is silent for too long counts as gone.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import msgspec

from executor.distributed.messages import AnyMessage, Beat, Bye, Gone, Message
from executor.errors import ProcessError, RunError, text_of

M = TypeVar("M", bound=Message)

_BEAT_S = 1.0  # between two beats, if no shorter silence is too long
_LOOK_S = 0.005  # between two looks at whether a process is there

Heard = Callable[[int, Message], None]  # a message of a process, the last of which is Gone


class Mesh:
    """The connections of process `rank` to all others.

    silence_s: what silence is too long. gone: the processes that are, and how that is known; codes:
    of those that have said that they end, their exit codes."""

    def __init__(self, rank: int, ends: dict[int, Connection], silence_s: float) -> None:
        self.gone: dict[int, str] = {}
        self.codes: dict[int, int] = {}
        self._rank, self._silence_s = rank, silence_s
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)
        self._locks = {other: threading.Lock() for other in ends}
        self._ends = ends
        self._kept: list[tuple[int, Message]] = []  # until somebody listens
        self._heard: Heard = self._keep
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._closed = threading.Event()
        self._latest = dict.fromkeys(self._ends, time.monotonic())
        for other, end in self._ends.items():
            _thread(f"from {other}", partial(self._read, other, end))
        _thread("beats", partial(self._beat, [0] if rank else self.others))

    @property
    def others(self) -> list[int]:
        """All other processes."""
        return sorted(self._ends)

    def listen(self, heard: Heard) -> None:
        """Hand on all that has come and comes from now on, from a thread for each process."""
        with self._changed:
            for rank, message in self._kept:
                heard(rank, message)
            self._heard = heard

    def send(self, rank: int, message: Message) -> None:
        """RunError where the process is gone."""
        content = self._encoder.encode(message)
        try:
            with self._locks[rank]:
                self._ends[rank].send_bytes(content)
        except OSError:
            raise RunError(self.gone.get(rank, f"process {rank} is gone")) from None

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
        left = {*self._ends, self._rank} - self.gone.keys()
        return min(left) == self._rank and 0 not in self.codes

    def part(self, seconds: float) -> list[int]:
        """Wait until all others have left, no longer than so; those that have not, or are stopped
        before they end. Who has left may begin another run."""
        deadline = time.monotonic() + seconds
        while left := [
            one for one in self._ends if one not in self.gone or self._state(one) == "T"
        ]:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        return left

    def kill(self, other: int) -> None:
        """End a process at once, if that can be from here."""
        if self._state(other) not in ("", "Z"):
            with suppress(OSError):
                os.kill(self._pids[other], signal.SIGKILL)

    def expect(self, rank: int, kind: type[M]) -> M:
        """The next message of a process, which is of this kind; ProcessError where it is Bye."""
        _, message = self.receive([rank])
        if isinstance(message, Bye):
            raise ProcessError("process 0 has ended the run", message.code)
        assert isinstance(message, kind), message
        return message

    def close(self) -> None:
        """End all connections, and with them the threads that read."""
        self._closed.set()
        for end in self._ends.values():
            with suppress(OSError), _socket(end) as same:
                same.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                end.close()

    def _read(self, other: int, end: Connection) -> None:
        while other not in self.gone:
            try:
                message = self._decoder.decode(end.recv_bytes())
            except (OSError, EOFError, TypeError):  # the last: closed here, by another thread
                message = Gone(f"process {other} is gone, it was killed or crashed: see its output")
            except msgspec.DecodeError as error:
                message = Gone(f"process {other} sends what is no message: {error}")
            if self._closed.is_set():
                return
            self._latest[other] = time.monotonic()
            if isinstance(message, Bye):
                self.codes[other] = message.code
            if isinstance(message, Beat):
                self._pids[other] = message.pid
                continue
            try:
                self._hand_on(other, message)
            except Exception as error:
                text = f"process {other} sends what cannot be used: {text_of(error)}"
                self._hand_on(other, Gone(text))

    def _hand_on(self, other: int, message: Message) -> None:
        with self._changed:
            if isinstance(message, Gone):
                if other in self.gone:
                    return
                self.gone[other] = message.text
            heard = self._heard
            if heard == self._keep:
                heard(other, message)
            self._changed.notify_all()
        if heard != self._keep:
            heard(other, message)

    def _keep(self, other: int, message: Message) -> None:
        self._kept.append((other, message))

    def _beat(self, others: Collection[int]) -> None:
        """Let these hear that this process is alive, and hear whether they are."""
        beat = self._encoder.encode(Beat(os.getpid()))
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            pause_s = min(_BEAT_S, self._silence_s / 4)
            for other in set(others) - self.gone.keys():
                silence = time.monotonic() - self._latest[other]
                if silence > self._silence_s:
                    self._lose(other, silence)
                elif self._locks[other].acquire(blocking=False):
                    with suppress(OSError, ValueError):
                        if select.select([], [self._ends[other]], [], 0)[1]:
                            self._ends[other].send_bytes(beat)
                    self._locks[other].release()

    def _lose(self, other: int, silence: float) -> None:
        """A process is frozen: end it, if that can be from here, and whoever waits to send to
        it."""
        text = (
            f"process {other} has said nothing for {silence:.1f} s, the limit is "
            f"{self._silence_s:g}: it hangs, or was stopped; raise --stall-seconds if it is only "
            "slow"
        )
        self._hand_on(other, Gone(text))
        self.kill(other)
        with suppress(OSError), _socket(self._ends[other]) as end:
            end.shutdown(socket.SHUT_RDWR)

    def _state(self, other: int) -> str:
        """The letter that the system has for it; empty unless it is of this one's torchrun."""
        try:
            stat = Path(f"/proc/{self._pids[other]}/stat").read_text().rpartition(")")[2].split()
        except (KeyError, OSError):
            return ""
        return stat[0] if int(stat[1]) == os.getppid() else ""


def _socket(end: Connection) -> socket.socket:
    """The connection's socket, by a descriptor of its own."""
    return socket.socket(fileno=os.dup(end.fileno()))


def _thread(name: str, play: Callable[[], None]) -> None:
    threading.Thread(target=play, daemon=True, name=name).start()
