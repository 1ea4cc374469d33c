"""Random numbers: each task draws the stream an ordinary loop would draw, in whatever order.

The default CPU generator is one per process and the plain loop draws microbatch by microbatch,
while devices run side by side and shards go through all microbatches in turn. So every forward
starts from a known state: it is put into the generator around each op that draws, and the state
of a later microbatch is found by fast-forwarding over the draws of those before it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from executor.errors import RunError
from executor.numerics.dispatch_mode import OpMode, may_draw

_GENERATOR = threading.Lock()  # whoever touches the default generator during a run holds it

# The CPU generator's state (at::CPUGeneratorImplStateLegacy, 5056 bytes): how many of the 624
# state words are still to be drawn, plus one, as an int at byte 8; the words from byte 24 on.
_LEFT = slice(8, 12)
_WORDS = slice(24, 24 + 624 * 8)
_BLOCK = 624
_KEPT = 8  # steps of which states are kept where the last shard runs in another process
_IN_BACKWARD = "draws random numbers in its backward; do not checkpoint inside it"


Row = Sequence[int | None]
"""The draws of one forward of each shard; None for those that are not known."""


class DrawError(RunError):
    """A layer draws random numbers in a way that cannot be reproduced."""


class Source(Protocol):
    """A default generator that layers draw from. `shared`: by all devices of the process."""

    shared: bool

    def get(self) -> Tensor:
        """Its state, a uint8 tensor."""

    def set(self, state: Tensor) -> None:
        """Go on from `state`."""

    def advanced(self, state: Tensor, draws: int) -> Tensor:
        """The state so many draws after `state`."""

    def count(self, before: Tensor, after: Tensor, limit: int = ...) -> int | None:
        """Draws between two states; None when they were no plain draws, or more than `limit`."""


class CpuSource:
    """The default CPU generator, one per process."""

    shared = True

    def get(self) -> Tensor:
        return torch.default_generator.get_state()

    def set(self, state: Tensor) -> None:
        torch.default_generator.set_state(state)

    def advanced(self, state: Tensor, draws: int) -> Tensor:
        generator = Generator()
        generator.set_state(state)
        _advance(generator, draws)
        return generator.get_state()

    def count(self, before: Tensor, after: Tensor, limit: int = 1 << 28) -> int | None:
        """32-bit draws; no plain draws are: a small randn keeps half of a pair for later, and
        reseeding goes anywhere."""
        generator = Generator()
        generator.set_state(before)
        draws = _position(after) - _position(before)
        while not torch.equal(generator.get_state()[_WORDS], after[_WORDS]):
            _advance(generator, _BLOCK)
            draws += _BLOCK
            if draws > limit:
                return None
        if draws < 0:
            return None
        return draws if torch.equal(self.advanced(before, draws), after) else None


def _told(source: Source, before: Tensor, after: Tensor) -> str:
    """The draws between two states for messages, which take no more than a moment."""
    drawn = source.count(before, after, 1 << 22)
    return "unknown" if drawn is None else str(drawn)


def _advance(generator: Generator, draws: int) -> None:
    """Move the generator on by so many 32-bit draws."""
    if draws:
        torch.empty(draws, dtype=torch.uint8).random_(generator=generator)


def _position(state: Tensor) -> int:
    """Words of the current block already drawn."""
    return _BLOCK + 1 - int(state[_LEFT].view(torch.int32).item())


class TaskRng:
    """The state in which each forward of a task begins, for the latest steps.

    `draws` are those of one forward of each shard. With one microbatch shards run in the order
    of the plain loop, so each begins where the one before it ended, and of `draws` only those
    that are 0 are needed; unless they are not all run here, and not `chained`. `initial` is the
    state before `first_step`. rows: those of each microbatch of a step, where they are not all
    `draws`: None for one that the plain loop does not have, as for those that are missing.
    """

    def __init__(
        self,
        initial: Tensor,
        draws: Row,
        microbatches: int,
        source: Source | None = None,
        first_step: int = 0,
        *,
        chained: bool = True,
        rows: Callable[[int], Sequence[Row | None]] | None = None,
    ) -> None:
        if microbatches > 1 and None in draws:
            raise ValueError("a shard with an unknown number of draws allows one microbatch only")
        self._draws, self._rows = draws, rows
        self._microbatches = microbatches
        self._chained = chained and microbatches == 1
        self._size = microbatches * len(draws)  # forwards of a step
        self._source = source or CpuSource()
        # By the number of the forward, as a plain loop counts them from step 0 on.
        self._states = {first_step * self._size: initial}
        self._newest = first_step  # of which a forward has ended
        self._lock = threading.Lock()

    def go_on(self, step: int, state: Tensor) -> None:
        """Begin at another step, in this state."""
        with self._lock:
            self._states, self._newest = {step * self._size: state}, step

    def prepare(self, step: int) -> None:
        """Find all states of `step` in one pass; steps must be prepared in order.

        May run ahead in a thread of its own: fast-forwarding costs about as much as drawing.
        """
        first, end = step * self._size, (step + 1) * self._size
        with self._lock:
            state = self._states.get(first)
            if state is None or self._chained or end in self._states:
                return
        found, number = {}, first
        for microbatch in range(self._microbatches):
            for draws in self._row(step, microbatch) or [0] * len(self._draws):
                if draws:
                    state = self._source.advanced(state, draws)
                number += 1
                found[number] = state
        with self._lock:
            self._states.update(found)

    def before(self, step: int) -> Tensor:
        """The state before a step, once the one before it has ended or was prepared."""
        with self._lock:
            return self._states[step * self._size]

    def state(self, step: int, microbatch: int, shard: int) -> Tensor:
        """The generator's state before this forward; a uint8 tensor that nobody changes."""
        self.prepare(step)
        with self._lock:
            return self._states[self._number(step, microbatch, shard)]

    def finish(self, step: int, microbatch: int, shard: int, end: Tensor) -> None:
        """Say in which state the forward ended; DrawError when it is not the expected one."""
        number, row = self._number(step, microbatch, shard), self._row(step, microbatch)
        with self._lock:
            begin = self._states[number]
            end = begin if row is None else end
            # With one microbatch it is known only now: draws may lead anywhere.
            found = end if self._draws[shard] != 0 else begin
            expected = self._states.setdefault(number + 1, found)
            if (number + 1) % self._size == 0 or step > self._newest:
                # Forwards of shards below may be some steps ahead of those of shards above.
                oldest = step if (number + 1) % self._size == 0 else step - _KEPT
                self._states = {k: v for k, v in self._states.items() if k >= oldest * self._size}
                self._newest = max(self._newest, step)
        if not torch.equal(expected, end):
            drawn = _told(self._source, begin, end)
            raise DrawError(
                f"draws a varying number of random numbers, {drawn} now and {(row or [0])[shard]} "
                "in the plan, so its microbatches cannot be reproduced; profile and build again, "
                "or make the layer draw the same number each time"
            )

    def _row(self, step: int, microbatch: int) -> Row | None:
        if self._rows is None:
            return self._draws
        rows = self._rows(step)
        return rows[microbatch] if microbatch < len(rows) else None

    def _number(self, step: int, microbatch: int, shard: int) -> int:
        return step * self._size + microbatch * len(self._draws) + shard


