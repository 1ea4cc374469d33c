"""What can be asked of a plan: one field for each flag of `python -m planner build`.

The command's flags and their help, the keywords of `Options`, what a problem holds of them and what
a plan says of itself are made from the table of flags and these fields.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from planner.inputs.layout import Layout, Nodes, OrderName, parse_layout, parse_nodes
from profiles import console
from profiles.errors import FormatError
from profiles.units import LARGEST

Objective = Literal["makespan", "completion"]
PackingName = Literal["auto", "pad", "fixed", "ffd", "balanced"]
Each = int | Sequence[int]
"""One value for all kinds of devices, or one for each."""
Pairs = Mapping[str, int] | Sequence[tuple[str, int]]
"""A value for each task that is named."""

_RATE, _US = " bytes/s", " us"  # units in which a plan tells of options
_GIVEN = "(default: as profiled)"


class _Flag(NamedTuple):
    """Help, placeholder and parser of a field's flag. told: the unit with which a plan tells of it,
    if it does; name: the flag, by default the field's."""

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    told: str | None = None
    choices: tuple[str, ...] | None = None
    name: str = ""

    def of(self, field: str) -> str:
        """The flag of a field, without its dashes."""
        return self.name or field.replace("_", "-")


def _space(text: str) -> int:
    """A size, or 0."""
    return 0 if text.strip() == "0" else console.size(text)


def _microbatch(text: str) -> tuple[str, int]:
    """A task, or "" for all, and its size, or 0 for any."""
    task, _, size = text.rpartition("=")
    return task, 0 if size == "free" else console.whole(1, 1 << 28)(size)


def _of_task(help: str, parse: Callable[[str], int], value: str, told: str) -> _Flag:
    """A flag about single tasks."""

    def pair(text: str) -> tuple[str, int]:
        name, equals, rest = text.partition("=")
        if not name or not equals:
            raise argparse.ArgumentTypeError(f"{text!r} is not like TASK={value}")
        return name, parse(rest)

    return _Flag(f"{help}; repeat it for other tasks", f"TASK={value}", pair, told)


_size, _rate, _us = console.size, console.rate, console.duration
_FLAGS = {
    "devices": _Flag(
        "how many (default 1); with several profiles how many of each kind, like 2,4",
        "COUNTS",
        console.listed(console.whole(1, 1 << 16)),
    ),
    "nodes": _Flag(
        "the devices on several machines instead, like 2x8: 2 machines of 8 devices each",
        "NODES",
        console.typed(parse_nodes),
    ),
    "net": _Flag(f"rate of the network between nodes, like 12GB/s {_GIVEN}", "RATE", _rate, _RATE),
    "net_latency": _Flag(
        "its latency, like 20us (default: as profiled, or that of the links within a node)",
        "DURATION",
        _us,
        _US,
    ),
    "device_memory": _Flag(
        f"memory of each device, like 24GiB, or of each kind, like 40GiB,24GiB {_GIVEN}",
        "SIZES",
        console.listed(_size),
    ),
    "host_memory": _Flag(
        f"host memory for parameters, state and gradients {_GIVEN}", "SIZE", _size
    ),
    "h2d": _Flag(f"rate of copies host to device, like 25GB/s {_GIVEN}", "RATE", _rate, _RATE),
    "d2h": _Flag(f"rate of copies device to host, like 25GB/s {_GIVEN}", "RATE", _rate, _RATE),
    "disk_space": _Flag(
        f"disk for tasks that wait while the host memory is full {_GIVEN}; 0: none", "SIZE", _space
    ),
    "corrections": _Flag(
        "correct the profile by what compare --write-corrections wrote; repeat it for a second "
        "file, of a run of the plan that the first one gave",
        "FILE",
    ),
    "after": _Flag(
        "plan what the run in this folder left to do, from the states that it has kept",
        "RUN",
        name="from",
    ),
    "only": _Flag(
        "plan this task and leave out those not named; repeat it for others", "TASK", str
    ),
    "until": _Flag(
        "train no task beyond this step, counted from its first one (default: to its end)",
        "STEP",
        console.whole(1, LARGEST),
        "",
    ),
    "microbatch": _Flag(
        "size of all tasks' microbatches, or of one's (default: the best one; of a task that goes "
        "on --from RUN, the one it had, unless they are free); repeat it for other tasks",
        "N|TASK=N|free",
        _microbatch,
    ),
    "start": _of_task("begin it no sooner than this, like 2h", _us, "DURATION", _US),
    "deadline": _of_task("be done with it by then, like 1:30:00", _us, "DURATION", _US),
    "priority": _of_task(
        "its weight in the mean completion time (default 1)", console.whole(1, 1 << 20), "N", ""
    ),
    "objective": _Flag(
        "what is to be short: the whole, or the tasks' mean completion time (default makespan)",
        choices=get_args(Objective),
        told="",
    ),
    "layout": _Flag(
        "train every task on several devices: stages x replicas, like 2x2, the replicas of each "
        "stage, like 3,1, or, of samples with lengths, the stages of pipelines side by side, like "
        "2+1+1 (default: the best for each task)",
        "LAYOUT",
        console.typed(parse_layout),
        "",
    ),
    "order": _Flag(
        "order of the passes of tasks on several devices (default: the best one)",
        choices=get_args(OrderName),
        told="",
    ),
    "packing": _Flag(
        "how samples that have lengths are packed into microbatches (default: as is best)",
        choices=get_args(PackingName),
        told="",
    ),
    "reorder_window": _Flag(
        "reorder such samples within windows of so many steps by their lengths, so that long ones "
        "meet in few steps; changes what each step trains on (default 1: not at all)",
        "N",
        console.whole(1, 1 << 16),
        "",
    ),
    "segment_steps": _Flag(
        "end segments after so many steps: there tasks can be kept, stopped and gone on from",
        "N",
        console.whole(1, LARGEST),
        "",
    ),
}
_GROUPS = {
    "several devices": "nodes net net_latency layout order",
    "lengths": "packing reorder_window",
    "to compare": "h2d d2h",
    "expert": "host_memory disk_space corrections only until start deadline priority objective "
    "segment_steps",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}
