"""Messages of processes before they are connected: notes in torchrun's store.

Whoever reaches that store can read, write and delete there. So a note is sealed by a secret of the
run, has a name made with it, and is no note without. On one machine the secret lies in memory of
process 0 that no file system knows and only the same user can read; the store says where. Between
machines it lies in the store itself, and counts together with what all have in GANTRY_SECRET.

Each process lets the others hear that it lives, so that no wait is without end and each names whom
it waits for.
"""

import hmac
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from executor.distributed.world import World, siblings
from executor.errors import RunError, UsageError, text_of

T = TypeVar("T")

SECRET = "GANTRY_SECRET"  # in the environment, the same on all machines

_ASK_S = 0.05  # between two looks into the store
_BEAT_S = 1.0  # between two beats, and two looks at them
_HALT_S = 8.0  # that a process may be stopped
_PREPARE = 10  # so many times the limit may pass in a process that lives
_OVER = "over"  # the last beat of a process
_MEMORY = "gantry-secret"


class AbsentError(RunError):
    """Processes that have not come, or are silent. The first of the others says so."""

    def __init__(self, world: World, ranks: Iterable[int], why: str, slow: bool = True) -> None:
        known = sorted(ranks)
        self.teller = min(set(range(world.size)) - set(known), default=0)
        who = f"process {known[0]} has" if len(known) == 1 else f"processes {known} have"
        remedy = "; raise --stall-seconds if it is only slow" if slow else ""
        super().__init__(f"{who} {why}{remedy}")


class _Halts:
    """Looks for processes of this machine that somebody has stopped: they do not go on by
    themselves, and torchrun waits for them even when all others have ended."""

    def __init__(self, world: World) -> None:
        self._world, self._looked = world, 0.0
        self._since: dict[int, float] = {}

    def check(self, late: Iterable[int]) -> None:
        """AbsentError for those of these processes that have been stopped for long, which are
        killed."""
        now = time.monotonic()
        if now < self._looked + _BEAT_S:
            return
        self._looked, pids = now, siblings()
        halted = {rank for rank in late if rank in pids and _state(pids[rank]) == "T"}
        self._since = {rank: self._since.get(rank, now) for rank in halted}
        for rank in [one for one in halted if now - self._since[one] > _HALT_S]:
            with suppress(OSError):
                os.kill(pids[rank], signal.SIGKILL)
            why = f"been stopped for {_HALT_S:g} s before the run, and is killed"
            raise AbsentError(self._world, [rank], why, slow=False)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


class Board:
    """The notes of a run's processes. secret: of the run; limit_s: that a process may be silent;
    prepare_s: that one which is not may take to prepare itself."""

    def __init__(self, world: World, store: Store, secret: bytes, limit_s: float) -> None:
        self.world, self.limit_s, self.prepare_s = world, limit_s, _PREPARE * limit_s
        self._bare, self._secret = store, secret
        self._notes = PrefixStore(self.key("notes").hex(), store)
        self._beats: dict[int, tuple[str | None, float]] = {}  # the latest one, since when
        self._looked = 0.0
        self.halts = _Halts(world)
        self._over = threading.Event()
        self._say_beats = threading.Thread(target=self._beat, daemon=True, name="notes")
        self._say_beats.start()

    def key(self, use: str) -> bytes:
        """A secret for this use alone."""
        return hmac.digest(self._secret, use.encode(), "sha256")

    def store(self, name: str) -> Store:
        """A part of the store, by a connection of its own: waiting in it holds nobody up."""
        return PrefixStore(self.key(name).hex(), self._bare.clone())  # type: ignore[attr-defined]

    def say(self, key: str, text: str) -> None:
        """Put a note there, instead of the one before."""
        self._notes.set(key, f"{self._seal(key, text)} {text}")

    def read(self, key: str) -> str | None:
        """A note, if it is there and one of this run's processes has put it there."""
        if not self._notes.check([key]):
            return None
        seal, _, text = self._notes.get(key).decode(errors="replace").partition(" ")
        known = hmac.compare_digest(seal.encode(), self._seal(key, text).encode())
        return text if known else None

    def gather(self, key: str, text: str) -> list[str]:
        """The notes of all processes under this key, in their order."""
        self.say(f"{key} {self.world.rank}", text)
        notes = {f"{key} {rank}": rank for rank in range(self.world.size)}
        return list(self.wait(notes).values())

    def wait(self, notes: Mapping[str, int], most_s: float = 0.0) -> dict[str, str]:
        """These notes, each of which a process says, as soon as all are there; see `until`."""
        found: dict[str, str] = {}

        def missing() -> set[str]:
            return notes.keys() - found.keys()

        def look() -> dict[str, str] | None:
            found.update({key: text for key in missing() if (text := self.read(key)) is not None})
            return None if missing() else {key: found[key] for key in notes}

        return self.until(look, lambda: {notes[key] for key in missing()}, most_s)

    def until(
        self,
        look: Callable[[], T | None],
        missing: Callable[[], Iterable[int]],
        most_s: float = 0.0,
    ) -> T:
        """The first thing that `look` finds; AbsentError for `missing` processes that are
        silent for too long, or alive and have not done their part for so long."""
        most_s = most_s or self.limit_s
        deadline, nap_s = time.monotonic() + most_s, _ASK_S / 64
        while (found := look()) is None:
            late = set(missing())
            self.expect(late)
            if time.monotonic() > deadline:
                raise AbsentError(self.world, late, f"not done its part within {most_s:g} s")
            time.sleep(nap_s := min(2 * nap_s, _ASK_S))
        return found

    def expect(self, ranks: Iterable[int], limit_s: float = 0.0) -> None:
        """AbsentError for these processes if they are silent for too long."""
        self.halts.check(ranks)
        now, limit_s = time.monotonic(), limit_s or self.limit_s
        if now < self._looked + min(_BEAT_S, limit_s / 4):
            return
        self._looked = now
        silent = []
        for rank in {*ranks} - {self.world.rank}:
            beat, since = self.read(f"beat {rank}"), now
            if rank in self._beats and self._beats[rank][0] == beat:
                since = self._beats[rank][1]
            self._beats[rank] = beat, since
            if now - since > limit_s and beat != _OVER:
                silent.append(rank)
        if silent:
            why = f"said nothing for {limit_s:g} s before the run: it hangs, or was stopped"
            raise AbsentError(self.world, silent, why)

    def close(self) -> None:
        """The processes are connected: nobody listens any more."""
        self._over.set()
        self._say_beats.join()

    def _beat(self) -> None:
        number = 0
        with suppress(RuntimeError):  # the store is gone, and torchrun with it
            while not self._over.is_set():
                self.say(f"beat {self.world.rank}", str(number))
                number += 1
                self._over.wait(min(_BEAT_S, self.limit_s / 4))
            self.say(f"beat {self.world.rank}", _OVER)

    def _seal(self, key: str, text: str) -> str:
        return hmac.digest(self._secret, f"{key} {text}".encode(), "sha256").hex()


