"""Works on devices of several kinds: shared out to the kinds, then laid out as an open shop.

The configuration program says how much of a work each kind gets. Until some time T no kind has more
to do than its devices can, and no work takes longer; so a schedule that may interrupt works ends at
T (Gonzalez and Sahni 1976). It is made interval by interval: devices and works are matched such
that all that have no time to lose are busy, until another has none to lose or a share is done.

    V100   | a    | b                  | c      |
    K80    | b    | a                           |       works of one kind alone that
    K80    | c                         | b      |       fit one after the other are one job
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import networkx as nx

from planner.inputs import Effort
from planner.timetable.configuration import Column, Demand, configuration
from planner.timetable.works import Devices, Part, Piece, Share, Work, laid

Split = dict[int, int]  # by kind, how many of a work's rounds


class Job(NamedTuple):
    """By kind, parts that run one after the other, at one place at a time."""

    parts: dict[int, list[Part]]

    def us(self, works: Sequence[Work]) -> dict[int, int]:
        """The time on each kind."""
        return {
            kind: sum(works[at].us(kind, rounds) for at, rounds in parts)
            for kind, parts in self.parts.items()
        }


class Slice(NamedTuple):
    """A job on a device, for so long."""

    job: int
    device: int
    us: int


def spread(works: Sequence[Work], devices: Devices, effort: Effort) -> Iterator[list[Piece]]:
    """Timetables with shares as the configuration program has them, and with whole works on the
    kind where most of their shares are."""
    shares = _shares(works, devices, effort)
    for shared in (shares, [_most(share) for share in shares]):
        jobs = _jobs(works, devices, shared)
        if len(jobs) * len(devices) <= effort.limits.matched_pairs:
            slices = open_shop([job.us(works) for job in jobs], devices)
            yield laid(works, _parts(works, devices, jobs, slices), devices)


def _shares(works: Sequence[Work], devices: Devices, effort: Effort) -> list[Split]:
    """The rounds of each work that every kind of device gets."""
    kinds = sorted(set(devices))
    of = [(at, kind) for at, work in enumerate(works) for kind in kinds if work.runs[kind]]
    columns = [Column(works[at].name, str(kind), works[at].whole_us(kind)) for at, kind in of]
    demand = Demand({str(kind): count for kind, count in Counter(devices).items()})
    rounds: list[Split] = [{} for _ in works]
    for (at, kind), part in zip(of, configuration(demand, columns, effort).parts, strict=True):
        rounds[at][kind] = int(works[at].rounds * part + 1e-6)
    return [_all_rounds(work, share) for work, share in zip(works, rounds, strict=True)]


def _all_rounds(work: Work, share: Split) -> Split:
    """About this share, of all rounds; no part that enters and leaves for longer than it runs."""
    most = max(share, key=lambda kind: (share[kind], -work.whole_us(kind)))
    kept = {
        kind: rounds
        for kind, rounds in share.items()
        if kind != most and rounds and work.us(kind, rounds) > 2 * work.us(kind, 0)
    }
    return {**kept, most: work.rounds - sum(kept.values())}


def _most(share: Split) -> Split:
    """All of a work's rounds where most of them are."""
    return {max(share, key=lambda kind: (share[kind], -kind)): sum(share.values())}


def _jobs(works: Sequence[Work], devices: Devices, shares: Sequence[Split]) -> list[Job]:
    """A job for each work with shares of several kinds; the others one after the other, the first
    that fit (longest first), up to the least end of all jobs."""
    split = [at for at, share in enumerate(shares) if len(share) > 1]
    jobs = [Job({kind: [(at, count)] for kind, count in shares[at].items()}) for at in split]
    alone = [(at, kind) for at, share in enumerate(shares) if len(share) == 1 for kind in share]
    alone.sort(key=lambda one: -works[one[0]].whole_us(one[1]))
    every = [*jobs, *(Job({kind: [(at, works[at].rounds)]}) for at, kind in alone)]
    end = _end_us([job.us(works) for job in every], devices)
    bins: list[tuple[int, int, Job]] = []  # kind, time, and the job
    for at, kind in alone:
        us = works[at].whole_us(kind)
        fits = (n for n, (its, busy, _) in enumerate(bins) if its == kind and busy + us <= end)
        place = next(fits, None)
        if place is None:
            bins.append((kind, us, Job({kind: [(at, works[at].rounds)]})))
        else:
            _, busy, job = bins[place]
            job.parts[kind].append((at, works[at].rounds))
            bins[place] = kind, busy + us, job
    return [*jobs, *(job for *_, job in bins)]


