"""From files and wishes to a problem: what `python -m planner build` and Python users ask alike.

Errors name the flags of the command; the keywords of `read_problem` are called like them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from msgspec import structs

import profiles
from planner.inputs import corrections as correcting
from planner.inputs import remaining
from planner.inputs.kinds import across
from planner.inputs.layout import Layout, OrderName, parse_layout
from planner.inputs.nodes import Nodes, asked_nodes, networked, on_nodes
from planner.inputs.problem import Objective, PackingName, Problem, Want
from planner.inputs.whatif import only_microbatches, override
from plans import runlog
from profiles import lengths
from profiles.codec import read_bytes, sha256
from profiles.errors import FormatError
from profiles.schema import Disk, Profile

Pairs = Mapping[str, int] | Sequence[tuple[str, int]]  # a value for each task that is named
T = TypeVar("T", int, str)
Each = int | Sequence[int]  # one value for all kinds of devices, or one for each


def read_problem(
    profile: str | Sequence[str],
    *,
    devices: Each | None = None,
    nodes: Nodes | str | None = None,
    device_memory: Each | None = None,
    host_memory: int | None = None,
    h2d: int | None = None,
    d2h: int | None = None,
    net: int | None = None,
    net_latency: int | None = None,
    corrections: Sequence[str] = (),
    after: Sequence[str] = (),
    microbatch: int | Pairs = (),
    objective: Objective = "makespan",
    start: Pairs = (),
    deadline: Pairs = (),
    priority: Pairs = (),
    segment_steps: int | None = None,
    disk_space: int | None = None,
    layout: Layout | str | None = None,
    order: OrderName = "auto",
    packing: PackingName = "auto",
    reorder_window: int = 1,
) -> Problem:
    """The problem of training all tasks of a profile, or of one profile for each kind of devices.

    Sizes are in bytes, rates in bytes per second, times in µs; None: as profiled. devices: how
    many, of each kind, by default one. nodes: machines that have them, like "2x8"; net,
    net_latency: the rate and latency of the network between them. corrections, after: files of
    corrections and logs of earlier runs, oldest first. microbatch: a size for all tasks ("" among
    names), or by task; 0 for any. disk_space: 0 for no disk. layout: on several devices, like "2x2"
    or "3,1", None for the best; order: of its passes. packing: of samples that have lengths;
    reorder_window: steps between which they may move. FormatError for a bad file and for what does
    not go together.
    """
    names = _listed(profile)
    counts = None if devices is None else _listed(devices)
    several = asked_nodes(nodes, counts, len(names), (net, net_latency), disk_space)
    counts = [several.total if several else 1] if counts is None else counts
    sizes: Sequence[int | None] = _listed(device_memory) if device_memory else [None]
    _go_together(names, counts, sizes, corrections)
    sizes = [*sizes] * len(names) if len(sizes) == 1 else sizes
    rates = _Rates(h2d, d2h, net, net_latency)
    asked = [("", microbatch)] if isinstance(microbatch, int) else _pairs(microbatch)
    left, inputs = _left(names, rates, several, corrections, after, asked)
    read, rest = [one.profile for one in left], left[-1]
    problem = across(read, names, devices=counts, device_bytes=sizes, host_bytes=host_memory)
    wishes = _wishes(layout, order, packing, reorder_window)
    problem = replace(
        problem,
        done=rest.done,
        microbatch=rest.microbatch,
        kept=rest.kept,
        additions=rest.additions,
        segment_steps=segment_steps,
        disk=_disk(problem.disk, disk_space),
        inputs=inputs,
        provenance=rates.told() | wishes,
        layout=_layout(layout),
        order=order,
        packing=packing,
        window=reorder_window,
        lengths=lengths.load_all(names[0], problem.tasks),
    )
    problem = _wanted(problem, objective, start, deadline, priority)
    return on_nodes(problem, several) if several and several.count > 1 else problem


class _Rates(NamedTuple):
    """The rates that were asked for, in bytes per second, and the network's latency in µs; None: as
    profiled."""

    h2d: int | None
    d2h: int | None
    net: int | None
    net_latency: int | None

    def of(self, profile: Profile, nodes: Nodes | None) -> Profile:
        """The profile with these rates."""
        made = override(profile, h2d=self.h2d, d2h=self.d2h)
        return networked(made, self.net, self.net_latency) if nodes and nodes.count > 1 else made

    def told(self) -> dict[str, str]:
        """The same as a plan's provenance."""
        given = (("h2d", self.h2d), ("d2h", self.d2h), ("net", self.net))
        told = {way: f"{rate} bytes/s" for way, rate in given if rate}
        return (
            told if self.net_latency is None else {**told, "net-latency": f"{self.net_latency} us"}
        )


