"""What one task brings to a handmade program: ways to train it, op by op.

Ops are listed as they would be right one by one; which waits for which follows (`support.edges`).
Sizes are tiny.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from plans.schema import Op, Role, Shard, Task
from profiles.codec import ALIGNMENT
from profiles.schema import Workload

IN, BATCH, PARAM, GRAD, STATE, SAVED = (k * ALIGNMENT for k in (1, 2, 2, 2, 3, 1))
_US = {"F": 40, "B": 90, "U": 30, "P": 25, "S": 20, "X": 15, "R": 10, "N": 5}
_LANES = {"P": "h2d", "S": "d2h", "X": "p2p"}
TRANSIENT = 100

Update = Literal["host", "device"]
Kind = Literal["F", "B"]
Roles = dict[Role, str]
_KEEPS = {"activations": "saved", "saved_bytes": SAVED}
_PACKS = {"activations": "offload", "saved_bytes": SAVED}


class Part(NamedTuple):
    """What one task brings to a program. kept: bytes of its graphs when most are alive."""

    task: Task
    enter: list[Op]
    round: list[Op]
    leave: list[Op]
    kept: int = 0


def op(name: str, stream: str, reads: Roles, writes: Roles) -> Op:
    kind = name.split(".")[2][0]
    transient = TRANSIENT if kind in "FB" else 0
    return Op(name, stream, 0, _US[kind], (), dict(reads), dict(writes), transient)


class Maker:
    """Lists what a task does, one op after another.

    Ops and buffers are named without their task, and run on `device`. changes: fields of its first
    shards.
    """

    def __init__(
        self,
        name: str,
        shards: int,
        update: Update,
        *changes: Mapping[str, object],
        microbatches: int = 2,
        steps: int = 4,
        device: int = 0,
    ) -> None:
        self.device, self.last, self.microbatches = device, shards - 1, microbatches
        on = update == "device"
        own = [
            Shard(2 * k, 2 * k + 2, on, "recompute", update, PARAM + k * IN, GRAD, STATE, x, 0, 0)
            for k, x in enumerate([0, *[IN] * (shards - 1)])
        ]
        for k, fields in enumerate(changes):
            own[k] = replace(own[k], **fields)
        self.task = Task(
            name=name,
            workload=Workload("work.py:tasks", "0" * 64),
            steps=steps,
            batch=2 * microbatches,
            microbatch=2,
            microbatches=microbatches,
            batch_bytes=BATCH,
            ties=((0, 1),),
            shards=tuple(own),
        )
        self.enter, self.round, self.leave = list[Op](), list[Op](), list[Op]()

    def part(self, kept: int = 0) -> Part:
        return Part(self.task, self.enter, self.round, self.leave, kept)

    def add(self, name: str, stream: str, reads: Roles, writes: Roles) -> None:
        """An op of the round."""
        self.round.append(self.op(name, stream, reads, writes))

    def copy(self, name: str, role: Role, source: str, target: str) -> None:
        """A copy in the round."""
        self.round.append(self._copy(name, role, source, target))

    def stay(self, k: int, *roles: Role) -> None:
        """Parameters, and state, that are loaded in the beginning and written back in the end."""
        for serial, role in enumerate(roles or ("param", "state")):
            here, store = f"{role}{k}", f"s{k}.{role}"
            self.enter.append(self._copy(f"s{k}.P{serial}", role, store, here))
            self.leave.append(self._copy(f"s{k}.S{serial}", role, here, store))

    def batch(self, m: int, buffer: str = "") -> None:
        """A microbatch is loaded."""
        self.add(f"batch.P{m}", f"{self.device}.h2d", {}, {"batch": buffer or f"batch.{m}"})

    def batches(self) -> None:
        """Every microbatch has a buffer of its own."""
        for m in range(self.microbatches):
            self.batch(m)

    def use(self, kind: Kind, k: int, m: int, *, fresh: bool = False, **places: str) -> None:
        """Forward or backward of a shard, dx in the place of x; values that lie elsewhere are in
        `places`. fresh: the gradient begins here."""
        x, y = f"x{k}.{m}", f"x{k + 1}.{m}"
        usual = {"param": f"param{k}", "batch": f"batch.{m}", "grad": f"grad{k}"}
        usual |= {"x": x, "dx": x, "y": y, "dy": y} | places
        reads, writes = ["param", "x" if k else "batch"], ["y"]
        if kind == "B":
            reads += ["dy"] * (k < self.last) + ["batch"] * (0 < k == self.last)
            reads += ["grad"] * (m > 0 and not fresh)
            writes = ["grad"] + ["dx"] * (k > 0)
        if self.task.shards[k].activations == "offload":
            (writes if kind == "F" else reads).append("saved")
        read, written = (_of(usual, roles) for roles in (reads, writes))
        self.add(f"s{k}.{kind}{m}", f"{self.device}.compute", read, written)

    def replica(self) -> None:
        """The first shard's microbatch of this device, by itself."""
        d = self.device
        self.batch(d, f"batch{d}")
        places = {"param": f"param{d}", "batch": f"batch{d}", "grad": f"grad{d}"}
        self.use("B", 0, d, fresh=True, **places)

    def each(self, kind: Kind, k: int, **places: str) -> None:
        """All microbatches of a shard; `places` with {m} for the microbatch."""
        for m in range(self.microbatches):
            self.use(kind, k, m, **{role: name.format(m=m) for role, name in places.items()})

    def update(self, k: int, **places: str) -> None:
        """The update of a shard on its device."""
        own: Roles = {"param": f"param{k}", "state": f"state{k}"}
        own |= _of(places, list(places))
        self.add(f"s{k}.U0", f"{self.device}.compute", {**own, "grad": f"grad{k}"}, own)

    def on_host(self, k: int, grad: str = "") -> None:
        """The gradient goes to the host, which updates."""
        self.copy(f"s{k}.S0", "grad", grad or f"grad{k}", f"s{k}.grad")
        own: Roles = {"param": f"s{k}.param", "state": f"s{k}.state"}
        self.add(f"s{k}.U0", f"host.{self.device}", {**own, "grad": f"s{k}.grad"}, own)

    def load(self, k: int, serial: int, slot: str) -> None:
        """Parameters go into a slot."""
        self.copy(f"s{k}.P{serial}", "param", f"s{k}.param", slot)

    def _copy(self, name: str, role: Role, source: str, target: str) -> Op:
        stream = f"{self.device}.{_LANES[name.split('.')[1][0]]}"
        return self.op(name, stream, {role: source}, {role: target})

    def op(self, name: str, stream: str, reads: Roles, writes: Roles) -> Op:
        own = ({r: f"{self.task.name}.{b}" for r, b in some.items()} for some in (reads, writes))
        return op(f"{self.task.name}.{name}", stream, *own)


