"""Checks what a profile must satisfy beyond its schema, and lists all violations at once."""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from profiles.codec import ALIGNMENT
from profiles.curves import FEWEST
from profiles.findings import Findings
from profiles.schema import Layer, LinkKind, Profile, Task, Time

_PARTS = (
    *("backward_input", "backward_weight"),
    *("left_bytes", "kept_grad_bytes", "input_peak_bytes"),
)
_COSTS = (
    *("forward", "backward", "recompute_backward", "pack_backward", "unpack_backward"),
    *_PARTS[:2],
)


def violations(profile: Profile) -> list[str]:
    """Every rule that `profile` breaks, each with the place, so many of them in words; empty when
    it is sound."""
    return findings(profile).lines()


def findings(profile: Profile) -> Findings:
    """Every rule that `profile` breaks."""
    found = Findings()
    found.add("machine", _machine(profile))
    names = Counter(task.name for task in profile.tasks)
    twice = (f"tasks: name {n!r} is used twice" for n, count in names.items() if count > 1)
    found.add("names", twice)
    for task in profile.tasks:
        found.add("tasks", _task(task))
    return found


def _machine(profile: Profile) -> Iterator[str]:
    for device in profile.machine.devices:
        kinds, where = [link.kind for link in device.links], f"machine.devices {device.name}"
        for kind in get_args(LinkKind):
            count, needed = kinds.count(kind), kind in ("h2d", "d2h")
            if needed and count != 1:
                yield f"{where}: needs one {kind} link, has {count}"
            elif count > 1:
                yield f"{where}: has {count} {kind} links, expected one at most"


def _task(task: Task) -> Iterator[str]:
    if task.name.endswith("\n"):  # which the schema's pattern lets pass
        yield f"{task.name!r}: a task's name may hold only letters, digits, '_' and '-'"
    sizes = [batch.microbatch for batch in task.batches]
    if sizes != sorted(set(sizes)):
        yield f"{task.name}: microbatch sizes {sizes} are not ascending and distinct"
    for size in sizes:
        if task.lengths is None and task.batch % size:
            yield f"{task.name}: microbatch {size} does not divide the batch of {task.batch}"
    yield from _lengths(task, sizes)
    for group in task.ties:
        if len(group) < 2 or list(group) != sorted(set(group)) or group[-1] >= len(task.layers):
            last = len(task.layers) - 1
            yield f"{task.name}: tie {list(group)} is not an ascending list of layers 0..{last}"
    yield from _tie_bytes(task)
    for index, layer in enumerate(task.layers):
        where = f"{task.name}.layers[{index}] {layer.name}"
        yield from _layer(where, layer, sizes)
        yield from _norm(where, layer, task.norm_bytes)
    for index, (left, right) in enumerate(zip(task.layers, task.layers[1:], strict=False)):
        for a, b in zip(left.costs, right.costs, strict=False):
            if not b.in_bytes:
                yield f"{task.name}.layers[{index + 1}]: takes 0 bytes at microbatch {b.microbatch}"
            if a.out_bytes != b.in_bytes:
                yield (
                    f"{task.name}.layers[{index}]: gives {a.out_bytes} bytes at microbatch "
                    f"{a.microbatch} but layer {index + 1} takes {b.in_bytes}"
                )


def _lengths(task: Task, sizes: list[int]) -> Iterator[str]:
    """A task with lengths is measured at enough of them."""
    said, judged = task.lengths, task.evaluation_lengths
    if (judged is not None) != (said is not None and task.evaluation is not None):
        what = "" if judged else "no "
        yield f"{task.name}: there are {what}lengths of samples to evaluate it on"
    if said is None:
        return
    if len(sizes) < FEWEST or all(size % ALIGNMENT for size in sizes):
        yield (
            f"{task.name}: is measured at lengths {sizes}, expected {FEWEST} or more, one "
            f"of them a multiple of {ALIGNMENT}"
        )
    if task.batch > said.samples:
        yield f"{task.name}: a step has {task.batch} samples, but there are {said.samples} lengths"
    for one in (said, judged) if judged else (said,):
        if not max(one.samples, one.longest) <= one.tokens <= one.samples * one.longest:
            yield (
                f"{task.name}: {one.samples} lengths of at most {one.longest} cannot have "
                f"{one.tokens} tokens together"
            )


def _tie_bytes(task: Task) -> Iterator[str]:
    """Every group's bytes, or none, are of gradients that count in its first layer."""
    if task.tie_bytes and len(task.tie_bytes) != len(task.ties):
        given, groups = len(task.tie_bytes), len(task.ties)
        yield f"{task.name}: has tie_bytes of {given} groups, but {groups} groups of ties"
    for group, size in zip(task.ties, task.tie_bytes, strict=False):
        layer = task.layers[group[0]] if group and group[0] < len(task.layers) else None
        if layer and size > layer.grad_bytes:
            yield (
                f"{task.name}: layers {list(group)} share {size} gradient bytes, but the first of "
                f"them has {layer.grad_bytes}"
            )


def _layer(where: str, layer: Layer, sizes: list[int]) -> Iterator[str]:
    measured = [cost.microbatch for cost in layer.costs]
    if measured != sizes:
        yield f"{where}: measured at microbatches {measured}, the task at {sizes}"
    times = {name: getattr(layer, name) for name in ("update_device", "update_host", "norm")}
    for cost in layer.costs:
        times |= {f"{name} at {cost.microbatch}": getattr(cost, name) for name in _COSTS}
        if len({getattr(cost, name) is None for name in _PARTS}) > 1:
            yield (
                f"{where}: of {', '.join(_PARTS)} at {cost.microbatch} some are there, expected "
                "all or none"
            )
    for name, time in times.items():
        if time:
            yield from _time(f"{where}: {name}", time)


def _norm(where: str, layer: Layer, norm_bytes: int) -> Iterator[str]:
    """Norms of gradients are timed exactly where updates wait for them."""
    if layer.norm and not norm_bytes:
        yield f"{where}: has a norm time, but the task's norm_bytes are 0: no update waits for it"
    if not layer.norm and norm_bytes and layer.grad_bytes:
        yield (
            f"{where}: has {layer.grad_bytes} gradient bytes but no norm time, and the task's "
            f"norm_bytes are {norm_bytes}"
        )
    if not norm_bytes and layer.norm_peak_bytes:
        yield f"{where}: norm_peak_bytes are {layer.norm_peak_bytes} without a norm, expected 0"


def _time(where: str, time: Time) -> Iterator[str]:
    if not time.p10_us <= time.median_us <= time.p90_us:
        spread = f"p10 {time.p10_us}, median {time.median_us}, p90 {time.p90_us}"
        yield f"{where}: {spread} are not ascending"