"""Of `console.GROUPS`, for the fields whose flags are not common."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options that a problem holds as they are asked for."""

    objective: Objective = "makespan"
    layout: Layout | None = None
    order: OrderName = "auto"
    packing: PackingName = "auto"
    reorder_window: int = 1
    segment_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Options(Wishes):
    """All that can be asked of a plan; None, or nothing: as profiled, or as is best.

    Sizes are in bytes, rates in bytes per second, times in µs. Text is read as on the command line:
    `Options(devices=2, device_memory="24MiB", layout="2x1")`.
    """

    devices: Each | None = None
    nodes: Nodes | None = None
    net: int | None = None
    net_latency: int | None = None
    device_memory: Each | None = None
    host_memory: int | None = None
    h2d: int | None = None
    d2h: int | None = None
    disk_space: int | None = None
    corrections: Sequence[str] = ()
    after: Sequence[str] = ()
    only: Sequence[str] = ()
    until: int | None = None
    microbatch: int | Pairs = ()
    start: Pairs = ()
    deadline: Pairs = ()
    priority: Pairs = ()

    def __post_init__(self) -> None:
        for name, flag in _FLAGS.items():
            given = getattr(self, name)
            if isinstance(given, str) and flag.parse:
                try:
                    read = flag.parse(given)
                except argparse.ArgumentTypeError as error:
                    raise FormatError(f"--{flag.of(name)}: {error}") from None
                object.__setattr__(self, name, (read,) if _DEFAULTS[name] == () else read)

    def told(self) -> dict[str, str]:
        """The options that are not as by default, as a plan tells of them: words by flag."""
        told = dict[str, str]()
        for name, flag in _FLAGS.items():
            given, unit = getattr(self, name), flag.told
            if unit is None or given == _DEFAULTS[name]:
                continue
            if _DEFAULTS[name] == ():  # of single tasks
                told |= {f"{name} {task}": f"{n}{unit}" for task, n in pairs_of(given)}
            else:
                told[flag.of(name)] = f"{given}{unit}"
        return told


BOOKED = [name for name in _FLAGS if name not in ("devices", "nodes", "after")]
"""The fields that a plan book has flags for, too."""
_DEFAULTS = {one.name: one.default for one in fields(Options)}


def pairs_of(given: Pairs) -> list[tuple[str, int]]:
    """The tasks that are named, and their values."""
    return list(given.items() if isinstance(given, Mapping) else given)


def add_options(option: Callable[..., object], *names: str) -> None:
    """Give a parser the flags of these fields, by default of all."""
    for name in names or _FLAGS:
        flag, default = _FLAGS[name], _DEFAULTS[name]
        words: dict[str, Any] = {"help": flag.help, "default": default, "dest": name}
        words["group"] = _GROUP_OF.get(name, "common")
        if default == ():
            words |= {"action": "append", "default": []}
        if flag.choices:
            words["choices"] = flag.choices
        else:
            words |= {"metavar": flag.metavar} | ({"type": flag.parse} if flag.parse else {})
        option(f"--{flag.of(name)}", **words)


def options_of(arguments: argparse.Namespace) -> Options:
    """The options that a command was given."""
    given = vars(arguments)
    return Options(**{name: given[name] for name in _FLAGS if name in given})