def _of(places: Mapping[str, str], roles: list[str]) -> Roles:
    return {role: places[role] for role in roles}  # type: ignore[misc]


def resident_part(name: str, device: int = 0, steps: int = 4) -> Part:
    """One shard that stays on the device and is updated there; two microbatches."""
    made = Maker(name, 1, "device", steps=steps, device=device)
    made.stay(0)
    for m in range(2):
        made.batch(m, "batch")
        made.use("B", 0, m, batch="batch")
    made.update(0)
    return made.part()


def pipeline_part(name: str) -> Part:
    """Two resident shards on two devices, boundaries and targets sent between them."""
    made = Maker(name, 2, "device")
    for made.device in range(2):
        made.stay(made.device)
    for m in range(2):
        made.device = 0
        made.batch(m, f"batch0.{m}")
        made.copy(f"batch.X{m}", "batch", f"batch0.{m}", f"batch1.{m}")
        made.use("F", 0, m, batch=f"batch0.{m}", y=f"x0.{m}")
        made.copy(f"x1.X{m}", "x", f"x0.{m}", f"x1.{m}")
        made.device = 1
        made.use("B", 1, m, batch=f"batch1.{m}")
        made.copy(f"dx1.X{m}", "dx", f"x1.{m}", f"x0.{m}")
    made.device = 0
    made.each("B", 0, batch="batch0.{m}", dy="x0.{m}")
    for made.device in range(2):
        made.update(made.device)
    return made.part()


