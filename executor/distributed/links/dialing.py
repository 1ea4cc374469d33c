"""Connections between all processes, each to each, made once at the start.

Whoever cannot say the secret in time is sent away, and holds nobody up whatever else it does.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from executor.distributed.meeting import Board

_GUEST_S = 3  # that whoever connects has to say the secret
_GUESTS = 128  # at once; there are more descriptors than that
_NUMBER = 32  # the most bytes that say a process' number


def connections(board: Board, address: str) -> dict[int, Connection]:
    """The connections of this process, which others reach at this address, to all others."""
    rank, size, key = board.world.rank, board.world.size, board.key("messages")
    door = _Door(address, key, range(rank + 1, size))
    try:
        places = board.gather("place", f"{address} {door.port}")
        ends = {r: _dialed(board, r, places[r]) for r in range(rank)}
        return ends | board.until(door.filled, lambda: door.missing)
    finally:
        door.close()


def _dialed(board: Board, other: int, place: str) -> Connection:
    """The connection to another process, which waits for it there."""
    host, _, port = place.partition(" ")
    key, own = board.key("messages"), str(board.world.rank).encode()

    def say(end: Connection) -> None:
        answer_challenge(end, key)
        deliver_challenge(end, key)
        end.send_bytes(own)

    def dial() -> Connection | None:
        with suppress(Exception):  # as when it has no descriptors for now
            way = socket.create_connection((host, int(port)), board.limit_s)
            return _agreed(way, say, board.limit_s)
        return None

    return board.until(dial, lambda: [other])


class _Door:
    """Lets the `missing` processes in, from a thread for whoever comes."""

    def __init__(self, address: str, key: bytes, missing: Collection[int]) -> None:
        self.missing = set(missing)
        self._ends: dict[int, Connection] = {}
        self._key, self._lock, self._closed = key, threading.Lock(), False
        self._places = threading.BoundedSemaphore(_GUESTS)
        self._server = socket.create_server((address, 0), backlog=_GUESTS + len(missing))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._open, daemon=True, name="door").start()

    def filled(self) -> dict[int, Connection] | None:
        """Their connections, once they are all there."""
        return None if self.missing else self._ends

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _open(self) -> None:
        while not self._closed:
            self._places.acquire()
            try:
                guest, _ = self._server.accept()
                threading.Thread(target=self._let_in, args=(guest,), daemon=True).start()
            except (OSError, RuntimeError):  # no descriptors or threads for now; or closed
                self._places.release()
                time.sleep(0.05)

    def _let_in(self, guest: socket.socket) -> None:
        said: list[int] = []

        def listen(end: Connection) -> None:
            deliver_challenge(end, self._key)
            answer_challenge(end, self._key)
            said.append(int(end.recv_bytes(_NUMBER)))

        with suppress(Exception):
            end = _agreed(guest, listen, _GUEST_S)
            with self._lock:
                if said[0] in self.missing:
                    self._ends[said[0]] = end
                    self.missing.discard(said[0])
        self._places.release()


def _agreed(way: socket.socket, talk: Callable[[Connection], None], limit_s: float) -> Connection:
    """A connection on which both have said what they have to, neither silent for so long; it sends
    small messages at once."""
    with way:
        way.settimeout(None)
        _patience(way, limit_s)
        end = Connection(os.dup(way.fileno()))
        try:
            talk(end)
        except BaseException:
            end.close()
            raise
        _patience(way, 0)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return end


def _patience(way: socket.socket, seconds: float) -> None:
    """Reading and writing fails that takes longer; 0: never."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        way.setsockopt(socket.SOL_SOCKET, option, limit)
