"""Tasks whose shards keep something from forward to backward, for handmade plans."""

from collections.abc import Iterator

from msgspec.structs import replace
from support.parts import (
    BATCH,
    GRAD,
    IN,
    SAVED,
    STATE,
    Part,
    Update,
    copy,
    op,
    resident_buffers,
    resident_copies,
    task,
    update,
)
from support.streaming import streamed_part

from plans.schema import Op, Task


def _with(of: Task, *changes: dict[str, object]) -> Task:
    """The task with fields of its first shards changed."""
    made = [replace(shard, **fields) for shard, fields in zip(of.shards, changes, strict=False)]
    return replace(of, shards=(*made, *of.shards[len(made) :]))


_KEEPS = {"activations": "saved", "saved_bytes": SAVED}
_PACKS = {"activations": "offload", "saved_bytes": SAVED}


def _batches(name: str, waits: str) -> Iterator[Op]:
    """Both microbatches; `waits` is their last reader, without its index."""
    for m in range(2):
        yield op(
            f"{name}.batch.P{m}", "0.h2d", {}, {"batch": f"{name}.batch.{m}"}, f"{waits}{m}@-1"
        )


def _room(of: Task, boundaries: int) -> dict[str, tuple[str, int]]:
    """Buffers of two microbatches: batches, and boundaries 1..boundaries in which dx replaces x."""
    made = {f"{of.name}.batch.{m}": ("0", BATCH) for m in range(2)}
    for k in range(1, boundaries + 1):
        made |= {f"{of.name}.x{k}.{m}": ("0", IN) for m in range(2)}
    return made


def saved_part(name: str, keeps: bool = True) -> Part:
    """Two shards with a slot each, loaded once a round; the host updates.

    The first keeps its graphs, or recomputes.
    """
    of = _with(task(name, 2, 2, "host", 4), _KEEPS if keeps else {})
    buffers = _room(of, 1)
    rounds = list(_batches(name, f"{name}.s0.B"))
    for k, shard in enumerate(of.shards):
        slot, item = f"{name}.slot{k}", f"{name}.s{k}"
        buffers |= {slot: ("0", shard.param_bytes), f"{name}.grad{k}": ("0", GRAD)}
        after = f"{item}.B1@-1", f"{item}.U0@-1"
        rounds.append(copy(f"{item}.P0", "0.h2d", "param", f"{item}.param", slot, *after))
    rounds += _two_shards(name, "slot")
    for k in (1, 0):
        rounds += _host_update(name, k)
    return Part(of, buffers, [], rounds, [], kept=2 * SAVED * keeps)


def _two_shards(name: str, params: str) -> Iterator[Op]:
    """Forward and backward of two shards, both microbatches of one before the other."""
    for m in range(2):
        reads = {"param": f"{name}.{params}0", "batch": f"{name}.batch.{m}"}
        after = [f"{name}.batch.P{m}", *([f"{name}.s0.P0"] if params == "slot" else [])]
        yield op(f"{name}.s0.F{m}", "0.compute", reads, {"y": f"{name}.x1.{m}"}, *after)
    for k in (1, 0):
        for m in range(2):
            reads = {"param": f"{name}.{params}{k}", "batch": f"{name}.batch.{m}"}
            reads["x" if k else "dy"] = f"{name}.x1.{m}"
            writes = {"grad": f"{name}.grad{k}"}
            writes |= {"dx": f"{name}.x1.{m}"} if k else {}
            reads |= {"grad": f"{name}.grad{k}"} if m else {}
            after = [f"{name}.s{k}.P0", f"{name}.s{k}.S0@-1"] if params == "slot" else []
            yield op(f"{name}.s{k}.B{m}", "0.compute", reads, writes, *after)


