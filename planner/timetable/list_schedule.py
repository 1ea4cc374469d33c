"""List schedules: to begin with, and the baseline's, decided again at every round."""

from collections.abc import Iterable, Sequence

from planner.timetable.jobs import Assignment, Devices, Job
from planner.timetable.simulate import Simulation


def longest_remaining(jobs: Sequence[Job], devices: Devices) -> list[Assignment]:
    """Longest remaining time first (on the kind of device where it is shortest), on whichever
    device falls free, decided again after every round. Jobs run on one device.

    devices: the kind of each.
    """
    made, left = Simulation(jobs, devices), {at: job.rounds for at, job in enumerate(jobs)}
    pace = [min(run.period_us for run in job.runs if run) for job in jobs]
    while left:
        found = []
        for kind, line in made.lines.items():
            here = [at for at in left if jobs[at].runs[kind]]
            for free_us, device in line:
                able = [at for at in here if jobs[at].stays(made.last(at), (device,))]
                if able:  # the device waits if none of them is ready
                    ready = min(made.ready_us[at] for at in able)
                    found.append((max(free_us, ready), device, able))
                    break
        now, device, able = min(found)
        idle = [at for at in able if made.ready_us[at] <= now]
        at = max(idle, key=lambda one: (left[one] * pace[one], jobs[one].name))
        made.assign(at, 1, (device,))
        left[at] -= 1
        if not left[at]:
            del left[at]
    return made.assignments


def list_schedule(jobs: Sequence[Job], order: Iterable[int], devices: Devices) -> list[Assignment]:
    """Whole jobs: the device that falls free first takes the first in `order` that may begin and
    would not be done sooner on another kind; where there is none, the first goes where it is done
    soonest. A gang begins when as many devices as it takes are free."""
    made, waiting = Simulation(jobs, devices), list(order)
    while waiting:
        now, kind = min((line[0][0], kind) for kind, line in made.lines.items())
        begin = max(now, min(made.ready_us[at] for at in waiting))
        able = [at for at in waiting if made.ready_us[at] <= begin]
        spots = ((at, *made.soonest(at, jobs[at].rounds)) for at in able)
        here = (at for at, start, on in spots if (start, devices[on[0]]) == (begin, kind))
        at = next(here, able[0])
        waiting.remove(at)
        made.assign(at, jobs[at].rounds)
    return made.assignments
