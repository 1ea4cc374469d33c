"""The order of segments: each begins after those that it waits for.

Segments of 0 rounds are done. A segment waits for the earlier ones on its devices and of its tasks;
where tasks wait on the disk, also for those of tasks that have host bytes of its own. No segment
begins before the earliest start of its task, which counts from the beginning of the run.

What is skipped hands its predecessors on to those that waited for it. They need only wait for
those that share a device, a task or host bytes with them: a segment whose threads never return must
not hold up one that it cannot touch. Who begins without such a wait hands it on in turn.
"""

from collections.abc import Callable, Collection

from plans.order import claims, regions, waits_for
from plans.schema import Plan
from profiles.units import LARGEST


class Turns:
    """Segments that have not begun: `waiting`, by number, with what each waits for.

    `names`, `tasks`: of every segment."""

    def __init__(self, plan: Plan) -> None:
        self._ended = {index for index, one in enumerate(plan.segments) if not one.rounds}
        known = enumerate(waits_for(plan))
        self.waiting = {i: before for i, before in known if i not in self._ended}
        self.names = [f"segment {index}" for index in range(len(plan.segments))]
        self.tasks = [plan.trained(segment) for segment in plan.segments]
        self._devices = [segment.devices for segment in plan.segments]
        self._claims = [claims(*own) for own in zip(self._devices, self.tasks, strict=True)]
        self._regions = regions(plan)
        early = {task.name: task.start_us for task in plan.tasks}
        self._starts = [max(map(early.__getitem__, plan.trained(s))) for s in plan.segments]
        self._inherited: dict[int, set[int]] = {}

    def ready(self, now_us: int = LARGEST) -> list[int]:
        """Those that may begin at this time of the run, in the plan's order."""
        late = [index for index in self.waiting if self._starts[index] <= now_us]
        return [index for index in late if not self._blockers(index)]

    def next_us(self, now_us: int) -> int | None:
        """The next earliest start after that time of a segment that waits for nothing else."""
        early = [index for index in self.waiting if self._starts[index] > now_us]
        return min((self._starts[i] for i in early if not self._blockers(i)), default=None)

    def begin(self, index: int) -> None:
        del self.waiting[index]
        self._hand_on(index, self._inherited.pop(index, set()))

    def end(self, index: int) -> None:
        self._ended.add(index)

    def segments(self, task: str) -> list[int]:
        """The segments of a task that have not begun."""
        return [index for index in self.waiting if task in self.tasks[index]]

    def skip(self, task: str) -> None:
        """No segment of this task will begin any more."""
        for index in self.segments(task):
            before = self.waiting.pop(index) | self._inherited.pop(index, set())
            self._hand_on(index, before)
            self._ended.add(index)

    def spread(self, devices: Collection[int], fits: Callable[[int, int], bool]) -> dict[int, int]:
        """Place segments that wait for their one device alone on those of `devices` that no segment
        is left for, where that `fits`; the new device of each, by number."""
        ended, placed = self._ended, dict[int, int]()
        used = {d for i, own in enumerate(self._devices) if i not in ended for d in own}
        free = [device for device in devices if device not in used]
        for index in list(self.waiting):
            own, known = self._devices[index], self._claims[index]
            if len(own) > 1 or not self._blockers(index):
                continue
            for device in free:
                before = self.waiting[index] | self._inherited.get(index, set())
                self._claims[index] = claims((device,), self.tasks[index])
                if fits(index, device) and not any(self._share(index, i) for i in before - ended):
                    self._place(index, device, before)
                    free.remove(device)
                    placed[index] = device
                    break
                self._claims[index] = known
        return placed

    def _place(self, index: int, device: int, before: set[int]) -> None:
        """Who waited for the segment on its device waits for those before it there instead."""
        self._devices[index] = (device,)
        self.waiting[index], self._inherited[index] = set(), before
        for other, needed in self.waiting.items():
            if index in needed and not self._share(index, other):
                self.waiting[other] = needed - {index}
                self._inherited.setdefault(other, set()).update(before)

    def blocked(self, by: Collection[int]) -> list[int]:
        """Those that wait for one of these."""
        return [index for index in self.waiting if self._blockers(index) & set(by)]

    def _hand_on(self, index: int, before: set[int]) -> None:
        """Let those that wait for this one wait for these as well."""
        for other, needed in self.waiting.items():
            own = self._inherited.setdefault(other, set())
            if index in needed or index in own:
                own |= before

    def _blockers(self, index: int) -> set[int]:
        found = self.waiting[index] - self._ended
        handed_on = self._inherited.get(index, set()) - self._ended
        return found | {other for other in handed_on if self._share(index, other)}

    def _share(self, one: int, other: int) -> bool:
        """True if the two use a device, a task or host bytes in common."""
        return bool(set(self._claims[one]) & set(self._claims[other])) or any(
            start < end and begin < stop
            for name in self.tasks[one]
            for start, stop in self._regions[name]
            for task in self.tasks[other]
            for begin, end in self._regions[task]
        )