def _host_update(name: str, k: int) -> list[Op]:
    """The gradient goes to the host, which updates."""
    item = f"{name}.s{k}"
    own = {"param": f"{item}.param", "state": f"{item}.state"}
    grad = f"{item}.grad"
    return [
        copy(f"{item}.S0", "0.d2h", "grad", f"{name}.grad{k}", grad, f"{item}.B1"),
        op(f"{item}.U0", "host.0", {**own, "grad": grad}, own, f"{item}.S0"),
    ]


def packed_part(name: str) -> Part:
    """Three shards through three slots; what the first two pack waits in the host store.

    Backward finds parameters in another slot than forward. So it does the second one's input, which
    was in the host store too: where it was there is a gradient now.
    """
    base = streamed_part(name, slots=3)
    of = _with(base.task, _PACKS, _PACKS)
    buffers = {f"{name}.{way}{m}": ("0", SAVED) for way in ("out", "in") for m in range(2)}
    host = {f"{name}.s{k}.a{k}.{m}": SAVED for k in range(2) for m in range(2)}
    spills, fetches = [], []
    for k, m in ((k, m) for k in range(2) for m in range(2)):
        store, done = f"{name}.s{k}.a{k}.{m}", f"{name}.s{k}.F{m}"
        out, back = f"{name}.out{m}", f"{name}.in{m}"
        spills.append(copy(f"{name}.a{k}.S{m}", "0.d2h", "saved", out, store, done))
        free = f"{name}.s0.B{m}@-1" if k else f"{name}.s1.B{m}"
        fetch = copy(f"{name}.a{k}.P{m}", "0.h2d", "saved", store, back, f"{name}.a{k}.S{m}", free)
        fetches.append(fetch)
    for m in range(2):
        x, store, there = f"{name}.x1.{m}", f"{name}.x1.h{m}", f"{name}.x1.back{m}"
        buffers[there], host[store] = ("0", IN), IN
        spills.append(copy(f"{name}.x1.S{m}", "0.d2h", "x", x, store, f"{name}.s0.F{m}"))
        free = f"{name}.x1.S{m}", f"{name}.s0.B{m}@-1"
        fetches.append(copy(f"{name}.x1.P{m}", "0.h2d", "x", store, there, *free))
    fetches = fetches[4:] + fetches[2:4] + fetches[:2]  # the second shard goes back first
    copies = [o for o in base.round if o.stream == "0.h2d"]
    rounds = [*copies, *fetches, *spills]
    rounds += [_packing(o, name) for o in base.round if o.stream != "0.h2d"]
    return Part(of, base.buffers | buffers, [], rounds, [], host)


def _packing(old: Op, name: str) -> Op:
    """The op with the role of what is packed, and with its boundaries where they now are."""
    use, m = old.id[-4] + old.id[-2], old.id[-1]
    reads, writes, after = dict(old.reads), dict(old.writes), list(old.after)
    x, back = f"{name}.x1.{m}", f"{name}.x1.back{m}"
    if use in ("0F", "1F"):
        writes["saved"] = f"{name}.out{m}"
        after += [f"{name}.a0.S{m}"] if use == "1F" else []
    elif use == "2B":
        writes["dx"] = x
        after.append(f"{name}.x1.S{m}")
    elif use == "1B":
        reads |= {"saved": f"{name}.in{m}", "x": back, "dy": x}
        writes["dx"] = back
        after += [f"{name}.a1.P{m}", f"{name}.x1.P{m}"]
    elif use == "0B":
        reads |= {"saved": f"{name}.in{m}", "dy": back}
        after.append(f"{name}.a0.P{m}")
    return replace(old, reads=reads, writes=writes, after=tuple(after))