def _end_us(jobs: Sequence[dict[int, int]], devices: Devices) -> int:
    """The least end of jobs that may be interrupted: of the longest job, of the busiest kind."""
    ends = [sum(job.values()) for job in jobs]
    for kind, count in Counter(devices).items():
        ends.append(-(-sum(job.get(kind, 0) for job in jobs) // count))
    return max(ends)


def open_shop(jobs: Sequence[dict[int, int]], devices: Devices) -> list[Slice]:
    """Slices in order of time, no job on two devices at once, that end about as soon as can be.

    jobs: for each the µs that it needs on each kind of device.
    """
    left, slices, counts = [dict(job) for job in jobs], list[Slice](), Counter(devices)
    rest, on = _end_us(jobs, devices), dict[int, int]()
    while any(map(sum, (job.values() for job in left))):
        rest = max(rest, _end_us(left, devices))
        on = _matched(left, devices, rest, on)
        us = min(left[job][devices[device]] for job, device in on.items())
        slack = [rest - sum(job.values()) for at, job in enumerate(left) if at not in on]
        taken = [devices[device] for device in on.values()]
        for kind, count in counts.items():
            if idle := count - taken.count(kind):
                load = sum(job.get(kind, 0) for job in left)
                slack.append((count * rest - load) // idle)
        us = max(1, min([us, *slack]))
        for job, device in sorted(on.items()):
            slices.append(Slice(job, device, us))
            left[job][devices[device]] -= us
        rest -= us
    return slices


def _matched(
    left: Sequence[dict[int, int]], devices: Devices, rest: int, before: dict[int, int]
) -> dict[int, int]:
    """The device of each job that runs next: all jobs and devices that have no time to lose until
    the rest is over are among them; jobs stay where they were `before` if they can."""
    tight = {
        kind: sum(job.get(kind, 0) for job in left) + count > count * rest
        for kind, count in Counter(devices).items()
    }
    must = 4 * (len(left) + len(devices))  # more than all other weights together
    graph: Any = nx.Graph()
    for at, job in enumerate(left):
        hurry = must * (sum(job.values()) >= rest)
        for device, kind in enumerate(devices):
            if job.get(kind, 0) > 0:
                weight = hurry + must * tight[kind] + 2 + (before.get(at) == device)
                graph.add_edge(("job", at), ("device", device), weight=weight)
    pairs = (dict(pair) for pair in nx.max_weight_matching(graph))
    return {pair["job"]: pair["device"] for pair in pairs}


def _parts(
    works: Sequence[Work], devices: Devices, jobs: Sequence[Job], slices: Sequence[Slice]
) -> Iterator[Share]:
    """The rounds that the slices have time for, in their order."""
    waiting = [{kind: list(parts) for kind, parts in job.parts.items()} for job in jobs]
    last = {(one.job, devices[one.device]): number for number, one in enumerate(slices)}
    spare = Counter[tuple[int, int]]()  # time of earlier slices that no whole round filled
    for number, (job, device, us) in enumerate(slices):
        kind = devices[device]
        us += spare.pop((job, kind), 0)
        parts = waiting[job][kind]
        while parts:
            at, left = parts[0]
            period = max(1, works[at].us(kind, 1) - works[at].us(kind, 0))
            count = left if last[job, kind] == number else min(left, us // period)
            if not count:
                break
            yield Share(at, count, (device,))
            us -= count * period
            parts[:1] = [(at, left - count)] if count < left else []
        spare[job, kind] = us
