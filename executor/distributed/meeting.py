"""Notes of processes in torchrun's store, before they are connected.

What an earlier start has left in the store is there as well: each process asks process 0, by a
number of its own, for the name of this start. Whoever reaches the store can read and write there,
as torch's own connections can be used by whoever reaches them: the network must be trusted.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from executor.distributed.world import Mates, World, siblings
from executor.errors import RunError, UsageError, text_of

T = TypeVar("T")

_ASK_S = 0.05  # between two looks into the store
_MATES_S = 1.0  # between two looks at the processes of this node
_HALT_S = 8.0  # that a process may be stopped
_PREPARE = 10  # so many times the limit may pass until a process is prepared


class AbsentError(RunError):
    """Processes that have not come, or are lost. The first of the others says so."""

    def __init__(self, world: World, ranks: Iterable[int], text: str) -> None:
        known = set(ranks)
        self.teller = min(set(range(world.size)) - known, default=0)
        super().__init__(text)


def absent(world: World, ranks: Iterable[int], why: str) -> AbsentError:
    """The error for processes that are late."""
    known = sorted(ranks)
    who = f"process {known[0]} has" if len(known) == 1 else f"processes {known} have"
    return AbsentError(world, known, f"{who} {why}; raise --stall-seconds if it is only slow")


class Board:
    """The notes of a run's processes. limit_s: that a process may be late; prepare_s: that one may
    take to prepare itself."""

    def __init__(self, world: World, store: Store, start: str, limit_s: float) -> None:
        self.world, self.limit_s, self.prepare_s = world, limit_s, _PREPARE * limit_s
        self._bare, self._start = store, start
        self._notes = PrefixStore(f"{start} notes", store)
        self._looked = 0.0

    def store(self, name: str) -> Store:
        """A part of the store, by a connection of its own: waiting in it holds nobody up."""
        return PrefixStore(f"{self._start} {name}", self._bare.clone())  # type: ignore[attr-defined]

    def say(self, key: str, text: str) -> None:
        """Put a note there, instead of the one before."""
        self._notes.set(key, text)

    def read(self, key: str) -> str | None:
        """A note, if it is there."""
        return self._notes.get(key).decode() if self._notes.check([key]) else None

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
        """The first thing that `look` finds; AbsentError for `missing` processes that have not done
        their part for so long, or are lost."""
        most_s = most_s or self.limit_s
        deadline, nap_s = time.monotonic() + most_s, _ASK_S / 64
        while (found := look()) is None:
            late = set(missing())
            self.expect(late)
            if time.monotonic() > deadline:
                raise absent(self.world, late, f"not done its part within {most_s:g} s")
            time.sleep(nap_s := min(2 * nap_s, _ASK_S))
        return found

    def expect(self, ranks: Iterable[int]) -> None:
        """AbsentError for these processes if they are lost."""
        if time.monotonic() < self._looked + _MATES_S:
            return
        if not self._looked:
            pids = siblings()
            self._mates = Mates({rank: pids[rank] for rank in pids if rank != self.world.rank})
        self._looked = time.monotonic()
        lost = self._mates.lost(_HALT_S)
        for rank in lost.keys() & set(ranks):
            raise AbsentError(self.world, [rank], lost[rank])


def meet(world: World, limit_s: float) -> Board:
    """The notes of this start of these processes, as soon as all have come; UsageError where there
    is no store."""
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=limit_s)))
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")
        return joined(world, PrefixStore(f"gantry {run}", store), store, limit_s)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the store of torchrun cannot be reached: {text_of(error)}") from None


def joined(world: World, met: Store, store: Store, limit_s: float) -> Board:
    """All processes, which ask and answer in `met`."""
    if world.rank == 0:
        return _answered(world, met, store, limit_s)
    own, deadline = secrets.token_hex(8), time.monotonic() + limit_s
    alone = Board(world, store, own, limit_s)
    while True:
        met.set(f"asks {world.rank}", own)
        if met.check([f"answers {own}"]):
            board = Board(world, store, met.get(f"answers {own}").decode(), limit_s)
            board.say(f"here {world.rank}", "")
            return board
        if time.monotonic() > deadline:
            raise absent(world, [0], f"not come within {limit_s:g} s")
        alone.expect([0])
        time.sleep(_ASK_S)


def _answered(world: World, met: Store, store: Store, limit_s: float) -> Board:
    """All others, as process 0 lets them in."""
    start, deadline = secrets.token_hex(8), time.monotonic() + limit_s
    board = Board(world, store, start, limit_s)
    while late := [r for r in range(1, world.size) if board.read(f"here {r}") is None]:
        for rank in late:
            if met.check([f"asks {rank}"]):
                met.set(f"answers {met.get(f'asks {rank}').decode()}", start)
        if time.monotonic() > deadline:
            raise absent(world, late, f"not come within {limit_s:g} s")
        board.expect(late)
        time.sleep(_ASK_S)
    return board