def meet(world: World, limit_s: float) -> Board:
    """The notes of this start of these processes, as soon as all have come; UsageError where there
    is no store.

    What an earlier start has left in it is there as well. So each process asks process 0 by a
    number of its own for the secret of this one."""
    shared = f"{os.environ.get(SECRET, '')} {os.environ.get('TORCHELASTIC_RUN_ID', '')}".encode()
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=limit_s)))
        return joined(world, store, shared, limit_s)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the store of torchrun cannot be reached: {text_of(error)}") from None


def joined(world: World, store: Store, shared: bytes, limit_s: float) -> Board:
    """All processes, by way of the store. shared: what all of them know."""
    met = PrefixStore(hmac.digest(shared, b"gantry", "sha256").hex(), store)
    if world.rank == 0:
        return _answered(world, store, met, shared, limit_s)
    own, deadline, halts = secrets.token_hex(8), time.monotonic() + limit_s, _Halts(world)
    while True:
        met.set(f"asks {world.rank}", own)
        if (found := _found(_asked(met, f"answers {own}"), world)) is not None:
            board = Board(world, store, shared + found, limit_s)
            board.say(f"here {world.rank}", "")
            return board
        if time.monotonic() > deadline:
            raise AbsentError(world, [0], f"not come within {limit_s:g} s")
        halts.check([0])
        time.sleep(_ASK_S)


def _answered(world: World, store: Store, met: Store, shared: bytes, limit_s: float) -> Board:
    """All others, as process 0 lets them in."""
    secret, deadline = secrets.token_bytes(32), time.monotonic() + limit_s
    board, memory = Board(world, store, shared + secret, limit_s), os.memfd_create(_MEMORY)
    os.write(memory, secret)
    where = f"/proc/{os.getpid()}/fd/{memory}" if world.nodes == 1 else secret.hex()
    try:
        while late := [r for r in range(1, world.size) if board.read(f"here {r}") is None]:
            for rank in late:
                if (asked := _asked(met, f"asks {rank}")) is not None:
                    met.set(f"answers {asked}", where)
            if time.monotonic() > deadline:
                raise AbsentError(world, late, f"not come within {limit_s:g} s")
            board.halts.check(late)
            time.sleep(_ASK_S)
    except AbsentError:
        board.close()
        raise
    finally:
        os.close(memory)
    return board


def _asked(store: Store, key: str) -> str | None:
    """A word that anybody may have put there."""
    return store.get(key).decode(errors="replace")[:100] if store.check([key]) else None


def _found(where: str | None, world: World) -> bytes | None:
    """The secret that is found so; None where these are no such words, or those of another user."""
    with suppress(OSError, ValueError):
        if where and world.nodes > 1:
            return bytes.fromhex(where)
        if where and os.readlink(where).startswith(f"/memfd:{_MEMORY}"):
            secret = Path(where).read_bytes()
            return secret if os.stat(where).st_uid == os.geteuid() else None
    return None
