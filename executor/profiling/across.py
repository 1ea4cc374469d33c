"""Links between processes, for a profile under torchrun.

Process 0 profiles as it does alone. Meanwhile another process of its machine, and one of another
machine, send to it and receive from it what executors send, in the same way: the sender says when
its link has moved the bytes, torch.distributed carries them. A copy takes half of the way there and
back; with both directions busy, as long as both processes need to send to each other at once.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist

from executor.devices import Device, HostMemory, apart, backend_of, until
from executor.distributed.links import GroupWire, Pair, wires
from executor.errors import RunError, text_of
from executor.profiling import links
from profiles.errors import GantryError
from profiles.schema import Link, Rate

_MEET = timedelta(seconds=60)  # until all processes have come
_PROFILE = timedelta(days=7)  # until process 0 has measured all else


class Ends:
    """Both directions between this process' device and that of process `other`: wires for bytes,
    and for how long the sender's link has still to move them."""

    def __init__(
        self, device: Device, other: int, lines: dict[Pair, GroupWire], news: dict[Pair, GroupWire]
    ) -> None:
        me, self._other = dist.get_rank(), other
        self._device = device
        self._target, self._source = device.slab[: links.LARGEST], device.slab[-links.LARGEST :]
        self._out, self._in = lines[me, other], lines[other, me]
        self._told, self._heard = news[me, other].group, news[other, me].group

    def throw(self, size: int) -> None:
        """Send so many bytes."""
        source = self._source[:size]

        def put(end: float | None) -> None:
            left = torch.tensor([0.0 if end is None else end - time.perf_counter()])
            told = dist.isend(left, self._other, group=self._told)
            self._out.send(source, 0)
            if told:
                told.wait()

        self._device.give(source, put)

    def ask(self, size: int) -> Callable[[], None]:
        """Be ready for so many bytes; the result receives them."""
        bytes_there = self._in.receive(self._target[:size], 0)
        left = torch.zeros(1)
        heard = dist.irecv(left, self._other, group=self._heard)

        def catch() -> None:
            if heard:
                heard.wait()
            self._device.get(bytes_there, time.perf_counter() + left.item())

        return catch


def link(
    kind: Literal["p2p", "net"], ends: Ends, device: Device, memory: HostMemory, samples: int
) -> Link:
    """The link of this kind, in both of its processes at once; what process 0 measures counts."""
    queue, first = device.queue("p2p"), dist.get_rank() == 0
    large = links.count_of(device, 50)
    host = [memory.take(large).zero_() for _ in range(2)]

    def there_and_back(size: int) -> None:
        catch = ends.ask(size)
        if not first:
            catch()
        ends.throw(size)
        until(queue.mark())
        if first:
            catch()
        until(queue.mark())

    def at_once(thrower: ThreadPoolExecutor, size: int) -> None:
        catch = ends.ask(size)
        thrown = thrower.submit(ends.throw, size)
        catch()
        until(queue.mark())
        thrown.result()

    counts = large // 64, large
    twice = apart(queue, partial(links.measured, there_and_back, counts, samples))
    alone = Rate(2 * twice.bytes_per_s, twice.latency_us // 2)
    out = device.queue("p2p", 1 - first)
    with ExitStack() as stack:
        thrower = stack.enter_context(ThreadPoolExecutor(1, initializer=out.enter))
        for line in links.both_ways(device, host):
            stack.enter_context(links.busy(partial(line.copy, large), line.queue))
        both = apart(queue, partial(links.measured, partial(at_once, thrower), counts, samples))
    return Link(kind, alone, both)


class Others:
    """All processes, one of which this is. `partners`: those with which process 0 has a link to be
    measured, by the kind of link."""

    def __init__(self, local: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.leads = rank == 0
        found: list[tuple[Literal["p2p", "net"], int]] = [("p2p", 1)] if local > 1 else []
        self.partners = [*found, ("net", local)] if size > local else found
        self.kinds: Collection[str] = {kind for kind, _ in self.partners}
        self._waiting = dist.new_group(timeout=_PROFILE)

    def links(self, device: Device, memory: HostMemory, samples: int) -> Sequence[Link]:
        """The links of process 0, as it measures them and its partners do."""
        backend = backend_of(device.spec.kind)
        if self.leads:
            self.told()
        every = [pair for _, other in self.partners for pair in ((0, other), (other, 0))]
        found, me = [], dist.get_rank()
        made = partial(wires, every, lambda rank: rank)
        lines, news = made(backend), made("gloo")
        with _all_there():
            for kind, other in self.partners:
                if me in (0, other):
                    ends = Ends(device, other if self.leads else 0, lines, news)
                    found.append(link(kind, ends, device, memory, samples))
        return found

    def told(self, code: int = 0) -> int:
        """The exit code that process 0 gives: 0 to go on, and at the end."""
        found = torch.tensor([code])
        with _all_there():
            telling = dist.broadcast(found, 0, group=self._waiting, async_op=True)
            assert telling
            telling.wait(_MEET if self.leads else _PROFILE)
        return int(found.item())


@contextmanager
def _all_there() -> Iterator[None]:
    """RunError where a process is not."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"a process is gone or does not answer: {text_of(error)}") from None


@contextmanager
def others(local: int) -> Iterator[Others]:
    """The processes that torchrun has started, so many on each node, which torch.distributed
    knows."""
    team = Others(local)
    code = 1
    try:
        yield team
        code = 0
    except GantryError as error:
        code = error.exit_code
        raise
    finally:
        if team.leads:
            with suppress(RunError):  # they are gone
                team.told(code)
    dist.destroy_process_group()
