"""Corrections of a profile, as a file: a run's actual times against its plan's predictions.

For every task, time and layer the median of actual / predicted, and for every link direction a
line through the copies (`residuals` makes them from a run log). `apply` multiplies them into a
profile. A layer's ratio holds at every microbatch size, so that sizes that were not run do not
look cheaper than the one that was.

Corrections are relative to what their plan was built from. Those of a plan that was itself built
with corrections go on top of these: `build --corrections a.json --corrections b.json`; `chain`
refuses any other combination.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from profiles.codec import decode, pretty, read_bytes, sha256, write_atomic
from profiles.errors import FormatError
from profiles.schema import (
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
    Time,
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
Ratio = Annotated[int, msgspec.Meta(ge=PPM // MOST, le=PPM * MOST)]  # in millionths
Direction = Literal["h2d", "d2h", "p2p", "net", "cast"]
Offset = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class LinkRatio(Struct, frozen=True):
    """A copy predicted to last t µs lasts ratio_ppm / 1e6 * t + offset_us."""

    ratio_ppm: Ratio
    offset_us: Offset
    samples: Positive


Roles = dict[str, str]  # role of an input -> sha256 of its file


class Corrections(Struct, frozen=True, kw_only=True):
    """inputs: sha256 of the plan and the log, and of what the plan was built from (the profile,
    and corrections if any), by role. emulation: of the devices that ran it. tasks: by name, time
    and layer actual / predicted; what no op showed is left out."""

    format: Literal["corrections"] = "corrections"
    version: Literal[1] = 1
    inputs: dict[str, Sha256]
    emulation: Emulation | None
    tasks: dict[Name, dict[What, dict[int, Ratio]]]
    links: dict[Direction, LinkRatio]


def loads(data: bytes, where: str = "corrections") -> Corrections:
    """Corrections from bytes; FormatError for another format, version or type."""
    return decode(data, Corrections, version=VERSION, where=where)


def save(path: str | Path, corrections: Corrections) -> None:
    write_atomic(path, pretty(corrections))


def chain(profile: Profile, profile_sha256: str, paths: Iterable[str]) -> tuple[Profile, Roles]:
    """`profile`, whose file has this hash, corrected by each file in turn; and the files' hashes
    by their roles in a plan's inputs: corrections, corrections-2, ...

    FormatError for a file whose plan was not built from exactly what it is applied to.
    """
    applied: Roles = {}
    for number, path in enumerate(paths, 1):
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
        if corrections.emulation != profile.machine.devices[0].emulation:
            raise FormatError(
                f"{path}: its plan was built with other rates of links; give the same --h2d and "
                "--d2h here"
            )
        profile = apply(profile, corrections)
        applied[f"corrections-{number}" if number > 1 else "corrections"] = sha256(data)
    return profile, applied


def _names(roles: Roles) -> str:
    return ", ".join(f"{role} {digest[:12]}…" for role, digest in sorted(roles.items()))


def apply(profile: Profile, corrections: Corrections) -> Profile:
    """The profile with every time and link rate as the run showed it; the rest as it was."""
    tasks = []
    for task in profile.tasks:
        by = corrections.tasks.get(task.name, {})
        known: list[dict[What, int]] = [
            {what: layers[n] for what, layers in by.items() if n in layers}
            for n in range(len(task.layers))
        ]
        tasks.append(replace(task, layers=tuple(map(_layer, task.layers, known))))
    links: dict[str, LinkRatio] = {way: ratio for way, ratio in corrections.links.items()}
    devices = tuple(
        replace(device, links=tuple(_link(link, links.get(link.kind)) for link in device.links))
        for device in profile.machine.devices
    )
    before = profile.provenance.get("corrected")
    note = f"log {corrections.inputs.get('log', '?')[:12]}"
    return replace(
        profile,
        tasks=tuple(tasks),
        machine=replace(profile.machine, devices=devices),
        provenance=profile.provenance | {"corrected": f"{before}, {note}" if before else note},
    )


def _layer(layer: Layer, known: Mapping[What, int]) -> Layer:
    return replace(
        layer,
        update_device=_scaled(layer.update_device, known.get("update_device", PPM)),
        update_host=_scaled(layer.update_host, known.get("update_host", PPM)),
        costs=tuple(_cost(cost, known) for cost in layer.costs),
    )


def _cost(cost: LayerCost, known: Mapping[What, int]) -> LayerCost:
    """The cost with forward corrected by the F's, and backward by either of two:

    B's that recompute say what both backward times are to be multiplied with; where F kept a
    graph, B corrects backward and F the rest of recompute_backward (and forward, which did not
    run without a graph).
    """
    whole, graph = known.get("recompute_backward"), known.get("recompute", PPM)
    alone = known.get("backward", PPM) if whole is None else whole
    if whole is None:
        old, back = cost.recompute_backward.median_us, cost.backward.median_us
        new = _times(max(0, old - back), graph) + _times(min(old, back), alone)
        whole = (new * PPM + old // 2) // old if old else PPM
    by = {
        "forward": known.get("forward", graph),
        **dict.fromkeys(("recompute_backward", "pack_backward"), whole),
        **dict.fromkeys(("backward", "unpack_backward"), alone),
        **dict.fromkeys(("backward_input", "backward_weight"), alone),
    }
    times = {name: getattr(cost, name) for name in by}
    return replace(cost, **{name: us and _scaled(us, by[name]) for name, us in times.items()})


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
    median, p10, p90 = (_times(us, ppm) for us in (time.median_us, time.p10_us, time.p90_us))
    return Time(median, p10, p90, time.samples)


def _times(us: int, ppm: int) -> int:
    """`us` multiplied, to the nearest µs."""
    return min((us * ppm + PPM // 2) // PPM, LARGEST)
