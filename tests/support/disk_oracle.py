"""What a plan with a disk would do to bytes, tried in many orders; shares no code with the checker.

Every kept byte of the host store has a label: whose it is, which byte of it, after which segment of
the task. A segment finds its tasks' bytes or does harm; so does what is lost.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property

from plans.schema import Buffer, Plan

Label = object

UNIT = 256  # bytes that have one label; all offsets and sizes of these plans are multiples of it


class _Facts:
    """What a plan says, which is the same in every order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tasks = {program.name: program.tasks for program in plan.programs}

    def task(self, name: str) -> list[Buffer]:
        roles = (".param", ".state")
        buffers = self.plan.host.buffers
        return [b for b in buffers if b.name.startswith(f"{name}.") and b.name.endswith(roles)]

    @cached_property
    def bytes(self) -> dict[str, list[int]]:
        """Of every task, what is kept of it."""
        names = (task.name for task in self.plan.tasks)
        return {name: [at for b in self.task(name) for at in units(b)] for name in names}

    @cached_property
    def scratch(self) -> dict[str, list[int]]:
        """Of every program, what its ops write beside what is kept."""
        found = {}
        for of in self.plan.programs:
            kept = {b.name for name in of.tasks for b in self.task(name)}
            written = {n for op in (*of.enter, *of.round, *of.leave) for n in op.writes.values()}
            own = (b for b in self.plan.host.buffers if b.name in written - kept)
            found[of.name] = [at for buffer in own for at in units(buffer)]
        return found

    @cached_property
    def needs(self) -> list[set[int]]:
        """The earlier segments that each waits for: of its devices, of its tasks and, where tasks
        wait on the disk, of its bytes."""
        segments = self.plan.segments
        swaps = any(one.read_us is not None or one.write_us is not None for one in segments)
        owners = {b.name: b.name.partition(".")[0] for b in self.plan.host.buffers}
        touched = {
            name: {at for b in self.plan.host.buffers if owners[b.name] == name for at in units(b)}
            for name in self.bytes
        }
        claims = []
        for one in segments:
            own = self.tasks[one.program]
            bytes_of = {at for name in own for at in touched[name]} if swaps else set()
            claims.append(({*one.devices}, {*own}, bytes_of))
        return [
            {
                other
                for other in range(index)
                if any(a & b for a, b in zip(claims[index], claims[other], strict=True))
            }
            for index in range(len(segments))
        ]


@dataclass
class _World:
    facts: _Facts
    store: dict[int, Label] = field(default_factory=dict)
    files: dict[str, dict[int, Label]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def bytes(self, name: str) -> list[int]:
        return self.facts.bytes[name]

    def write(self, name: str, version: object) -> None:
        self.store |= {at: (name, i, version) for i, at in enumerate(self.bytes(name))}

    def holds(self, name: str, version: object) -> bool:
        mine = enumerate(self.bytes(name))
        return all(self.store.get(at) == (name, i, version) for i, at in mine)


def units(buffer: Buffer) -> range:
    return range(buffer.offset, buffer.offset + buffer.bytes, UNIT)


def disk_harm(plan: Plan, orders: int = 12) -> str | None:
    """What goes wrong in some of so many random orders of what the plan leaves open."""
    facts = _Facts(plan)
    for seed in range(orders):
        if why := _run(facts, random.Random(seed)):
            return f"order {seed}: {why}"
    return None


def _run(facts: _Facts, draw: random.Random) -> str | None:
    plan, needs = facts.plan, facts.needs
    world = _World(facts, versions={task.name: 0 for task in plan.tasks})
    away = _first(facts)
    for name in (*away, *(task.name for task in plan.tasks if task.name not in away)):
        world.write(name, 0)
        if name in away:
            world.files[name] = {at: world.store.pop(at, None) for at in world.bytes(name)}
    running: list[int] = []
    done: set[int] = set()
    while len(done) < len(plan.segments):
        open_ = [n for n in range(len(needs)) if n not in done and n not in running]
        ready = [n for n in open_ if needs[n] <= done]
        index = draw.choice(ready + running)
        begin = index not in running
        if step := _begins(world, index) if begin else _ends(world, index):
            return f"{'start' if begin else 'end'} of segment {index}: {step}"
        if begin:
            running.append(index)
        else:
            running.remove(index)
            done.add(index)
    return _over(world)


def _over(world: _World) -> str | None:
    """Every task is whole in the end, in the store or on the disk."""
    for name, version in world.versions.items():
        last = world.files.get(name, {})
        mine = [last.get(at) for at in world.bytes(name)]
        if not world.holds(name, version) and mine != [
            (name, i, version) for i in range(len(mine))
        ]:
            return f"the last state of {name} is lost"
    return None


def _first(facts: _Facts) -> list[str]:
    """The tasks that begin on the disk."""
    first: dict[str, bool] = {}
    for segment in facts.plan.segments:
        for name in facts.tasks[segment.program]:
            first.setdefault(name, segment.read_us is not None)
    return [name for name, reads in first.items() if reads]


def _begins(world: _World, index: int) -> str | None:
    """A segment finds its tasks in the store, or reads them; then it changes what they keep, and
    uses scratch."""
    segment = world.facts.plan.segments[index]
    for name in world.facts.tasks[segment.program]:
        if segment.read_us is not None:
            if name not in world.files:
                return "there is nothing on the disk"
            world.store |= world.files[name]
        if not world.holds(name, world.versions[name]):
            return f"the state of {name} is not where it should be"
    for at in world.facts.scratch[segment.program]:
        world.store[at] = ("scratch", index)
    for name in world.facts.tasks[segment.program]:
        world.write(name, f"segment {index}")
    return None


def _ends(world: _World, index: int) -> str | None:
    """Everything is as the segment has left it; it writes its tasks to the disk, if it does."""
    segment = world.facts.plan.segments[index]
    for at in world.facts.scratch[segment.program]:
        if world.store.get(at) not in (("scratch", index), None):
            return f"byte {at} was written by somebody else"
    for name in world.facts.tasks[segment.program]:
        if not world.holds(name, f"segment {index}"):
            return f"the state of {name} is not where it should be"
        world.versions[name] += 1
        world.write(name, world.versions[name])
        if segment.write_us is not None:
            world.files[name] = {at: world.store[at] for at in world.bytes(name)}
    return None