def _left(
    names: Sequence[str],
    rates: _Rates,
    nodes: Nodes | None,
    corrections: Sequence[str],
    after: Sequence[str],
    microbatch: Sequence[tuple[str, int]],
) -> tuple[list[remaining.Rest], dict[str, str]]:
    """The rest of each profile after earlier runs, with these rates, corrections and microbatches;
    and the hashes of the files, by their roles in a plan's inputs."""
    data, inputs = [read_bytes(path) for path in names], dict[str, str]()
    found, logs = [], [runlog.load(run) for run in after]
    for path, content in zip(names, data, strict=True):
        made = rates.of(profiles.loads(content, path), nodes)
        _as_measured(made, corrections, microbatch)
        made, inputs = correcting.chain(made, sha256(content), corrections)
        rest = remaining.after(made, logs, after[-1], microbatch) if logs else remaining.Rest(made)
        remaining.measured(rest, path)
        told = _by_task(["", *(task.name for task in rest.profile.tasks)], "microbatch", microbatch)
        wanted = {task.name: told.get(task.name, told.get("", 0)) for task in rest.profile.tasks}
        found.append(rest._replace(profile=only_microbatches(rest.profile, wanted | rest.kept)))
    inputs |= {f"profile-{n}" if n else "profile": sha256(c) for n, c in enumerate(data)}
    return found, inputs


def _layout(given: Layout | str | None) -> Layout | None:
    if not isinstance(given, str):
        return given
    try:
        return parse_layout(given)
    except ValueError as error:
        raise FormatError(f"--layout: {error}") from error


def _as_measured(
    profile: Profile, corrections: Sequence[str], microbatch: Sequence[object]
) -> None:
    """FormatError for what cannot be asked where samples have lengths."""
    for task in profile.tasks:
        for flag, given in (("corrections", corrections), ("microbatch", microbatch)):
            if task.lengths and given:
                raise FormatError(
                    f"{task.name}: its samples have lengths, with which --{flag} does not go; "
                    "leave it out"
                )


def _wishes(
    layout: Layout | str | None,
    order: OrderName,
    packing: PackingName,
    window: int,
) -> dict[str, str]:
    """The wishes about several devices and about lengths, as a plan's provenance."""
    told = {} if layout is None else {"layout": str(layout)}
    told |= {} if order == "auto" else {"order": order}
    told |= {} if packing == "auto" else {"packing": packing}
    return told if window == 1 else {**told, "reorder-window": str(window)}


def _listed(given: T | Sequence[T]) -> Sequence[T]:
    """One value as a list of it."""
    return [given] if isinstance(given, int | str) else given


def _pairs(given: Pairs) -> list[tuple[str, int]]:
    return list(given.items() if isinstance(given, Mapping) else given)


def _go_together(
    names: Sequence[str],
    counts: Sequence[int],
    sizes: Sequence[int | None],
    corrections: Sequence[str],
) -> None:
    """FormatError where there are not as many numbers as profiles."""
    if len(counts) != len(names):
        raise FormatError(
            f"--devices says {_count(len(counts), 'number')} but there "
            f"{_count(len(names), 'profile', verb=True)}; give as many devices of each kind as "
            "there are, like 2,4, in the order of the profiles"
        )
    if len(sizes) not in (1, len(names)):
        raise FormatError(
            f"--device-memory lists {len(sizes)} sizes for {_count(len(names), 'profile')}; give "
            "one for all kinds of devices, or one for each"
        )
    if len(names) > 1 and corrections:
        raise FormatError(
            "--corrections are of one kind of devices and cannot be told apart by profile; leave "
            "them out, or plan with one profile"
        )


def _count(number: int, what: str, *, verb: bool = False) -> str:
    """Like `1 profile` or `are 2 profiles`."""
    is_are = ("is " if number == 1 else "are ") if verb else ""
    return f"{is_are}{number} {what}{'' if number == 1 else 's'}"


def _disk(profiled: Disk | None, space: int | None) -> Disk | None:
    """The disk as profiled, or with so many bytes; FormatError where its rates are not known."""
    if not space:
        return profiled if space is None else None
    if profiled is None:
        raise FormatError(
            "--disk-space: the profile does not say how fast the disk is; profile with --disk DIR"
        )
    return structs.replace(profiled, usable_bytes=space)


def _wanted(
    problem: Problem, objective: Objective, start: Pairs, deadline: Pairs, priority: Pairs
) -> Problem:
    """The problem with its objective and the wishes about single tasks."""
    if priority and objective != "completion":
        raise FormatError("--priority weighs completion times; add --objective completion")
    starts, deadlines, weights = (
        _by_task([task.name for task in problem.tasks], flag, _pairs(given))
        for flag, given in (("start", start), ("deadline", deadline), ("priority", priority))
    )
    wants = {
        name: Want(starts.get(name, 0), deadlines.get(name), weights.get(name, 1))
        for name in starts | deadlines | weights
    }
    told: dict[str, str] = {} if objective == "makespan" else {"objective": objective}
    told |= {f"start {name}": f"{us} us" for name, us in starts.items()}
    told |= {f"deadline {name}": f"{us} us" for name, us in deadlines.items()}
    told |= {f"priority {name}": str(weight) for name, weight in weights.items()}
    return replace(
        problem, objective=objective, wants=wants, provenance={**problem.provenance, **told}
    )


def _by_task(names: Sequence[str], flag: str, given: Sequence[tuple[str, int]]) -> dict[str, int]:
    """A flag's value for each task it names, "" for all tasks if it is among the names;
    FormatError for an unknown or repeated task."""
    told: dict[str, int] = {}
    for name, value in given:
        if name not in names:
            there = ", ".join(filter(None, names))
            raise FormatError(f"--{flag}: there is no task {name!r}, only {there}; give one")
        if name in told:
            who = f"task {name!r} has" if name else "all tasks have"
            raise FormatError(f"--{flag}: {who} more than one; give it once")
        told[name] = value
    return told