def parallel_part(name: str) -> Part:
    """One shard on two devices with a microbatch each; device 0 merges, updates and sends back."""
    made = Maker(name, 1, "device")
    made.stay(0)
    for made.device in range(2):
        made.replica()
    made.enter.append(made.op("s0.P2", "1.h2d", {"param": "s0.param"}, {"param": "param1"}))
    made.copy("s0.X0", "grad", "grad1", "other")
    made.device = 0
    made.add("s0.R0", "0.compute", {"grad": "grad0", "other": "other"}, {"grad": "grad0"})
    made.update(0)
    made.copy("s0.X1", "param", "param0", "param1")
    return made.part()


def summed_part(name: str) -> Part:
    """One shard on two devices with a microbatch each; the host adds gradients and updates."""
    made = Maker(name, 1, "host")
    for made.device in range(2):
        d = made.device
        made.load(0, d, f"param{d}")
        made.replica()
        made.copy(f"s0.S{d}", "grad", f"grad{d}", "s0.grad" + ".1" * d)
    total: Roles = {"grad": "s0.grad"}
    made.add("s0.R0", "host.0", {**total, "other": "s0.grad.1"}, total)
    own: Roles = {"param": "s0.param", "state": "s0.state"}
    made.add("s0.U0", "host.0", {**own, **total}, own)
    return made.part()


def offloaded_part(name: str) -> Part:
    """Two resident shards; boundaries wait in the host store between forward and backward."""
    made = Maker(name, 2, "device")
    for k in range(2):
        made.stay(k)
    for m in range(2):
        made.batch(m)
        made.use("F", 0, m, y="out")
        made.copy(f"x1.S{m}", "x", "out", f"x1.{m}")
    for m in range(2):
        made.copy(f"x1.P{m}", "x", f"x1.{m}", "in")
        made.use("B", 1, m, x="in", dx="in")
        made.use("B", 0, m, dy="in")
    made.update(1)
    made.update(0)
    return made.part()


def streamed_part(
    name: str, device: int = 0, shards: int = 3, microbatches: int = 2, slots: int = 2
) -> Part:
    """All shards stream through slots, gradients leave through two more, the host updates."""
    made = Maker(name, shards, "host", microbatches=microbatches, device=device)
    made.batches()
    for number in range(2 * shards - 1):
        k, slot = min(number, 2 * (shards - 1) - number), f"slot{number % slots}"
        made.load(k, int(number >= shards - 1), slot)
        if number < shards - 1:
            made.each("F", k, param=slot)
        else:
            grad = f"grad{(shards - 1 - k) % 2}"
            made.each("B", k, param=slot, grad=grad)
            made.on_host(k, grad)
    return made.part()


def packed_part(name: str) -> Part:
    """Three shards through three slots; what the first two pack waits in the host store.

    Backward finds parameters in another slot than forward. So it does the second one's input, which
    was in the host store too: where it was there is a gradient now.
    """
    made = Maker(name, 3, "host", _PACKS, _PACKS)
    made.batches()
    for k in range(2):
        made.load(k, 0, f"slot{k}")
        made.each("F", k, param=f"slot{k}", saved="out{m}")
        for m in range(2):
            made.copy(f"a{k}.S{m}", "saved", f"out{m}", f"s{k}.a{k}.{m}")
    for m in range(2):
        made.copy(f"x1.S{m}", "x", f"x1.{m}", f"x1.h{m}")
    places = [{"dy": "x1.back{m}"}, {"x": "x1.back{m}", "dx": "x1.back{m}", "dy": "x1.{m}"}]
    for k, slot in ((2, "slot2"), (1, "slot0"), (0, "slot1")):
        made.load(k, 1, slot)
        for m in range(2):
            if k == 1:
                made.copy(f"x1.P{m}", "x", f"x1.h{m}", f"x1.back{m}")
            if k < 2:
                made.copy(f"a{k}.P{m}", "saved", f"s{k}.a{k}.{m}", f"in{m}")
        own = places[k] if k < 2 else {"dx": "x1.{m}"}
        made.each("B", k, param=slot, grad=f"grad{k % 2}", saved="in{m}", **own)
        made.on_host(k, f"grad{k % 2}")
    return made.part()


