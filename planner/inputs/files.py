"""From files and options to a problem: `python -m planner build` and Python users ask alike."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from msgspec import structs

import profiles
from planner.inputs import corrections as correcting
from planner.inputs import remaining
from planner.inputs.kinds import across
from planner.inputs.layout import Nodes
from planner.inputs.nodes import networked, on_nodes
from planner.inputs.options import Options, Wishes, pairs_of
from planner.inputs.problem import Problem, Want
from planner.inputs.whatif import narrowed, only_microbatches, override
from plans import runlog
from profiles import lengths
from profiles.codec import read_bytes, sha256
from profiles.errors import FormatError
from profiles.schema import Disk, Profile

T = TypeVar("T", int, str)
_AS_PROFILED = Options()


def read_problem(profile: str | Sequence[str], asked: Options = _AS_PROFILED) -> Problem:
    """The problem of training all tasks of a profile, or of one profile for each kind of devices.

    FormatError for a bad file and for what does not go together.
    """
    names, nodes = _listed(profile), asked.nodes
    counts = _listed(asked.devices or (nodes.total if nodes else 1))
    sizes: Sequence[int | None] = _listed(asked.device_memory) if asked.device_memory else [None]
    _go_together(asked, names, counts, sizes)
    sizes = [*sizes] * len(names) if len(sizes) == 1 else sizes
    left, inputs = _left(names, asked)
    read, rest = [one.profile for one in left], left[-1]
    problem = across(read, names, devices=counts, device_bytes=sizes, host_bytes=asked.host_memory)
    problem = replace(
        problem,
        **{name: value for name, value in rest._asdict().items() if name != "profile"},
        **{one.name: getattr(asked, one.name) for one in fields(Wishes)},
        wants=_wants(asked, [task.name for task in problem.tasks]),
        disk=_disk(problem.disk, asked.disk_space),
        inputs=inputs,
        provenance=asked.told(),
        lengths=lengths.load(names[0], problem.tasks),
    )
    return on_nodes(problem, nodes) if nodes and nodes.count > 1 else problem


def _left(names: Sequence[str], asked: Options) -> tuple[list[remaining.Rest], dict[str, str]]:
    """The rest of each profile after earlier runs, with the rates, corrections and microbatches
    that are asked for; and the hashes of the files, by their roles in a plan's inputs."""
    corrections, given = asked.corrections, asked.microbatch
    microbatch = [("", given)] if isinstance(given, int) else pairs_of(given)
    data, inputs = [read_bytes(path) for path in names], dict[str, str]()
    found, logs = [], [runlog.load(log) for run in asked.after for log in runlog.files(run)]
    for path, content in zip(names, data, strict=True):
        made = _with_rates(profiles.loads(content, path), asked)
        for task in made.tasks if corrections else ():
            if task.lengths:
                raise FormatError(
                    f"{task.name}: its samples have lengths, with which --corrections does not "
                    "go; leave it out"
                )
        made, inputs = correcting.chain(made, sha256(content), corrections)
        made = narrowed(made, asked.only, asked.until)
        rest = (
            remaining.after(made, logs, asked.after[-1], microbatch, asked.reorder_window)
            if logs
            else remaining.Rest(made)
        )
        told = _by_task(["", *(task.name for task in rest.profile.tasks)], "microbatch", microbatch)
        wanted = {task.name: told.get(task.name, told.get("", 0)) for task in rest.profile.tasks}
        wanted |= {name: rest.microbatch[name] for name in rest.additions}
        found.append(rest._replace(profile=only_microbatches(rest.profile, wanted)))
    inputs |= {f"profile-{n}" if n else "profile": sha256(c) for n, c in enumerate(data)}
    return found, inputs


def _with_rates(profile: Profile, asked: Options) -> Profile:
    """The profile with the rates that are asked for."""
    made, nodes = override(profile, h2d=asked.h2d, d2h=asked.d2h), asked.nodes
    return networked(made, asked.net, asked.net_latency) if nodes and nodes.count > 1 else made


def _listed(given: T | Sequence[T]) -> Sequence[T]:
    """One value as a list of it."""
    return [given] if isinstance(given, int | str) else given


def _go_together(
    asked: Options, names: Sequence[str], counts: Sequence[int], sizes: Sequence[int | None]
) -> None:
    """FormatError for the first of these that is so; `counts` and `sizes` of devices."""
    nodes, kinds = asked.nodes or Nodes(1, sum(counts)), len(names)
    devices, several = ",".join(map(str, counts)), nodes.count > 1
    for wrong, what in (
        (
            sum(counts) != nodes.total,
            f"--nodes {nodes} has {nodes.total} devices, --devices says {devices}; leave out "
            "--devices",
        ),
        (
            several and kinds > 1,
            f"--nodes {nodes} are of devices of one kind, but there are {kinds} profiles; give "
            "one of them",
        ),
        (
            several and asked.disk_space,
            f"--disk-space: on several nodes tasks cannot wait on a disk; with --nodes {nodes} "
            "leave it out",
        ),
        (
            not several and (asked.net, asked.net_latency) != (None, None),
            "--net and --net-latency are about several nodes; give --nodes like 2x8",
        ),
        (
            len(counts) != kinds,
            f"--devices says {_count(len(counts), 'number')} but there "
            f"{_count(kinds, 'profile', verb=True)}; give as many devices of each kind as there "
            "are, like 2,4, in the order of the profiles",
        ),
        (
            len(sizes) not in (1, kinds),
            f"--device-memory lists {len(sizes)} sizes for {_count(kinds, 'profile')}; give one "
            "for all kinds of devices, or one for each",
        ),
        (
            kinds > 1 and asked.corrections,
            "--corrections are of one kind of devices and cannot be told apart by profile; leave "
            "them out, or plan with one profile",
        ),
        (
            asked.until and asked.reorder_window > 1,
            "--until may cut a window of --reorder-window, whose samples would then come in "
            "another order; leave out one of them",
        ),
        (
            asked.priority and asked.objective != "completion",
            "--priority weighs completion times; add --objective completion",
        ),
    ):
        if wrong:
            raise FormatError(what)


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


def _wants(asked: Options, names: Sequence[str]) -> dict[str, Want]:
    """The wishes about single tasks, by their names."""
    given = ("start", asked.start), ("deadline", asked.deadline), ("priority", asked.priority)
    starts, deadlines, weights = (_by_task(names, flag, pairs_of(own)) for flag, own in given)
    return {
        name: Want(starts.get(name, 0), deadlines.get(name), weights.get(name, 1))
        for name in starts | deadlines | weights
    }


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
