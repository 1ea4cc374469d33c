"""Devices that share one link to the host: each is planned with an equal part of its rates.

Copies of a shared link take turns, at its full rate. While all of its devices copy all the time,
each gets its part; while others rest a device gets more, and its copies end before they must.
"""

from msgspec.structs import replace

from planner.overrides import slower
from planner.problem import Problem
from profiles.errors import FormatError
from profiles.schema import Device

Groups = tuple[tuple[int, ...], ...]


def parse_groups(text: str) -> Groups:
    """Device numbers as in `0,1;2,3`; ValueError for anything else."""
    groups = tuple(tuple(int(number) for number in part.split(",")) for part in text.split(";"))
    if any(number < 0 for group in groups for number in group):
        raise ValueError(f"{text!r} has a number below 0")
    return groups


def shared(problem: Problem, groups: Groups) -> Problem:
    """The problem with the devices of each group on one link; FormatError unless every device is
    in one group and all groups are of one size, so that devices are alike."""
    given = sorted(number for group in groups for number in group)
    if given != list(range(problem.devices)):
        raise FormatError(
            f"--link-groups names devices {given}; it must name each of 0 to "
            f"{problem.devices - 1} once"
        )
    sizes = sorted({len(group) for group in groups})
    if len(sizes) > 1:
        raise FormatError(
            f"--link-groups has groups of {sizes} devices; all must be of one size, since devices "
            "with more and with less of a link would not be alike"
        )
    part = _part(problem.device, sizes[0])
    return problem.sharing(groups, part)


def _part(device: Device, count: int) -> Device:
    """The device with 1/count of its link's rates; copies inside it are its own."""
    return replace(device, links=tuple(slower(link, count) for link in device.links))
