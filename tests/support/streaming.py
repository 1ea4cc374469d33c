"""A task whose shards all stream through slots, for handmade plans."""

from collections.abc import Iterator
from typing import NamedTuple

from support.parts import BATCH, GRAD, IN, Part, copy, op, task

from plans.schema import Op, Task


class _Streaming(NamedTuple):
    """Names within a task whose shards all stream through slots."""

    of: Task
    device: int
    slots: int

    def name(self, shard: int, kind: str, index: int) -> str:
        return f"{self.of.name}.s{shard}.{kind}{index}"

    def sweep(self) -> list[tuple[str, int]]:
        last = len(self.of.shards) - 1
        return [("F", s) for s in range(last)] + [("B", s) for s in range(last, -1, -1)]

    def end(self, use: tuple[str, int]) -> str:
        return self.name(use[1], use[0], self.of.microbatches - 1)

    def prefetches(self) -> Iterator[Op]:
        """Each use has a prefetch of its own, into the slots in turn."""
        uses = self.sweep()
        for number, (kind, shard) in enumerate(uses):
            slot = number % self.slots
            wait = [self.end(use) for use in uses[slot :: self.slots]]
            turn = number // self.slots
            free = wait[turn - 1] if turn else f"{wait[-1]}@-1"
            name = self.name(shard, "P", int(kind == "B"))
            store, here = f"{self.of.name}.s{shard}.param", f"{self.of.name}.slot{slot}"
            fresh = f"{self.name(shard, 'U', 0)}@-1"
            yield copy(name, f"{self.device}.h2d", "param", store, here, free, fresh)

    def compute(self) -> Iterator[Op]:
        for number, (kind, shard) in enumerate(self.sweep()):
            for m in range(self.of.microbatches):
                reads, writes = self.roles(kind, shard, m)
                reads["param"] = f"{self.of.name}.slot{number % self.slots}"
                after = [self.name(shard, "P", int(kind == "B"))] if not m else []
                if "batch" in reads:
                    after.append(f"{self.of.name}.batch.P{m}")
                if kind == "B" and not m:
                    after.append(self.free_gradient(shard))
                yield op(self.name(shard, kind, m), f"{self.device}.compute", reads, writes, *after)

    def roles(self, kind: str, shard: int, m: int) -> tuple[dict[str, str], dict[str, str]]:
        """Boundaries lie in one buffer each, in which dx takes the place of x."""
        name, last = self.of.name, len(self.of.shards) - 1
        reads = {"x": f"{name}.x{shard}.{m}"} if shard else {"batch": f"{name}.batch.{m}"}
        if kind == "F":
            return reads, {"y": f"{name}.x{shard + 1}.{m}"}
        grad = f"{name}.grad{(last - shard) % 2}"
        writes = {"grad": grad}
        if shard:
            writes["dx"] = f"{name}.x{shard}.{m}"
        if m:
            reads["grad"] = grad
        if shard < last:
            reads["dy"] = f"{name}.x{shard + 1}.{m}"
        else:
            reads["batch"] = f"{name}.batch.{m}"
        return reads, writes

    def free_gradient(self, shard: int) -> str:
        """The spill that empties the gradient slot: of two shards ago, or of the last round."""
        if shard + 2 < len(self.of.shards):
            return self.name(shard + 2, "S", 0)
        users = [s for s in range(len(self.of.shards)) if (s - shard) % 2 == 0]
        return f"{self.name(users[0], 'S', 0)}@-1"

    def updates(self) -> Iterator[Op]:
        name, last = self.of.name, len(self.of.shards) - 1
        for shard in range(last, -1, -1):
            spill, store = self.name(shard, "S", 0), f"{name}.s{shard}"
            here, grad = f"{name}.grad{(last - shard) % 2}", f"{store}.grad"
            yield copy(spill, f"{self.device}.d2h", "grad", here, grad, self.end(("B", shard)))
            own = {"param": f"{store}.param", "state": f"{store}.state"}
            update = self.name(shard, "U", 0)
            yield op(update, f"host.{self.device}", {**own, "grad": grad}, own, spill)


def streamed_part(
    name: str, device: int = 0, shards: int = 3, microbatches: int = 2, slots: int = 2
) -> Part:
    """All shards stream through slots, gradients leave through two more, the host updates."""
    of = task(name, shards, microbatches, "host", 4)
    made = _Streaming(of, device, slots)
    space, largest = str(device), of.shards[-1].param_bytes
    buffers = {f"{name}.slot{k}": (space, largest) for k in range(slots)}
    buffers |= {f"{name}.grad{k}": (space, GRAD) for k in range(2)}
    for m in range(microbatches):
        buffers[f"{name}.batch.{m}"] = space, BATCH
        buffers |= {f"{name}.x{k}.{m}": (space, IN) for k in range(1, shards)}
    batches = [
        op(
            f"{name}.batch.P{m}",
            f"{device}.h2d",
            {},
            {"batch": f"{name}.batch.{m}"},
            f"{name}.s0.B{m}@-1",
        )
        for m in range(microbatches)
    ]
    rounds = [*batches, *made.prefetches(), *made.compute(), *made.updates()]
    return Part(of, buffers, [], rounds, [])


def summed_part(name: str) -> Part:
    """One shard on two devices with a microbatch each; the host adds gradients and updates."""
    of = task(name, 1, 2, "host", 4)
    item, buffers = f"{name}.s0", dict[str, tuple[str, int]]()
    rounds = []
    for d in range(2):
        param, batch, grad = (f"{name}.{what}{d}" for what in ("param", "batch", "grad"))
        buffers |= {param: (f"{d}", of.shards[0].param_bytes), batch: (f"{d}", BATCH)}
        buffers[grad] = f"{d}", GRAD
        load, fetch, backward = f"{name}.batch.P{d}", f"{item}.P{d}", f"{item}.B{d}"
        rounds.append(op(load, f"{d}.h2d", {}, {"batch": batch}, f"{backward}@-1"))
        rounds.append(copy(fetch, f"{d}.h2d", "param", f"{item}.param", param, f"{item}.U0@-1"))
        reads = {"param": param, "batch": batch}
        after = load, fetch, f"{item}.S{d}@-1"
        rounds.append(op(backward, f"{d}.compute", reads, {"grad": grad}, *after))
        there = f"{item}.grad" + ".1" * d
        rounds.append(copy(f"{item}.S{d}", f"{d}.d2h", "grad", grad, there, backward))
    total = {"grad": f"{item}.grad"}
    both = {**total, "other": f"{item}.grad.1"}
    rounds.append(op(f"{item}.R0", "host.0", both, total, f"{item}.S0", f"{item}.S1"))
    own = {role: f"{item}.{role}" for role in ("param", "state")}
    rounds.append(op(f"{item}.U0", "host.0", {**own, **total}, own))
    return Part(of, buffers, [], rounds, [], {f"{item}.grad.1": GRAD})