def parked_part(name: str) -> Part:
    """Two resident shards; what the first packs stays on the device until its backward."""
    of = _with(task(name, 2, 2, "device", 4), _PACKS)
    buffers = resident_buffers(of, 0, 0) | resident_buffers(of, 1, 0) | _room(of, 1)
    buffers |= {f"{name}.pack{m}": ("0", SAVED) for m in range(2)}
    enters, leaves = zip(*(resident_copies(name, k, 0) for k in range(2)), strict=True)
    rounds = list(_batches(name, f"{name}.s0.B"))
    for old in _two_shards(name, "param"):
        saved = {"saved": f"{name}.pack{old.id[-1]}"}
        if ".s0.F" in old.id:
            old = replace(old, writes={**old.writes, **saved})
        elif ".s0.B" in old.id:
            old = replace(old, reads={**old.reads, **saved})
        rounds.append(old)
    rounds += [update(name, 1, 0), update(name, 0, 0)]
    return Part(of, buffers, [*enters[0], *enters[1]], rounds, [*leaves[0], *leaves[1]])


def state_part(name: str) -> Part:
    """Two shards with resident parameters; their state comes for the update on the device."""
    of = task(name, 2, 2, "device", 4)
    streams: dict[str, object] = {"update": "device-streamed"}
    of = _with(of, streams | _KEEPS, streams)
    buffers = resident_buffers(of, 0, 0) | resident_buffers(of, 1, 0) | _room(of, 1)
    buffers = {n: size for n, size in buffers.items() if ".state" not in n}
    buffers[f"{name}.state"] = "0", STATE
    enters, leaves = zip(*(resident_copies(name, k, 0) for k in range(2)), strict=True)
    rounds = [*_batches(name, f"{name}.s0.B"), *_two_shards(name, "param")]
    state = f"{name}.state"
    for k in (1, 0):
        item, store = f"{name}.s{k}", f"{name}.s{k}.state"
        free = f"{name}.s1.S1" if k == 0 else f"{name}.s0.S1@-1"
        rounds.append(copy(f"{item}.P1", "0.h2d", "state", store, state, free))
        own = {"param": f"{name}.param{k}", "state": state}
        reads = {**own, "grad": f"{name}.grad{k}"}
        rounds.append(op(f"{item}.U0", "0.compute", reads, own, f"{item}.P1"))
        rounds.append(copy(f"{item}.S1", "0.d2h", "state", state, store, f"{item}.U0"))
    enter, leave = ([part[0] for part in parts] for parts in (enters, leaves))
    return Part(of, buffers, enter, rounds, leave, kept=2 * SAVED)


def returned_part(name: str) -> Part:
    """Three shards; the graphs of the second stay while its slot and its input hold other things.

    Forward goes microbatch by microbatch through one boundary buffer. The second and third shard
    take turns in one slot.
    """
    own: Update = "device"
    of = _with(task(name, 3, 2, "host", 4), {"update": own, "resident": True}, _KEEPS)
    buffers = resident_buffers(of, 0, 0) | _room(of, 2)
    buffers |= {f"{name}.slot": ("0", of.shards[2].param_bytes), f"{name}.x": ("0", IN)}
    buffers |= {f"{name}.grad{k}": ("0", GRAD) for k in (1, 2)}
    enter, leave = resident_copies(name, 0, 0)
    slot, store = f"{name}.slot", [f"{name}.s{k}.param" for k in range(3)]
    rounds = list(_batches(name, f"{name}.s0.B"))
    rounds.append(
        copy(
            f"{name}.s1.P0",
            "0.h2d",
            "param",
            store[1],
            slot,
            f"{name}.s1.B1@-1",
            f"{name}.s1.U0@-1",
        )
    )
    rounds += _through_one_buffer(name)
    after = f"{name}.s1.F1", f"{name}.s2.U0@-1"
    rounds.append(copy(f"{name}.s2.P0", "0.h2d", "param", store[2], slot, *after))
    rounds.append(copy(f"{name}.s1.P1", "0.h2d", "param", store[1], slot, f"{name}.s2.B1"))
    for k in (2, 1, 0):
        for m in range(2):
            rounds += _back(name, k, m)
    rounds += [*_host_update(name, 2), *_host_update(name, 1), update(name, 0, 0)]
    host = {f"{name}.x1.h{m}": IN for m in range(2)}
    return Part(of, buffers, enter, rounds, leave, host, kept=2 * SAVED)


