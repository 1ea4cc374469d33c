"""Corrections of a profile, as a file: a run's actual times against its plan's predictions.

For every task, time and layer the median of actual / predicted, and for every link direction a
line through the copies (`residuals` makes them from a run log). `apply` multiplies them into a
profile. A layer's ratio holds at every microbatch size, so that sizes that were not run do not
look cheaper than the one that was.

Corrections are relative to what their plan was built from. Those of a plan that was itself built
with corrections go on top of these: `build --corrections a.json --corrections b.json`; `chain`
refuses any other combination.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from profiles.codec import decode, pretty, read_bytes, sha256, write_atomic
from profiles.errors import FormatError
from profiles.schema import (
    Count,
    DeviceKind,
    Emulation,
    Layer,
    LayerCost,
    Link,
    Name,
    Positive,
    Profile,
    Rate,
    Sha256,
    Struct,
    Task,
    Threads,
    Time,
    Workload,
)
from profiles.units import LARGEST

VERSION = 1
PPM = 1_000_000
MOST = 1000  # no correction is by more than this factor, up or down

What = Literal[
    "forward",  # F that keeps nothing
    "recompute",  # F that keeps or packs its graph: recompute_backward - backward of the profile
    "recompute_backward",  # B that runs the forward again
    "backward",  # B on a graph that F made
    "update_device",
    "update_host",
]
Ratio = Annotated[int, msgspec.Meta(ge=PPM // MOST, le=PPM * MOST)]
Direction = Literal["h2d", "d2h", "p2p", "net", "cast"]
Offset = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class LayerRatio(Struct, frozen=True):
    """actual / predicted of one time of a layer: the median of `samples` ops, in millionths."""

    layer: Count
    ratio_ppm: Ratio
    samples: Positive


class TaskRatios(Struct, frozen=True):
    """A task's ratios of each time, layers ascending; what no op showed is left out."""

    name: Name
    workload: Workload
    layers: Positive  # of the task, corrected or not
    times: dict[What, tuple[LayerRatio, ...]]


class LinkRatio(Struct, frozen=True):
    """A copy predicted to last t µs lasts ratio_ppm / 1e6 * t + offset_us."""

    direction: Direction
    ratio_ppm: Ratio
    offset_us: Offset
    samples: Positive


class Machine(Struct, frozen=True):
    """Properties that the run's devices share with those of the profile."""

    kind: DeviceKind
    threads: Threads
    emulation: Emulation | None


Roles = dict[str, str]  # role of an input -> sha256 of its file


class Corrections(Struct, frozen=True, kw_only=True):
    """inputs: sha256 of the plan and the log, and of what the plan was built from (the profile,
    and corrections if any), by role."""

    format: Literal["corrections"] = "corrections"
    version: Literal[1] = 1
    inputs: dict[str, Sha256]
    machine: Machine
    tasks: tuple[TaskRatios, ...]
    links: tuple[LinkRatio, ...]


def loads(data: bytes, where: str = "corrections") -> Corrections:
    """Corrections from bytes; FormatError for another format, version, type or layer number."""
    read = decode(data, Corrections, version=VERSION, where=where)
    for task in read.tasks:
        for what, ratios in task.times.items():
            layers = [one.layer for one in ratios]
            if layers != sorted(set(layers)) or (layers and layers[-1] >= task.layers):
                last = task.layers - 1
                raise FormatError(
                    f"{where}: {task.name}.{what}: layers {layers} are not ascending within "
                    f"0..{last}"
                )
    return read


def save(path: str | Path, corrections: Corrections) -> None:
    write_atomic(path, pretty(corrections))


def chain(profile: Profile, profile_sha256: str, paths: Iterable[str]) -> tuple[Profile, Roles]:
    """`profile`, whose file has this hash, corrected by each file in turn; and the files' hashes
    by their roles in a plan's inputs: corrections, corrections-2, ...

    FormatError for a file whose plan was not built from exactly what it is applied to.
    """
    applied: Roles = {}
    for path in paths:
        data = read_bytes(path)
        corrections = loads(data, path)
        theirs = {r: h for r, h in corrections.inputs.items() if r not in ("plan", "log")}
        ours = {"profile": profile_sha256, **applied}
        if theirs != ours:
            raise FormatError(
                f"{path}: its plan was built from {_names(theirs)}, here it would correct "
                f"{_names(ours)}; give that profile, and before this file the corrections that "
                "its plan was built with"
            )
        profile = apply(profile, corrections, path)
        applied[role(len(applied))] = sha256(data)
    return profile, applied


def role(position: int) -> str:
    """The role in a plan's inputs of the corrections applied at this position, from 0."""
    return f"corrections-{position + 1}" if position else "corrections"


def _names(roles: Roles) -> str:
    return ", ".join(f"{role} {digest[:12]}…" for role, digest in sorted(roles.items()))


