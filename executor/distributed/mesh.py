"""Connections between all processes of a run, for messages; each is read by a thread of its own.

A process that ends, however it does, closes its connections: whoever reads from one knows at once.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import TypeVar

import msgspec
from torch.distributed import Store  # type: ignore[attr-defined]

from executor.distributed.messages import AnyMessage, Message
from executor.errors import RunError

M = TypeVar("M", bound=Message)

Heard = Callable[[int, Message | None], None]  # a message of a process, None: it is gone


class Mesh:
    """The connections of process `rank` to all others of `size`, made in one order everywhere.
    `address`: where the others reach it."""

    def __init__(self, rank: int, size: int, store: Store, address: str) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)
        self._locks = {other: threading.Lock() for other in range(size)}
        self._ends: dict[int, Connection] = {}
        key = self._key(rank, store)
        with Listener((address, 0), backlog=size, authkey=key) as listener:
            store.set(f"gantry/{rank}", f"{address} {listener.address[1]}")
            for other in range(rank):
                host, port = store.get(f"gantry/{other}").decode().split()
                end = Client((host, int(port)), authkey=key)
                end.send_bytes(str(rank).encode())
                self._ends[other] = _prompt(end)
            for _ in range(rank + 1, size):
                end = listener.accept()
                self._ends[int(end.recv_bytes())] = _prompt(end)

    @property
    def others(self) -> list[int]:
        """All other processes."""
        return sorted(self._ends)

    def _key(self, rank: int, store: Store) -> bytes:
        """A secret of this run."""
        if rank == 0:
            store.set("gantry/key", secrets.token_hex(32))
        return bytes(store.get("gantry/key"))

    def listen(self, heard: Heard) -> None:
        """Hand on all that comes from now on, from a thread for each process."""
        for other, end in self._ends.items():
            args = other, end, heard
            threading.Thread(
                target=self._read, args=args, daemon=True, name=f"from {other}"
            ).start()

    def send(self, rank: int, message: Message) -> None:
        """RunError where the process is gone."""
        content = self._encoder.encode(message)
        try:
            with self._locks[rank]:
                self._ends[rank].send_bytes(content)
        except OSError:
            raise RunError(f"process {rank} is gone") from None

    def receive(self, rank: int) -> Message:
        """The next message of a process, before `listen`; RunError where it is gone."""
        try:
            return self._decoder.decode(self._ends[rank].recv_bytes())
        except (OSError, EOFError):
            raise RunError(f"process {rank} is gone") from None

    def expect(self, rank: int, kind: type[M]) -> M:
        """The next message of a process, which is of this kind."""
        message = self.receive(rank)
        assert isinstance(message, kind), message
        return message

    def close(self) -> None:
        """End all connections, and with them the threads that read."""
        for end in self._ends.values():
            with suppress(OSError):
                with _socket(end) as same:
                    same.shutdown(socket.SHUT_RDWR)
                end.close()

    def _read(self, other: int, end: Connection, heard: Heard) -> None:
        while True:
            try:
                content = end.recv_bytes()
            except (OSError, EOFError):
                heard(other, None)
                return
            heard(other, self._decoder.decode(content))


def _prompt(end: Connection) -> Connection:
    """The connection, which sends small messages at once."""
    with _socket(end) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def _socket(end: Connection) -> socket.socket:
    """The connection's socket, by a descriptor of its own."""
    return socket.socket(fileno=os.dup(end.fileno()))