def _through_one_buffer(name: str) -> Iterator[Op]:
    """Forward of the first two shards; the boundary between them goes to the host."""
    x = f"{name}.x"
    for m in range(2):
        reads = {"param": f"{name}.param0", "batch": f"{name}.batch.{m}"}
        after = [f"{name}.batch.P{m}", *([f"{name}.x1.S0"] if m else [])]
        yield op(f"{name}.s0.F{m}", "0.compute", reads, {"y": x}, *after)
        reads = {"param": f"{name}.slot", "x": x}
        yield op(f"{name}.s1.F{m}", "0.compute", reads, {"y": f"{name}.x2.{m}"}, f"{name}.s1.P0")
        yield copy(f"{name}.x1.S{m}", "0.d2h", "x", x, f"{name}.x1.h{m}", f"{name}.s0.F{m}")


def _back(name: str, k: int, m: int) -> Iterator[Op]:
    """Backward of shard k; the second one's input comes back to where it was."""
    reads = {"param": f"{name}.slot" if k else f"{name}.param0"}
    writes, after = {"grad": f"{name}.grad{k}"}, []
    if k == 2:
        reads |= {"x": f"{name}.x2.{m}", "batch": f"{name}.batch.{m}"}
        writes["dx"] = f"{name}.x2.{m}"
        after = [f"{name}.s2.P0"]
    elif k == 1:
        free = f"{name}.s1.B0" if m else f"{name}.s1.F1"
        fetch, there = f"{name}.x1.P{m}", f"{name}.x1.h{m}"
        yield copy(fetch, "0.h2d", "x", there, f"{name}.x", f"{name}.x1.S1", free)
        reads |= {"x": f"{name}.x", "dy": f"{name}.x2.{m}"}
        writes["dx"] = f"{name}.x1.{m}"
        after = [fetch, f"{name}.s1.P1"]
    else:
        reads |= {"batch": f"{name}.batch.{m}", "dy": f"{name}.x1.{m}"}
    reads |= {"grad": f"{name}.grad{k}"} if m else {}
    after += [f"{name}.s{k}.S0@-1"] if k and not m else []
    yield op(f"{name}.s{k}.B{m}", "0.compute", reads, writes, *after)


def swapped_part(name: str) -> Part:
    """Two shards with a slot each; parameters and state come and go in every round, the device
    updates."""
    streams: dict[str, object] = {"update": "device-streamed", "resident": False}
    of = _with(task(name, 2, 2, "device", 4), streams, streams)
    buffers, rounds = _room(of, 1), list(_batches(name, f"{name}.s0.B"))
    ends: list[Op] = []
    for k, shard in enumerate(of.shards):
        item, slot, state = f"{name}.s{k}", f"{name}.slot{k}", f"{name}.state{k}"
        buffers |= {slot: ("0", shard.param_bytes), state: ("0", STATE)}
        buffers[f"{name}.grad{k}"] = "0", GRAD
        gone = f"{item}.S1@-1", f"{item}.S2@-1"
        rounds.append(copy(f"{item}.P0", "0.h2d", "param", f"{item}.param", slot, *gone))
        rounds.append(copy(f"{item}.P1", "0.h2d", "state", f"{item}.state", state, *gone))
        own = {"param": slot, "state": state}
        reads = {**own, "grad": f"{name}.grad{k}"}
        ends.append(op(f"{item}.U0", "0.compute", reads, own, f"{item}.P1"))
        for serial, (role, here) in enumerate(own.items(), 1):
            spill = f"{item}.S{serial}"
            ends.append(copy(spill, "0.d2h", role, here, f"{item}.{role}", f"{item}.U0"))
    for old in _two_shards(name, "slot"):
        edges = tuple(edge for edge in old.after if ".S0" not in edge)
        rounds.append(replace(old, after=edges))
    return Part(of, buffers, [], [*rounds, *ends], [])