def apply(profile: Profile, corrections: Corrections, where: str = "corrections") -> Profile:
    """The profile with every time and link rate as the run showed it; the rest as it was.

    FormatError when the corrections are of another machine or workload.
    """
    _check(profile, corrections, where)
    by = {task.name: task for task in corrections.tasks}
    tasks = tuple(_task(task, by[task.name]) for task in profile.tasks)
    links: dict[str, LinkRatio] = {one.direction: one for one in corrections.links}
    devices = tuple(
        replace(device, links=tuple(_link(link, links.get(link.kind)) for link in device.links))
        for device in profile.machine.devices
    )
    note = f"log {corrections.inputs.get('log', '?')[:12]}"
    before = profile.provenance.get("corrected")
    return replace(
        profile,
        tasks=tasks,
        machine=replace(profile.machine, devices=devices),
        provenance=profile.provenance | {"corrected": f"{before}, {note}" if before else note},
    )


def _check(profile: Profile, corrections: Corrections, where: str) -> None:
    """FormatError for corrections that a run of a plan of this profile cannot have given."""
    device = profile.machine.devices[0]
    mine = Machine(device.kind, device.threads, device.emulation)
    theirs = {"device": _words(corrections.machine)} | {
        f"task {one.name}": _workload(one.workload, one.layers) for one in corrections.tasks
    }
    ours = {"device": _words(mine)} | {
        f"task {one.name}": _workload(one.workload, len(one.layers)) for one in profile.tasks
    }
    for what in sorted(theirs.keys() | ours.keys()):
        run, here = theirs.get(what, "not in it"), ours.get(what, "not in it")
        if run != here:
            raise FormatError(
                f"{where}: of another run: {what} was {run}, in the profile it is {here}; run a "
                "plan built from this profile and compare it with --write-corrections"
            )


def _words(machine: Machine) -> str:
    text = f"{machine.kind} with {machine.threads} thread(s)"
    if link := machine.emulation:
        text += f", h2d {link.h2d_bytes_per_s} and d2h {link.d2h_bytes_per_s} bytes/s {link.words}"
        text += f", p2p {link.p2p_bytes_per_s}" if link.p2p_bytes_per_s else ""
        text += f", latency {link.latency_us} us"
    return text


def _workload(workload: Workload, layers: int) -> str:
    return f"{layers} layers of the workload with sha256 {workload.sha256[:12]}…"


def _task(task: Task, ratios: TaskRatios) -> Task:
    by: list[dict[What, int]] = [{} for _ in task.layers]
    for what, ones in ratios.times.items():
        for one in ones:
            by[one.layer][what] = one.ratio_ppm
    pairs = zip(task.layers, by, strict=True)
    return replace(task, layers=tuple(_layer(layer, known) for layer, known in pairs))


def _layer(layer: Layer, known: dict[What, int]) -> Layer:
    return replace(
        layer,
        update_device=_scaled(layer.update_device, known.get("update_device", PPM)),
        update_host=_scaled(layer.update_host, known.get("update_host", PPM)),
        costs=tuple(_cost(cost, known) for cost in layer.costs),
    )


def _cost(cost: LayerCost, known: dict[What, int]) -> LayerCost:
    """The cost with forward corrected by the F's, and backward by either of two:

    B's that recompute say what both backward times are to be multiplied with; where F kept a
    graph, B corrects backward and F the rest of recompute_backward (and forward, which did not
    run without a graph).
    """
    whole = known.get("recompute_backward")
    graph = known.get("recompute", PPM)
    alone = known.get("backward", PPM) if whole is None else whole
    if whole is None:
        old, back = cost.recompute_backward.median_us, cost.backward.median_us
        new = _times(max(0, old - back), graph) + _times(min(old, back), alone)
        whole = (new * PPM + old // 2) // old if old else PPM
    return replace(
        cost,
        forward=_scaled(cost.forward, known.get("forward", graph)),
        recompute_backward=_scaled(cost.recompute_backward, whole),
        backward=_scaled(cost.backward, alone),
        pack_backward=cost.pack_backward and _scaled(cost.pack_backward, whole),
        unpack_backward=cost.unpack_backward and _scaled(cost.unpack_backward, alone),
        backward_input=cost.backward_input and _scaled(cost.backward_input, alone),
        backward_weight=cost.backward_weight and _scaled(cost.backward_weight, alone),
    )


def _link(link: Link, ratio: LinkRatio | None) -> Link:
    if ratio is None:
        return link
    return replace(link, alone=_rate(link.alone, ratio), both=_rate(link.both, ratio))


def _rate(rate: Rate, ratio: LinkRatio) -> Rate:
    """The rate at which a copy of any size lasts what the line makes of its predicted time."""
    latency = _times(rate.latency_us, ratio.ratio_ppm) + ratio.offset_us
    per_s = rate.bytes_per_s * PPM // ratio.ratio_ppm
    return Rate(bytes_per_s=min(max(1, per_s), LARGEST), latency_us=min(max(0, latency), LARGEST))


def _scaled(time: Time, ppm: int) -> Time:
    return replace(
        time,
        median_us=_times(time.median_us, ppm),
        p10_us=_times(time.p10_us, ppm),
        p90_us=_times(time.p90_us, ppm),
    )


def _times(us: int, ppm: int) -> int:
    """`us` multiplied, to the nearest µs."""
    return min((us * ppm + PPM // 2) // PPM, LARGEST)