def saved_part(name: str, keeps: bool = True) -> Part:
    """Two shards with a slot each, loaded once a round; the host updates.

    The first keeps its graphs, or recomputes.
    """
    made = Maker(name, 2, "host", _KEEPS if keeps else {})
    made.batches()
    for k in range(2):
        made.load(k, 0, f"slot{k}")
    made.each("F", 0, param="slot0")
    for k in (1, 0):
        made.each("B", k, param=f"slot{k}")
        made.on_host(k)
    return made.part(2 * SAVED * keeps)


def parked_part(name: str) -> Part:
    """Two resident shards; what the first packs stays on the device until its backward."""
    made = Maker(name, 2, "device", _PACKS)
    for k in range(2):
        made.stay(k)
    made.batches()
    made.each("F", 0, saved="pack{m}")
    made.each("B", 1)
    made.each("B", 0, saved="pack{m}")
    made.update(1)
    made.update(0)
    return made.part()


def state_part(name: str) -> Part:
    """Two shards with resident parameters; their state comes for the update on the device."""
    streams: Mapping[str, object] = {"update": "device-streamed"}
    made = Maker(name, 2, "device", {**streams, **_KEEPS}, streams)
    for k in range(2):
        made.stay(k, "param")
    made.batches()
    made.each("F", 0)
    made.each("B", 1)
    made.each("B", 0)
    for k in (1, 0):
        made.copy(f"s{k}.P1", "state", f"s{k}.state", "state")
        made.update(k, state="state")
        made.copy(f"s{k}.S1", "state", "state", f"s{k}.state")
    return made.part(2 * SAVED)


def returned_part(name: str) -> Part:
    """Three shards; the graphs of the second stay while its slot and its input hold other things.

    Forward goes microbatch by microbatch through one boundary buffer. The second and third shard
    take turns in one slot.
    """
    made = Maker(name, 3, "host", {"update": "device", "resident": True}, _KEEPS)
    made.stay(0)
    made.batches()
    made.load(1, 0, "slot")
    for m in range(2):
        made.use("F", 0, m, y="x")
        made.use("F", 1, m, param="slot", x="x")
        made.copy(f"x1.S{m}", "x", "x", f"x1.h{m}")
    made.load(2, 0, "slot")
    made.each("B", 2, param="slot")
    made.on_host(2)
    made.load(1, 1, "slot")
    for m in range(2):
        made.copy(f"x1.P{m}", "x", f"x1.h{m}", "x")
        made.use("B", 1, m, param="slot", x="x", dx=f"x1.{m}")
    made.on_host(1)
    made.each("B", 0)
    made.update(0)
    return made.part(2 * SAVED)


def swapped_part(name: str) -> Part:
    """Two shards with a slot each; parameters and state come and go in every round, the device
    updates."""
    streams: Mapping[str, object] = {"update": "device-streamed", "resident": False}
    made = Maker(name, 2, "device", streams, streams)
    made.batches()
    for k in range(2):
        made.load(k, 0, f"slot{k}")
        made.copy(f"s{k}.P1", "state", f"s{k}.state", f"state{k}")
    made.each("F", 0, param="slot0")
    made.each("B", 1, param="slot1")
    made.each("B", 0, param="slot0")
    for k in range(2):
        made.update(k, param=f"slot{k}")
        made.copy(f"s{k}.S1", "param", f"slot{k}", f"s{k}.param")
        made.copy(f"s{k}.S2", "state", f"state{k}", f"s{k}.state")
    return made.part()
