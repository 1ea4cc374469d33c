"""Devices that share one link to the host: each is planned with an equal part of its rates.

Copies of a shared link take turns, at its full rate. While all of its devices copy all the time,
each gets its part; while others rest a device gets more, and its copies end before they must.
"""

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from planner.inputs.problem import Kind, Problem
from planner.inputs.whatif import faster
from profiles.errors import FormatError

Groups = tuple[tuple[int, ...], ...]


def parse_groups(text: str) -> Groups:
    """Device numbers as in `0,1;2,3`; ValueError for anything else."""
    try:
        groups = tuple(tuple(int(number) for number in part.split(",")) for part in text.split(";"))
    except ValueError:
        raise ValueError(f"{text!r} is not like 0,1;2,3, the numbers of devices") from None
    if any(number < 0 for group in groups for number in group):
        raise ValueError(f"{text!r} has a number below 0")
    return groups


def shared(problem: Problem, groups: Groups) -> Problem:
    """The problem with the devices of each group on one link; FormatError unless every device is
    in one group with others of its kind, and a kind's groups are of one size, so that its devices
    are alike."""
    given = sorted(number for group in groups for number in group)
    if given != list(range(problem.devices)):
        raise FormatError(
            f"--link-groups names devices {given}; it must name each of 0 to "
            f"{problem.devices - 1} once"
        )
    of = problem.kind_of
    for group in groups:
        if len({of[number] for number in group}) > 1:
            names = ", ".join(f"{number} ({problem.kinds[of[number]].name})" for number in group)
            raise FormatError(
                f"--link-groups has a group of devices {names}; a link can be shared by devices "
                "of one kind"
            )
    kinds = tuple(
        _sharing(kind, [len(group) for group in groups if of[group[0]] == at])
        for at, kind in enumerate(problem.kinds)
    )
    return dataclasses.replace(problem, kinds=kinds, link_groups=groups)


def _sharing(kind: Kind, sizes: Sequence[int]) -> Kind:
    """The kind with such groups of devices on one link."""
    if len(set(sizes)) > 1:
        raise FormatError(
            f"--link-groups has groups of {sorted(set(sizes))} devices; all must be of one size, "
            "since devices with more and with less of a link would not be alike"
        )
    count, whole = sizes[0], kind.device
    part = replace(
        whole,
        links=tuple(
            link if link.kind in ("d2d", "cast", "p2p", "net") else faster(link, (1, count))
            for link in whole.links
        ),
    )
    return dataclasses.replace(kind, device=part, whole_link=whole, sharers=count)