class RandomMode(OpMode):
    """While active in a thread, its random ops draw from `state`, which moves on with them.

    `refusal`: a random op is an error with these words, as in a backward, which must not draw; ops
    that may draw, as attention does with dropout, are run to see if they do. `apart`: of data,
    which may have generators of its own, and whose draws no mode around this one sees.
    """

    def __init__(self, state: Tensor, refusal: str = "", *, apart: bool = False) -> None:
        super().__init__()
        self.state = state
        self._refusal, self._apart = refusal, apart

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not may_draw(func):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None and not self._refusal:
            if self._apart:
                return func(*args, **kwargs)
            raise DrawError("draws from a generator of its own; use torch's default generator")
        generator = torch.default_generator
        with _GENERATOR:
            parked = generator.get_state()
            begin = parked if self._refusal else self.state
            generator.set_state(begin)
            hidden = torch._C._DisableTorchDispatch() if self._apart else nullcontext()
            try:
                with hidden:
                    made = func(*args, **kwargs)
            finally:
                self.state = generator.get_state()
                generator.set_state(parked)
        if self._refusal and not torch.equal(self.state, begin):
            raise DrawError(self._refusal)
        return made


class LentGenerator:
    """While active, the default generator of `source` itself, at `state`, which moves on with it.

    Costs nothing per op, unlike `RandomMode`, but only one thread at a time can have it.
    """

    def __init__(self, state: Tensor, source: Source | None = None) -> None:
        self.state = state
        self._source = source or CpuSource()
        self._parked = state

    def __enter__(self) -> "LentGenerator":
        if self._source.shared:
            _GENERATOR.acquire()
        self._parked = self._source.get()
        self._source.set(self.state)
        return self

    def __exit__(self, *_: object) -> None:
        self.state = self._source.get()
        self._source.set(self._parked)
        if self._source.shared:
            _GENERATOR.release()


def no_draws(why: str = _IN_BACKWARD) -> RandomMode:
    """A mode in which a random op is a DrawError with the words `why`."""
    return RandomMode(torch.empty(0, dtype=torch.uint8), why)


class OwnRandomness(OpMode):
    """While active in a thread, drawing from the default generator is an error.

    That generator belongs to the models; data that drew from it would change their numbers. Not in
    processes that are forked meanwhile, as by a DataLoader: they have one of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        draws = may_draw(func) and kwargs.get("generator") is None
        if draws and os.getpid() == self._process:
            raise DrawError(
                "draws from torch's default generator, which belongs to the model, that draws from "
                "it at the same time (also inside fork_rng); use a torch.Generator seeded from the "
                "step, and give it to whatever draws: torch.randn(..., generator=own), "
                "DataLoader(..., generator=own)"
            )
        return func(*args, **kwargs)


class Guard:
    """Notices draws from a default generator that nothing lent accounts for: of a device's own, or
    of the CPU's by a layer that computes on such a device."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source or CpuSource()
        self._parked = self._source.get()
        own = not isinstance(self._source, CpuSource)
        self._host = torch.default_generator.get_state() if own else None

    def check(self) -> None:
        """DrawError when somebody drew since the last check."""
        with _GENERATOR:
            now = self._source.get()
        if not torch.equal(now, self._parked):
            drawn = _told(self._source, self._parked, now)
            raise DrawError(
                "it, or something beside it, drew random numbers or set a seed although the plan "
                f"knows of none: {drawn} draws instead of 0; profile again"
            )
        self.check_host()

    def check_host(self) -> None:
        """DrawError when somebody drew from the CPU's generator beside a device's own."""
        host = torch.default_generator.get_state()
        if self._host is not None and not torch.equal(host, self._host):
            raise DrawError(
                "it, or something beside it, drew from the CPU's generator, of which a forward "
                "that is run again on a GPU knows nothing; draw on the device of the input, as in "
                "torch.rand(1, device=x.device), or leave out what draws (layerdrop=0 in a Hugging "
                "Face model's config)"
            )
